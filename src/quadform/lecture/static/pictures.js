// Pictures of a step: matrices, bars, tables, lines. Everything is drawn to the width there is, text stays its size.
import { element } from "./svg.js";
import { label, symbols } from "./symbols.js";

export const boot = JSON.parse(document.getElementById("boot").textContent);
const theme = () => document.documentElement.dataset.theme;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LETTER = 8.2; // pixels of a letter at 15 px, Hangul twice that
const wide = (words) => [...words].reduce((sum, c) => sum + (c.charCodeAt(0) > 0x1100 ? 15 : LETTER), 0);

export function written(value, digits = 2) {
  const said = value.toFixed(Math.abs(value) >= 100 ? 0 : digits);
  return (Number(said) === 0 ? said.replace("-", "") : said).replace("-", "−");
}
export const percent = (value) => `${(100 * value).toFixed(value > 0 && value < 0.01 ? 1 : 0)} %`;

function clip(words, room) {
  let short = words;
  while (short.length > 1 && wide(short) > room) short = short.slice(0, -1);
  return short === words ? words : `${short.slice(0, -1)}…`;
}

const channel = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => channel(parseInt(colour.slice(i, i + 2), 16) / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);

/** The colour of a value, and the ink that can be read on it. */
function shade(value, high) {
  if (value === null) return [css("--panel"), css("--muted")];
  const ramp = boot.ramps[theme()][value < 0 ? "negative" : "positive"];
  const level = Math.min(ramp.length - 1, Math.round((Math.abs(value) / high) * (ramp.length - 1)));
  const colour = value === 0 ? css("--panel") : ramp[level];
  const at = luminance(colour), inks = [css("--ink"), css("--paper")];
  return [colour, inks.sort((a, b) => contrast(luminance(b), at) - contrast(luminance(a), at))[0]];
}

/** A text of a size of its own; the policy of the page allows no style attributes. */
function sized(attributes, words, pixels) {
  const made = label(attributes, words);
  if (pixels) made.style.fontSize = `${pixels}px`;
  return made;
}

function canvas(width, height, name) {
  return element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": name });
}

// --- matrices ---------------------------------------------------------------------------------------------------------
function matrix(panel, width) {
  const { values, rows, columns, high, numbers, mark, axes } = panel;
  const count = values[0].length, left = Math.min(Math.max(...rows.map(wide), 0) + 8, width * 0.34);
  const small = innerWidth <= 860, room = panel.size === "quarter" ? 250 : small ? 280 : 440; // so that the sliders stay in view
  const cell = Math.min((width - left) / count, panel.square ? Math.max(room / rows.length, 9) : numbers ? 84 : 60, panel.letters ? 44 : 66);
  const tall = panel.square ? cell : 30;
  const turned = columns.length && !panel.letters && Math.max(...columns.map(wide)) > cell - 2;
  const top = columns.length ? (turned ? Math.min(Math.max(...columns.map(wide)), 70) + 6 : 20) : 4;
  const height = top + tall * rows.length + (axes[1] ? 20 : 4);
  const svg = canvas(width, height, panel.title), size = tall < 17 ? Math.max(tall - 1, 9) : 0;
  columns.forEach((name, j) => {
    const x = left + cell * (j + 0.5);
    const place = turned ? { transform: `translate(${x + 5} ${top - 4}) rotate(-90)` } : { x, y: top - 5, "text-anchor": "middle" };
    svg.append(sized(place, turned ? clip(name, 70) : name, size));
  });
  values.forEach((row, i) => {
    svg.append(sized({ x: left - 6, y: top + tall * (i + 0.5) + 5, "text-anchor": "end" }, clip(rows[i], left - 6), size));
    row.forEach((value, j) => {
      const [fill, ink] = shade(value, high), x = left + cell * j, y = top + tall * i;
      const box = element("rect", { x, y, width: Math.max(cell - 1, 1), height: tall - 1, fill });
      box.append(element("title", {}, `${rows[i]}${columns[j] ? ` · ${columns[j]}` : ""}: ${value === null ? "–" : written(value, 3)}`));
      svg.append(box);
      if (value === null) svg.append(element("path", { d: `M${x} ${y + tall - 1}L${x + cell - 1} ${y}`, class: "axis" }));
      else if (numbers && cell > 34) {
        const text = element("text", { x: x + cell / 2, y: y + tall / 2 + 5, "text-anchor": "middle" }, panel.percent ? percent(value) : written(value, high < 1 ? 3 : cell > 46 ? 2 : 1));
        text.style.fill = ink;
        svg.append(text);
      }
    });
  });
  if (mark !== null) svg.append(element("rect", { x: left - 1, y: top + tall * mark - 1, width: cell * count + 1, height: tall + 1, class: "mark" }));
  if (axes[1]) {
    const middle = left + (cell * count) / 2, fits = middle > wide(axes[1]) / 2;
    svg.append(element("text", { x: fits ? middle : 0, y: height - 4, "text-anchor": fits ? "middle" : "start", class: "quiet" }, axes[1]));
  }
  return svg;
}

