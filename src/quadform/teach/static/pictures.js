// Pictures of a step: matrices, bars, tables, lines. Everything is drawn to the width there is, text stays its size.
import { element } from "./svg.js";

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

function canvas(width, height, name) {
  return element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": name });
}

// --- matrices ---------------------------------------------------------------------------------------------------------
function matrix(panel, width) {
  const { values, rows, columns, high, numbers, mark, axes } = panel;
  const count = values[0].length, left = Math.min(Math.max(...rows.map(wide), 0) + 8, width * 0.34);
  const cell = Math.min((width - left) / count, numbers ? 84 : panel.square ? 40 : 60);
  const tall = panel.square ? Math.min(cell, panel.tall ?? 40) : Math.max(18, Math.min(panel.tall ?? 30, 30));
  const turned = columns.length && Math.max(...columns.map(wide)) > cell - 2;
  const top = columns.length ? (turned ? Math.min(Math.max(...columns.map(wide)), 70) + 6 : 20) : 4;
  const height = top + tall * rows.length + (axes[1] ? 20 : 4);
  const svg = canvas(width, height, panel.title);
  columns.forEach((name, j) => {
    const x = left + cell * (j + 0.5);
    const place = turned ? { transform: `translate(${x + 5} ${top - 4}) rotate(-90)` } : { x, y: top - 5, "text-anchor": "middle" };
    if (cell > 9) svg.append(element("text", place, turned ? clip(name, 70) : name));
  });
  values.forEach((row, i) => {
    svg.append(element("text", { x: left - 6, y: top + tall * (i + 0.5) + 5, "text-anchor": "end" }, clip(rows[i], left - 8)));
    row.forEach((value, j) => {
      const [fill, ink] = shade(value, high), x = left + cell * j, y = top + tall * i;
      const box = element("rect", { x, y, width: Math.max(cell - 1, 1), height: tall - 1, fill });
      box.append(element("title", {}, `${rows[i]}${columns[j] ? ` · ${columns[j]}` : ""}: ${value === null ? "–" : written(value, 3)}`));
      svg.append(box);
      if (value === null) svg.append(element("path", { d: `M${x} ${y + tall - 1}L${x + cell - 1} ${y}`, class: "axis" }));
      else if (numbers && cell > 34) {
        const text = element("text", { x: x + cell / 2, y: y + tall / 2 + 5, "text-anchor": "middle" }, panel.percent ? percent(value) : written(value, cell > 46 ? 2 : 1));
        text.style.fill = ink;
        svg.append(text);
      }
    });
  });
  if (mark !== null) svg.append(element("rect", { x: left - 1, y: top + tall * mark - 1, width: cell * count + 1, height: tall + 1, class: "mark" }));
  if (axes[1]) svg.append(element("text", { x: left + (cell * count) / 2, y: height - 4, "text-anchor": "middle", class: "quiet" }, axes[1]));
  return svg;
}

// --- bars -------------------------------------------------------------------------------------------------------------
function bars(panel, width) {
  const { values, labels, mark } = panel, tall = panel.tall ?? 28;
  const left = Math.min(Math.max(...labels.map(wide)) + 8, width * 0.34), right = 64;
  const low = Math.min(0, ...values), high = Math.max(0, ...values, panel.high ?? -Infinity);
  const room = width - left - right, x = (v) => left + (low < 0 ? right : 0) + ((v - low) / (high - low || 1)) * (room - (low < 0 ? right : 0));
  const height = tall * labels.length + 4, svg = canvas(width, height, panel.title);
  values.forEach((value, i) => {
    const y = tall * i + 2, [from, to] = [Math.min(x(0), x(value)), Math.max(x(0), x(value))];
    svg.append(element("text", { x: left - 6, y: y + tall / 2 + 4, "text-anchor": "end", "font-weight": i === mark ? 700 : 400 }, clip(labels[i], left - 8)));
    const [fill] = shade(value < 0 ? -0.6 : 0.6, 1);
    svg.append(element("rect", { x: from, y: y + 3, width: Math.max(to - from, 1), height: tall - 7, fill }));
    if (i === mark) svg.append(element("rect", { x: from, y: y + 3, width: Math.max(to - from, 1), height: tall - 7, class: "mark" }));
    const words = panel.percent ? percent(value) : written(value);
    svg.append(element("text", { x: value < 0 ? from - 5 : to + 5, y: y + tall / 2 + 4, "text-anchor": value < 0 ? "end" : "start", "font-weight": i === mark ? 700 : 400 }, words));
  });
  svg.append(element("line", { x1: x(0), x2: x(0), y1: 0, y2: height, class: "axis" }));
  return svg;
}

// --- tables -----------------------------------------------------------------------------------------------------------
export function tableOf(columns, rows, mark = null) {
  const made = (name, words, more = {}) => Object.assign(document.createElement(name), { textContent: words ?? "" }, more);
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

const KINDS = { matrix, bars, table };

/** The numbers of a picture as rows of a table; null where the picture is one already. */
function numbersOf(panel) {
  const digits = (v) => (v === null ? "–" : written(v, 3));
  if (panel.kind === "matrix") return [["", ...panel.values[0].map((_, j) => panel.columns[j] ?? String(j + 1))], panel.values.map((row, i) => [panel.rows[i], ...row.map(digits)])];
  if (panel.kind === "bars") return [["", ""], panel.values.map((v, i) => [panel.labels[i], digits(v)])];
  return null;
}

/** Put the pictures of a step in place, their numbers in tables below; what was open stays open. */
export function draw(place, panels) {
  const open = place.querySelector(":scope > details")?.open ?? false;
  const figures = panels.map((panel) => {
    const figure = document.createElement("figure");
    if (panel.size) figure.className = panel.size;
    figure.append(Object.assign(document.createElement("figcaption"), { textContent: panel.title }));
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
