// The page of a model: a sentence makes attention maps, panels fill as the background work ends.
import { Live } from "./live.js";
import { drawMatrix, matrixAt } from "./heat.js";
import { address, save, written } from "./picture.js";
import { boot } from "./store.js";
import { symbols } from "./symbols.js";
import { bindTip } from "./tip.js";
import { copy, firstTheme, otherTheme, setTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);
const AGAIN = 700; // milliseconds between two looks at the work
const theme = () => document.documentElement.dataset.theme;
let have = [], maps = null, wanted = null, unread = true, waiting = null, typing = null;

const live = new Live({
  onAnswer: (got) => {
    got.panels.forEach(showPanel);
    if (got.maps) { unread = false; showMaps(got.maps); }
    clearTimeout(waiting);
    if (unread || got.panels.some((p) => ["waiting", "running"].includes(p.status))) waiting = setTimeout(ask, AGAIN);
    document.documentElement.dataset.seq = got.seq;
    document.documentElement.dataset.ready = theme();
    document.documentElement.dataset.done = got.panels.filter((p) => ["done", "failed"].includes(p.status)).length;
  },
  onWait: () => {}, onAsk: () => {},
  onError: (got) => fail(got.text),
  onLate: () => {},
  onLost: (lost) => { $("lost").hidden = !lost; },
  onOpen: () => { unread = true; ask(); },
});

function ask() { live.send({ lang: boot.lang, theme: theme(), have, ...(unread ? { text: $("sentence").value } : {}) }); }
function say(words) { $("said").textContent = words; }

function fail(words) {
  $("maps-error").hidden = !words;
  $("maps-error").textContent = words;
}

// --- panels -----------------------------------------------------------------------------------------------------------
function showPanel({ name, status, done, total, left, text, shown }) {
  const card = $(`panel-${name}`), bar = card.querySelector("progress");
  card.querySelector(".tag").textContent = boot.words[status];
  card.dataset.status = status;
  bar.hidden = !["waiting", "running"].includes(status);
  [bar.max, bar.value] = [Math.max(total, 1), done];
  card.querySelector(".status .small").textContent = status === "running" ? `${done} / ${total} ${text}${left > 1 && Number.isFinite(left) ? ` · ${Math.round(left)} s` : ""}` : status === "failed" ? text : "";
  if (!shown) return;
  have.push(name);
  const repeated = shown.figures.some((f) => f.headline === shown.says); // the figure says it already
  card.querySelector(".says").replaceChildren(...symbols(repeated ? "" : shown.says));
  say(shown.says);
  card.querySelector(".shown").replaceChildren(...shown.figures.map(figure));
}

function figure({ name, title, headline, reading, caption, svg }) {
  const made = $("figure").content.cloneNode(true).firstElementChild;
  made.dataset.name = name;
  made.querySelector("h3").textContent = title;
  for (const [part, words] of Object.entries({ headline, reading, caption })) made.querySelector(`.${part}`).replaceChildren(...symbols(words));
  Object.assign(made.querySelector("img"), { src: address(svg), alt: `${title}. ${headline}` });
  bindSave(made, name, () => svg);
  return made;
}

function bindSave(made, name, text) {
  made.querySelectorAll(".save").forEach((button) => {
    button.setAttribute("aria-label", `${button.dataset.kind.toUpperCase()}: ${name}`);
    button.addEventListener("click", () => save(text(), name, button.dataset.kind));
  });
}

// --- maps -------------------------------------------------------------------------------------------------------------
function showMaps(got) {
  fail(got.error ?? "");
  if (got.error) return;
  maps = got;
  const names = Object.keys(got.layers), chosen = names.includes(wanted) ? wanted : names[0];
  $("layer").replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  drawHeads();
}

function drawHeads() {
  if (!maps) return;
  const name = $("layer").value, { heads, cells } = maps.layers[name], { labels, side } = maps, size = 4 * side * side;
  const made = Array.from({ length: heads }, () => $("head").content.cloneNode(true).firstElementChild);
  $("heads").replaceChildren(...made);
  made.forEach((place, head) => {
    const svg = place.querySelector("svg"), told = `${name}[${head}]`, matrix = { cells: cells.slice(head * size, (head + 1) * size), side, labels, top: 1 };
    place.querySelector("figcaption").textContent = told;
    svg.setAttribute("aria-label", told);
    drawMatrix(svg, matrix, theme());
    bindTip(svg, (event) => matrixAt(svg, matrix, event));
    bindSave(place, `attention-${name}-${head}`, () => written(svg));
  });
}

function remember() {
  const words = new URLSearchParams({ text: $("sentence").value, layer: $("layer").value });
  history.replaceState(null, "", `${location.pathname}${location.search}#${words}`);
  $("language").href = `?lang=${boot.lang === "en" ? "ko" : "en"}#${words}`;
}

const words = new URLSearchParams(location.hash.slice(1));
if (words.get("text")) $("sentence").value = words.get("text");
wanted = words.get("layer");
$("sentence").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { unread = true; remember(); ask(); }, 250); });
$("layer").addEventListener("change", () => { wanted = $("layer").value; remember(); drawHeads(); });
$("share").addEventListener("click", () => { remember(); copy(location.href, $("share"), say); });
$("theme").addEventListener("click", () => { setTheme(otherTheme()); have = []; drawHeads(); ask(); });
firstTheme();
new ResizeObserver(drawHeads).observe(document.querySelector("main"));
live.open();