// --- bars -------------------------------------------------------------------------------------------------------------
function bars(panel, width) {
  const { values, labels, mark } = panel, tall = innerWidth <= 860 ? 27 : Math.max(26, Math.min(44, 230 / labels.length));
  const left = Math.min(1.1 * Math.max(...labels.map(wide)) + 10, width * 0.36), right = 64;
  const low = Math.min(0, ...values), high = Math.max(0, ...values, panel.high ?? -Infinity);
  const room = width - left - right, x = (v) => left + (low < 0 ? right : 0) + ((v - low) / (high - low || 1)) * (room - (low < 0 ? right : 0));
  const height = tall * labels.length + 4, svg = canvas(width, height, panel.title);
  values.forEach((value, i) => {
    const y = tall * i + 2, [from, to] = [Math.min(x(0), x(value)), Math.max(x(0), x(value))];
    svg.append(label({ x: left - 6, y: y + tall / 2 + 4, "text-anchor": "end", "font-weight": i === mark ? 700 : 400 }, clip(labels[i], left - 6)));
    const [fill] = shade(value < 0 ? -0.6 : 0.6, 1);
    svg.append(element("rect", { x: from, y: y + 3, width: Math.max(to - from, 1), height: tall - 7, fill }));
    if (i === mark) svg.append(element("rect", { x: from, y: y + 3, width: Math.max(to - from, 1), height: tall - 7, class: "mark" }));
    const words = panel.percent ? percent(value) : written(value, high - low < 1 ? 3 : 2);
    svg.append(element("text", { x: value < 0 ? from - 5 : to + 5, y: y + tall / 2 + 4, "text-anchor": value < 0 ? "end" : "start", "font-weight": i === mark ? 700 : 400 }, words));
  });
  svg.append(element("line", { x1: x(0), x2: x(0), y1: 0, y2: height, class: "axis" }));
  return svg;
}

// --- tables -----------------------------------------------------------------------------------------------------------
export function tableOf(columns, rows, mark = null) {
  const made = (name, words, more = {}) => {
    const node = Object.assign(document.createElement(name), more);
    node.append(...symbols(words ?? ""));
    return node;
  };
  const table = made("table"), head = made("thead"), body = made("tbody"), first = made("tr");
  first.append(...columns.map((c) => (c ? made("th", c, { scope: "col" }) : made("td"))));
  head.append(first);
  rows.forEach((cells, i) => {
    const tr = made("tr");
    if (i === mark) tr.className = "mark";
    tr.append(...cells.map((c, j) => (j ? made("td", c) : made("th", c, { scope: "row" }))));
    body.append(tr);
  });
  table.append(head, body);
  return table;
}

function table(panel) {
  const holder = document.createElement("div");
  const scroll = document.createElement("div");
  Object.assign(scroll, { className: "scroll", tabIndex: 0, role: "region", ariaLabel: panel.title });
  scroll.append(tableOf(panel.columns, panel.rows, panel.mark));
  holder.append(scroll);
  if (panel.foot) holder.append(Object.assign(document.createElement("p"), { className: "foot", textContent: panel.foot }));
  return holder;
}

// --- lines ------------------------------------------------------------------------------------------------------------
const DASHES = ["", "8 4", "2 4", "10 4 2 4"];
const LINES = ["--W_Q", "--W_K", "--W_V", "--ink"];

/** About `count` round numbers between two ends. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((m) => m * size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

/** Powers of ten, and twice and five times them where there are few. */
function logTicks(low, high) {
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, i) => Math.floor(low) + i);
  const steps = high - low > 2 ? [1] : [1, 2, 5];
  return powers.flatMap((p) => steps.map((m) => p + Math.log10(m))).filter((v) => v >= low - 1e-9 && v <= high + 1e-9);
}

