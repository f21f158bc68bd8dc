// Matrices as pictures: codes from the server, one colour each. 0 blank, then the positive, then the negative ramp.
import { boot } from "./store.js";

const MARGIN = 22; // pixels for the names above and on the left
const painted = new Map();

/** The colour of every code as one number, in the byte order of an image (red first on every machine of today). */
function palette(theme) {
  if (!painted.has(theme)) {
    const { positive, negative } = boot.ramps[theme];
    const colours = [0, ...[...positive, ...negative].map((c) => {
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
      return (255 << 24) | (b << 16) | (g << 8) | r;
    })];
    painted.set(theme, Uint32Array.from(colours));
  }
  return painted.get(theme);
}

/** A small canvas with one pixel a cell. */
function cells(codes, side, theme) {
  const image = new ImageData(side, side);
  const pixels = new Uint32Array(image.data.buffer), text = atob(codes), colours = palette(theme);
  for (let i = 0; i < pixels.length; i++) pixels[i] = colours[text.charCodeAt(i)];
  const small = new OffscreenCanvas(side, side);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

/** The canvas at the resolution of the screen, and its size in pixels of the page. */
function fresh(canvas) {
  const width = canvas.clientWidth, dense = Math.min(devicePixelRatio || 1, 3);
  if (canvas.width !== Math.round(width * dense)) canvas.width = canvas.height = Math.round(width * dense);
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, width, width);
  pen.imageSmoothingEnabled = false;
  return [pen, width];
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function drawHeat(canvas, answer, part, chosen, theme, words) {
  const [pen, width] = fresh(canvas);
  if (!width) return;
  const { codes, cells: count, zero, tile } = answer.heat.parts[part];
  const size = width - MARGIN, unit = size / answer.side;
  pen.fillStyle = css("--panel");
  pen.fillRect(MARGIN, MARGIN, size, size);
  pen.save();
  pen.beginPath(); pen.rect(MARGIN, MARGIN, size, size); pen.clip();
  pen.drawImage(cells(codes, count, theme), MARGIN, MARGIN, unit * count * tile, unit * count * tile);
  pen.restore();
  const box = (row, col) => [MARGIN + unit * col.from, MARGIN + unit * row.from, unit * (col.to - col.from), unit * (row.to - row.from)];
  for (const row of answer.frames) {
    for (const col of answer.frames) {
      const name = nameOf(answer, row.name, col.name);
      if (zero.includes(name)) hatch(pen, box(row, col), words.zero);
      pen.strokeStyle = row === col ? css(`--${row.name}`) : css("--muted");
      pen.lineWidth = row === col ? 2.5 : 0.6;
      pen.strokeRect(...box(row, col));
    }
  }
  pen.font = `bold 12px ${css("font-family") || "sans-serif"}`;
  pen.textAlign = "center";
  for (const { name, label, from, to } of answer.frames) {
    const at = MARGIN + (unit * (from + to)) / 2;
    pen.fillStyle = css(`--${name}`);
    pen.fillText(label, at, MARGIN - 7);
    pen.save(); pen.translate(MARGIN - 7, at); pen.rotate(-Math.PI / 2); pen.fillText(label, 0, 0); pen.restore();
  }
  for (const [a, b] of [chosen.split(","), chosen.split(",").reverse()]) {
    const row = answer.frames.find((f) => f.name === a), col = answer.frames.find((f) => f.name === b);
    const [x, y, w, h] = box(row, col);
    pen.strokeStyle = css("--ink"); pen.lineWidth = 2; pen.setLineDash([6, 4]);
    pen.strokeRect(x + 3, y + 3, Math.max(w - 6, 1), Math.max(h - 6, 1));
    pen.setLineDash([]);
  }
}

function hatch(pen, [x, y, w, h], word) {
  pen.save();
  pen.beginPath(); pen.rect(x, y, w, h); pen.clip();
  pen.strokeStyle = css("--muted"); pen.lineWidth = 1; pen.globalAlpha = 0.5;
  pen.beginPath();
  for (let d = -h; d < w; d += 10) { pen.moveTo(x + d, y + h); pen.lineTo(x + d + h, y); }
  pen.stroke();
  pen.globalAlpha = 1;
  if (w > 60) {
    pen.font = "12px sans-serif"; pen.textAlign = "center";
    const wide = pen.measureText(word).width + 10;
    pen.fillStyle = css("--paper"); pen.fillRect(x + w / 2 - wide / 2, y + h / 2 - 9, wide, 18);
    pen.fillStyle = css("--ink"); pen.fillText(word, x + w / 2, y + h / 2 + 4);
  }
  pen.restore();
}

/** The server names a block by one of its two orders. */
function nameOf(answer, row, col) {
  return `${row},${col}` in answer.blocks.total.cells ? `${row},${col}` : `${col},${row}`;
}

/** The block under the pointer, or null in the margin. */
export function blockAt(canvas, answer, event) {
  const unit = (canvas.clientWidth - MARGIN) / answer.side;
  const at = (pixels) => answer.frames.find((f) => (pixels - MARGIN) / unit >= f.from && (pixels - MARGIN) / unit < f.to);
  const [col, row] = [at(event.offsetX), at(event.offsetY)];
  return row && col ? nameOf(answer, row.name, col.name) : null;
}

/** The attention matrix with names of tokens where there is room. */
export function drawMatrix(canvas, { codes, cells: count, labels }, theme) {
  const [pen, width] = fresh(canvas);
  if (!width) return;
  const numbers = labels.every((l) => /^\d+$/.test(l));
  const margin = numbers ? MARGIN : 62, size = width - margin, unit = size / count;
  pen.fillStyle = css("--panel");
  pen.fillRect(margin, margin, size, size);
  pen.drawImage(cells(codes, count, theme), margin, margin, size, size);
  pen.strokeStyle = css("--muted"); pen.lineWidth = 1; pen.strokeRect(margin, margin, size, size);
  if (unit < 9) return;
  pen.font = "11px sans-serif"; pen.fillStyle = css("--ink");
  labels.forEach((label, i) => {
    const at = margin + unit * (i + 0.5), short = label.length > 9 ? `${label.slice(0, 8)}…` : label;
    pen.textAlign = "right"; pen.fillText(short, margin - 5, at + 4);
    pen.save(); pen.translate(at, margin - 6);
    if (numbers) { pen.textAlign = "center"; } else { pen.textAlign = "left"; pen.rotate(-Math.PI / 3); }
    pen.fillText(short, 0, 0); pen.restore();
  });
}

/** The key: strongest negative, weakest, strongest positive. */
export function drawRamp(canvas, theme) {
  const { positive, negative } = boot.ramps[theme];
  const colours = [...negative].reverse().concat(positive);
  canvas.width = colours.length; canvas.height = 1;
  const pen = canvas.getContext("2d");
  colours.forEach((c, i) => { pen.fillStyle = c; pen.fillRect(i, 0, 1, 1); });
}
