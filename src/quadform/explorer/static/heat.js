// Matrices as pictures: values from the server, coloured by their size; an exact zero stays blank.
import { boot } from "./store.js";
import { css, element, inkOn, number } from "./svg.js";

const MARGIN = 22; // pixels for the names above and on the left
const painted = new Map();

/** A colour as one number, in the byte order of an image (red first on every machine of today). */
function packed(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

function palette(theme) {
  if (!painted.has(theme)) painted.set(theme, [boot.ramps[theme].positive, boot.ramps[theme].negative].map((ramp) => Uint32Array.from(ramp, packed)));
  return painted.get(theme);
}

/** Which of the colours a size has: by its logarithm between two powers of ten, or by its share of a largest size. */
export const byPower = ([bottom, top]) => (size) => (Math.log10(size) - bottom) / (top - bottom);
export const byShare = (largest) => (size) => size / largest;
const step = (share) => Math.min(Math.max(Math.round(share * (boot.levels - 1)), 0), boot.levels - 1);

/** The values as an image, one pixel a cell. */
function image(values, side, place, theme) {
  const data = new ImageData(side, side), pixels = new Uint32Array(data.data.buffer), [up, down] = palette(theme);
  for (let i = 0; i < pixels.length; i++) if (values[i]) pixels[i] = (values[i] > 0 ? up : down)[step(place(Math.abs(values[i])))];
  const small = Object.assign(document.createElement("canvas"), { width: side, height: side });
  small.getContext("2d").putImageData(data, 0, 0);
  return small.toDataURL();
}

/** A picture of its own pixels: as wide as its place. */
function fresh(svg) {
  const width = Math.floor(svg.clientWidth);
  svg.setAttribute("viewBox", `0 0 ${width} ${width}`);
  return width;
}

export function drawHeat(svg, answer, chosen, range, theme) {
  const width = fresh(svg);
  if (width < MARGIN) return;
  const { cells, side, zero, tile, detail, edges, means } = answer.heat, values = new Float32Array(cells), place = byPower(range);
  const size = width - MARGIN, unit = size / answer.side;
  const made = [element("rect", { x: MARGIN, y: MARGIN, width: size, height: size, class: "ground" })];
  const box = (row, col) => ({ x: MARGIN + unit * col.from, y: MARGIN + unit * row.from, width: unit * (col.to - col.from), height: unit * (row.to - row.from) });
  if (detail === "blocks") {
    answer.frames.forEach((row, i) => answer.frames.forEach((col, j) => {
      const at = box(row, col), value = values[i * side + j], fill = value ? boot.ramps[theme].positive[step(place(value))] : css("--panel");
      made.push(element("rect", { ...at, fill, class: "cell" }));
      const words = element("text", { x: at.x + at.width / 2, y: at.y + at.height / 2 + 6, "text-anchor": "middle", class: "large" }, means[nameOf(answer, row.name, col.name)]);
      words.style.fill = inkOn(fill);
      made.push(words);
    }));
  } else if (detail === "entries") {
    const reach = unit * side * tile; // the last tiles reach beyond the matrix
    const clip = element("clipPath", { id: "heat-clip" });
    clip.append(element("rect", { x: MARGIN, y: MARGIN, width: size, height: size }));
    made.push(clip, element("image", { x: MARGIN, y: MARGIN, width: reach, height: reach, href: image(values, side, place, theme), class: "pixels", preserveAspectRatio: "none", "clip-path": "url(#heat-clip)" }));
  } else {
    for (const row of spans(edges)) for (const col of spans(edges)) {
      const value = values[row.index * side + col.index];
      if (value) made.push(element("rect", { ...box(row, col), fill: boot.ramps[theme].positive[step(place(value))] }));
    }
  }
  for (const row of answer.frames) for (const col of answer.frames) {
    if (detail !== "blocks" && zero.includes(nameOf(answer, row.name, col.name))) made.push(...hatched(box(row, col), svg.dataset.zero));
    made.push(element("rect", { ...box(row, col), class: `frame${row === col ? ` own ${row.name}` : ""}` }));
  }
  for (const { name, label, from, to } of answer.frames) {
    const at = MARGIN + (unit * (from + to)) / 2;
    made.push(element("text", { x: at, y: MARGIN - 7, "text-anchor": "middle", class: `name ${name}` }, label));
    made.push(element("text", { transform: `translate(${MARGIN - 7} ${at}) rotate(-90)`, "text-anchor": "middle", class: `name ${name}` }, label));
  }
  for (const [a, b] of [chosen.split(","), chosen.split(",").reverse()]) {
    const { x, y, width: w, height: h } = box(answer.frames.find((f) => f.name === a), answer.frames.find((f) => f.name === b));
    const inside = { x: x + 4, y: y + 4, width: Math.max(w - 8, 1), height: Math.max(h - 8, 1) };
    made.push(element("rect", { ...inside, class: "chosen under" }), element("rect", { ...inside, class: "chosen" }));
  }
  svg.replaceChildren(...made);
}

const spans = (edges) => edges.slice(1).map((to, index) => ({ from: edges[index], to, index }));

function hatched({ x, y, width, height }, words) {
  const lines = [];
  for (let d = 8; d < width + height; d += 10) {
    const [x1, x2] = [Math.max(0, d - height), Math.min(d, width)];
    lines.push(`M${x + x1},${y + d - x1}L${x + x2},${y + d - x2}`);
  }
  const made = [element("path", { d: lines.join(""), class: "hatch" })];
  if (width > 80) made.push(element("text", { x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle" }, words));
  return made;
}

/** The server names a block by one of its two orders. */
function nameOf(answer, row, col) {
  return `${row},${col}` in answer.blocks.cells ? `${row},${col}` : `${col},${row}`;
}

/** What lies under the pointer: block, cell and numbers; null in the margin. */
export function heatAt(svg, answer, event) {
  const size = svg.clientWidth - MARGIN, box = svg.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top].map((p) => (answer.side * (p - MARGIN)) / size);
  const [col, row] = [x, y].map((p) => answer.frames.find((f) => p >= f.from && p < f.to));
  if (!row || !col) return null;
  const { cells, side, tile, detail, edges, means } = answer.heat, name = nameOf(answer, row.name, col.name);
  const at = (p) => (detail === "entries" ? Math.floor(p / tile) : spans(edges).find((s) => p < s.to).index);
  const value = new Float32Array(cells)[at(y) * side + at(x)];
  const local = (p, frame) => {
    if (detail === "rows") return at(p) - edges.indexOf(frame.from) + 1;
    return Math.floor(p - frame.from) + 1;
  };
  const [i, j] = [local(y, row), local(x, col)];
  const words = boot.tips[detail === "entries" && tile > 1 ? "tiles" : detail];
  const told = { row: row.label, col: col.label, i, j, tile, value: value ? number(value) : svg.dataset.zero, mean: means[name], norm: answer.blocks.cells[name].norm };
  return { block: name, words: words.replace(/%(\w+)/g, (_, key) => told[key]) };
}

/** Room for the names of tokens; numbers stand upright above their columns, words are turned. */
function around(labels) {
  const longest = Math.min(Math.max(...labels.map((l) => l.length)), 9);
  return { numbers: longest < 3, margin: longest < 3 ? MARGIN : Math.max(MARGIN, 8 + 6 * longest) };
}

/** The attention matrix with names of tokens where there is room. */
export function drawMatrix(svg, { cells, side, labels, top }, theme) {
  const width = fresh(svg);
  if (width < MARGIN) return;
  const { numbers, margin } = around(labels);
  const size = width - margin, unit = size / side, place = { x: margin, y: margin, width: size, height: size };
  const made = [
    element("rect", { ...place, class: "ground" }),
    element("image", { ...place, href: image(new Float32Array(cells), side, byShare(top), theme), class: "pixels", preserveAspectRatio: "none" }),
    element("rect", { ...place, class: "frame" }),
  ];
  if (unit >= 9) {
    labels.forEach((label, i) => {
      const at = margin + unit * (i + 0.5), short = label.length > 9 ? `${label.slice(0, 8)}…` : label;
      made.push(element("text", { x: margin - 5, y: at + 4, "text-anchor": "end" }, short));
      made.push(element("text", numbers ? { x: at, y: margin - 6, "text-anchor": "middle" } : { transform: `translate(${at} ${margin - 6}) rotate(-60)` }, short));
    });
  }
  svg.replaceChildren(...made);
}

/** Row, column and value under the pointer. */
export function matrixAt(svg, { cells, side, labels }, event) {
  const { margin } = around(labels), box = svg.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top].map((p) => Math.floor((side * (p - margin)) / (box.width - margin)));
  if (Math.min(x, y) < 0 || Math.max(x, y) >= side) return null;
  return { words: `${labels[y]} → ${labels[x]}: ${number(new Float32Array(cells)[y * side + x])}` };
}

/** The key: the weakest to the strongest size; of entries the negative ones on the left. */
export function drawRamp(svg, detail, theme) {
  const { positive, negative } = boot.ramps[theme], colours = detail === "entries" ? [...negative].reverse().concat(positive) : positive;
  svg.setAttribute("viewBox", `0 0 ${colours.length} 1`);
  svg.replaceChildren(...colours.map((fill, x) => element("rect", { x, y: 0, width: 1.05, height: 1, fill })));
}