function lines(panel, width) {
  const { series, log } = panel, height = innerWidth <= 860 ? 220 : 330, left = 52, top = 8, right = 14;
  const names = series.filter((s) => s.name), rows = names.length ? Math.ceil(names.length / (width < 500 ? 2 : 4)) : 0;
  const bottom = 44 + 22 * rows, svg = canvas(width, height + 22 * rows, panel.title);
  const all = series.flatMap((s) => s.points), at = (y) => (log ? Math.log10(y) : y);
  const xs = all.map((p) => p[0]), ys = all.map((p) => at(p[1])).concat([panel.low, panel.high].filter((v) => v !== null).map(at));
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  if (panel.wide) x1 = Math.max(x1, panel.wide);
  if (!all.length) [x0, x1, y0, y1] = [0, panel.wide ?? 1, 0, 1];
  if (y1 - y0 < 1e-9) [y0, y1] = [y0 - 0.5, y1 + 0.5];
  if (x1 === x0) x1 = x0 + 1;
  const low = height + 22 * rows - bottom;
  const X = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right), Y = (v) => low - ((v - y0) / (y1 - y0)) * (low - top);
  for (const v of log ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
    svg.append(element("line", { x1: left, x2: width - right, y1: Y(v), y2: Y(v), class: "grid" }));
    svg.append(element("text", { x: left - 6, y: Y(v) + 5, "text-anchor": "end", class: "quiet" }, log ? short(10 ** v) : short(v)));
  }
  for (const v of ticks(x0, x1, width < 500 ? 5 : 8)) svg.append(element("text", { x: X(v), y: low + 17, "text-anchor": "middle", class: "quiet" }, short(v)));
  svg.append(element("line", { x1: left, x2: width - right, y1: low, y2: low, class: "axis" }));
  svg.append(element("text", { x: (left + width - right) / 2, y: low + 36, "text-anchor": "middle", class: "quiet" }, panel.x));
  svg.append(element("text", { x: 2, y: top + 4, class: "quiet", transform: `translate(${-top - 6} ${low}) rotate(-90)` }, panel.y));
  const order = series.map((s, i) => [s, i]).sort((a, b) => Number(a[0].chosen ?? 0) - Number(b[0].chosen ?? 0));
  for (const [{ points, chosen, dots }, i] of order) {
    const d = points.map(([x, y], k) => `${k ? "L" : "M"}${X(x).toFixed(1)} ${Y(at(y)).toFixed(1)}`).join("");
    const path = element("path", { d, class: "line", "stroke-dasharray": DASHES[i % 4] });
    path.style.stroke = css(LINES[i % 4]);
    if (chosen) path.style.strokeWidth = 5;
    svg.append(path);
    if (dots) for (const [x, y] of points) svg.append(element("circle", { cx: X(x), cy: Y(at(y)), r: 4, fill: css(LINES[i % 4]) }));
  }
  names.forEach((s, k) => {
    const i = series.indexOf(s), each = (width - left) / (width < 500 ? 2 : 4), per = width < 500 ? 2 : 4;
    const x = left - 30 + each * (k % per), y = low + 58 + 22 * Math.floor(k / per);
    const mark = element("path", { d: `M${x} ${y - 5}h26`, class: "line", "stroke-dasharray": DASHES[i % 4] });
    mark.style.stroke = css(LINES[i % 4]);
    if (s.chosen) mark.style.strokeWidth = 5;
    svg.append(mark, element("text", { x: x + 31, y, "font-weight": s.chosen ? 700 : 400 }, clip(s.name, each - 34)));
  });
  return svg;
}

