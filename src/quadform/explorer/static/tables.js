// Words and tables: what the server has written, put where it belongs.
import { symbols } from "./symbols.js";

const $ = (id) => document.getElementById(id);

export function text(id, words) {
  const place = $(id);
  if (place.textContent !== words) place.textContent = words;
}

function made(name, words, attributes = {}) {
  const node = document.createElement(name);
  if (words !== undefined) node.textContent = words;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function row(cells, kind = "td") {
  const tr = made("tr");
  tr.append(...cells.map((cell, i) => {
    const head = kind === "th" ? { scope: "col" } : i === 0 ? { scope: "row" } : {};
    const one = made(i === 0 ? "th" : kind, undefined, head);
    one.append(...symbols(String(cell)));
    return one;
  }));
  return tr;
}

/** The table of a chart; filled only while it is open. */
export function fillTable(name, { columns, rows }) {
  const details = $(`table-${name}`);
  if (!details.open) return;
  const table = made("table"), head = made("thead"), body = made("tbody");
  head.append(row(columns, "th"));
  body.append(...rows.map((cells) => row(cells)));
  table.append(head, body);
  details.querySelector(".scroll").replaceChildren(table);
}

export function fillNumbers(list, numbers) {
  list.replaceChildren(...numbers.flatMap(({ name, label, text: words, tag, value, ratio }) => {
    const dd = made("dd", words, { "data-name": name, "data-value": value, title: tag });
    if (ratio) dd.append(made("span", ratio, { class: "ratio" }));
    const pair = made("div");
    const dt = made("dt");
    dt.append(...symbols(label));
    pair.append(dt, dd);
    return [pair];
  }));
}

/** Rows and columns of weights; each cell a button that selects its block. The focus stays where it was. */
export function fillBlocks(table, answer, chosen, select) {
  const { names, cells } = answer.blocks;
  const labels = Object.fromEntries(answer.frames.map((f) => [f.name, f.label]));
  const held = document.activeElement?.dataset?.cell;
  const head = made("thead"), body = made("tbody");
  const first = made("tr");
  first.append(made("td", ""), ...names.map((n) => made("th", labels[n], { scope: "col" })));
  head.append(first);
  names.forEach((a, i) => {
    const tr = made("tr");
    tr.append(made("th", labels[a], { scope: "row" }));
    names.forEach((b, j) => {
      const name = `${a},${b}` in cells ? `${a},${b}` : `${b},${a}`;
      const { norm, share, bar, ratio, value } = cells[name];
      const td = made("td");
      const button = made("button", undefined, { type: "button", "aria-pressed": String(name === chosen), "data-block": name, "data-cell": `${i},${j}`, "data-value": value });
      const line = made("span", "", { class: "bar-line", "aria-hidden": "true" });
      line.style.width = `${100 * bar}%`;
      button.append(made("span", `${labels[a]}·${labels[b]} `, { class: "unseen" }), made("strong", norm), made("span", share));
      if (ratio) button.append(made("span", ratio));
      if (bar > 0) button.append(line);
      button.addEventListener("click", () => select(name));
      td.append(button);
      tr.append(td);
    });
    body.append(tr);
  });
  table.replaceChildren(head, body);
  if (held) table.querySelector(`[data-cell="${held}"]`)?.focus({ preventScroll: true });
}

export function fillSlopes(table, { columns, rows }, chosen) {
  const head = made("thead"), body = made("tbody");
  head.append(row(columns, "th"));
  body.append(...rows.map(({ block, cells }) => {
    const tr = row(cells);
    tr.dataset.block = block;
    if (block === chosen) tr.setAttribute("aria-current", "true");
    return tr;
  }));
  table.replaceChildren(head, body);
}

export function fillSelected({ name, lines, numbers, facts }) {
  text("selected-name", name);
  $("selected-facts").replaceChildren(...symbols(facts.join(" · ")));
  $("formula").replaceChildren(...lines.map((line) => {
    const p = made("p");
    p.append(...typeset(line));
    return p;
  }));
  $("formula-numbers").replaceChildren(...typeset(numbers));
}

/** Pieces of a formula: symbols slanted, indices below, exponents above. */
function typeset(pieces) {
  const names = { symbol: "i", sub: "sub", sup: "sup" };
  return pieces.map(([kind, words]) => (kind in names ? made(names[kind], words) : document.createTextNode(words)));
}