// --- trees ------------------------------------------------------------------------------------------------------------
/** Letters from left to right; a node stands beside the middle of its children. */
function tree(panel, width) {
  const { nodes, legend } = panel, children = nodes.map(() => []), ys = [];
  nodes.forEach((n, i) => { if (n.parent !== null) children[n.parent].push(i); });
  let leaves = 0;
  const place = (i) => {
    const kids = children[i].map(place);
    ys[i] = kids.length ? kids.reduce((a, b) => a + b, 0) / kids.length : leaves++;
    return ys[i];
  };
  place(0);
  const deepest = Math.max(...nodes.map((n) => n.depth), 1), small = innerWidth <= 860;
  const row = Math.max(small ? 17 : 22, Math.min(50, (small ? 330 : 470) / leaves)), step = Math.min((width - 70) / deepest, 150);
  const key = 30, height = row * leaves + key + 8, svg = canvas(width, height, panel.title);
  const X = (n) => 18 + step * n.depth, Y = (i) => key + row * (ys[i] + 0.5), below = row >= 30, r = below ? Math.min(13, (row - 14) / 2) : Math.min(13, row / 2 - 1);
  const style = { best: ["--ink", 4, ""], kept: ["--accent", 2, ""], dropped: ["--muted", 1.5, "3 4"], ended: ["--accent", 2, ""] };
  const kind = (n) => (n.best ? "best" : n.kind);
  nodes.forEach((n, i) => {
    if (n.parent === null) return;
    const [colour, wide, dash] = style[kind(n)], p = nodes[n.parent], middle = (X(p) + X(n)) / 2;
    const path = element("path", { d: `M${X(p) + r} ${Y(n.parent)}C${middle} ${Y(n.parent)} ${middle} ${Y(i)} ${X(n) - r} ${Y(i)}`, fill: "none", "stroke-width": wide, "stroke-dasharray": dash });
    path.style.stroke = css(colour);
    svg.append(path);
  });
  nodes.forEach((n, i) => {
    const [colour, wide, dash] = style[kind(n)], at = { x: X(n), y: Y(i) };
    const body = { fill: css("--paper"), "stroke-width": wide, "stroke-dasharray": dash };
    const shape = n.kind === "ended" ? element("rect", { x: at.x - r, y: at.y - r, width: 2 * r, height: 2 * r, ...body }) : element("circle", { cx: at.x, cy: at.y, r, ...body });
    shape.style.stroke = css(colour);
    shape.append(element("title", {}, `${n.label} ${written(n.log_prob, 3)}`));
    svg.append(shape, sized({ x: at.x, y: at.y + r * 0.4, "text-anchor": "middle" }, n.label, Math.max(r * 1.15, 9)));
    const low = below ? { x: at.x, y: at.y + r + 13, "text-anchor": "middle" } : { x: at.x + r + 3, y: at.y - 3 };
    if (n.parent !== null && (below || step > 74)) svg.append(sized({ ...low, class: kind(n) === "dropped" ? "quiet" : "", "font-weight": n.best ? 700 : 400 }, written(n.log_prob), small || row < 24 ? 11.5 : 13.5));
  });
  let x = 4;
  ["best", "kept", "dropped", "ended"].forEach((name, k) => {
    const [colour, thick, dash] = style[name], body = { fill: css("--paper"), "stroke-width": thick, "stroke-dasharray": dash };
    const shape = name === "ended" ? element("rect", { x, y: 6, width: 14, height: 14, ...body }) : element("circle", { cx: x + 7, cy: 13, r: 7, ...body });
    shape.style.stroke = css(colour);
    svg.append(shape, element("text", { x: x + 19, y: 18 }, legend[k]));
    x += 34 + wide(legend[k]);
  });
  return svg;
}

function short(v) {
  if (v === 0) return "0";
  const size = Math.abs(v);
  return (size >= 1e5 || size < 1e-3 ? v.toExponential(0).replace("e+", "e") : String(Number(v.toPrecision(3)))).replaceAll("-", "−");
}

const KINDS = { matrix, bars, table, lines, tree };

/** The numbers of a picture as rows of a table; null where the picture is one already. */
function numbersOf(panel) {
  const digits = (v) => (v === null ? "–" : written(v, 3));
  if (panel.kind === "matrix") return [["", ...panel.values[0].map((_, j) => panel.columns[j] ?? String(j + 1))], panel.values.map((row, i) => [panel.rows[i], ...row.map(digits)])];
  if (panel.kind === "bars") return [["", ""], panel.values.map((v, i) => [panel.labels[i], digits(v)])];
  if (panel.kind === "lines") return [["", panel.x, panel.y], panel.series.flatMap((s) => s.points.map(([x, y]) => [s.name, short(x), short(y)]))];
  if (panel.kind === "tree") {
    const path = (n) => (n.parent === null ? "" : path(panel.nodes[n.parent]) + n.label);
    return [["", ""], panel.nodes.slice(1).map((n) => [path(n), written(n.log_prob, 3)])];
  }
  return null;
}

/** Put the pictures of a step in place, their numbers in tables below; what was open stays open. */
export function draw(place, panels) {
  const open = place.querySelector(":scope > details")?.open ?? false;
  const figures = panels.map((panel) => {
    const figure = document.createElement("figure");
    if (panel.size) figure.className = panel.size;
    const caption = document.createElement("figcaption");
    caption.append(...symbols(panel.title));
    figure.append(caption);
    return figure;
  });
  const tables = panels.map((panel) => [panel.title, numbersOf(panel)]).filter(([, rows]) => rows);
  place.replaceChildren(...figures, ...(tables.length ? [details(place.dataset.table, tables, open)] : [])); // first, so that every figure has its width
  panels.forEach((panel, i) => figures[i].append(KINDS[panel.kind](panel, figures[i].clientWidth)));
}

function details(words, tables, open) {
  const made = document.createElement("details"), scroll = document.createElement("div");
  made.append(Object.assign(document.createElement("summary"), { textContent: words }));
  Object.assign(scroll, { className: "scroll", tabIndex: 0, role: "region", ariaLabel: words });
  made.append(scroll);
  const fill = () => {
    if (!made.open || scroll.firstChild) return;
    for (const [title, [columns, rows]] of tables) {
      const table = tableOf(columns, rows);
      table.prepend(Object.assign(document.createElement("caption"), { textContent: title }));
      scroll.append(table);
    }
  };
  made.addEventListener("toggle", fill);
  made.open = open;
  fill();
  return made;
}
