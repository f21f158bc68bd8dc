// The page: controls make states, states are sent, answers are drawn. No number is computed here.
import { boot, memory, store } from "./store.js";
import { Live } from "./live.js";
import { bindControls, showControls, showErrors } from "./controls.js";
import { drawHeat, heatAt, drawMatrix, drawRamp, matrixAt } from "./heat.js";
import { save, written } from "./picture.js";
import { bindTip } from "./tip.js";
import { copy, firstTheme, otherTheme, setTheme } from "./theme.js";
import { drawSpectrum } from "./spectrum.js";
import { drawDepth } from "./depth.js";
import { fillBlocks, fillNumbers, fillSelected, fillSlopes, fillTable, text } from "./tables.js";
import { sentence, setSymbols } from "./symbols.js";
import { bindTour, tellTour } from "./tour.js";

const $ = (id) => document.getElementById(id);
let answer = null; // the last good one
let range = null; // of the colours: held while a control moves
let astray = false; // the address held a wrong value
let spoken = 0;
let speech = null;

// --- asking ---------------------------------------------------------------------------------------------------------
const live = new Live({
  onAnswer: (got) => {
    answer = got;
    if (!astray) showErrors(null);
    astray = false;
    guard(null);
    showControls(store.state, got);
    draw();
    tellTour(got);
    say(got.told ?? got.headline);
    document.documentElement.dataset.seq = got.seq;
  },
  onWait: (got) => guard(got.text, false),
  onAsk: (got) => {
    guard(got.text, true);
    if (!answer) sentence("headline", got.text); // nothing is being computed
    say(got.text);
  },
  onError: (got) => {
    showErrors(got.control, got.text);
    say(got.text);
    if (!answer && !store.isStart()) { // the page opens with the first state, and the error stays
      astray = true;
      store.reset();
    }
  },
  onLate: (late) => document.body.classList.toggle("late", late),
  onLost: (lost) => { $("lost").hidden = !lost; },
  onOpen: () => ask({ final: true }),
});

function ask({ final = true, confirmed = false } = {}) {
  const pinned = memory.pinned !== null;
  const { part, detail, step } = memory;
  live.send({ state: store.state, against: pinned ? memory.pinned : store.before, pinned, lang: boot.lang, final, confirmed, part, detail, step });
}

store.onChange = ({ final }) => {
  showControls(store.state, answer);
  $("undo").disabled = memory.history.length === 0;
  $("language").href = `?lang=${boot.lang === "en" ? "ko" : "en"}${location.hash}`;
  ask({ final });
};

// --- drawing --------------------------------------------------------------------------------------------------------
function block() {
  const there = Object.keys(answer.blocks.cells);
  return there.includes(memory.block) ? memory.block : there[0];
}

function choose(name) {
  memory.block = name;
  store.remember();
  draw();
}

/** The range of colours of the answer; while a control moves, the one the move began with. */
function colours() {
  const { part: of, heat: { detail } } = answer, key = `${of} ${detail}`;
  if (!store.moving || range?.key !== key) range = { key, ends: answer.heat.range, words: answer.heat.ends };
  return range;
}

function draw() {
  if (!answer) return;
  const [chosen, theme, { ends, words }] = [block(), document.documentElement.dataset.theme, colours()];
  const detail = answer.heat.detail;
  drawHeat($("heat"), answer, chosen, ends, theme);
  drawRamp($("heat-ramp"), detail, theme);
  sentence("heat-says", answer.heat.says);
  text("heat-low", detail === "entries" ? `−${words[1]}` : words[0]);
  text("heat-middle", detail === "entries" ? $("heat-middle").dataset.signs : $("heat-middle").dataset.sizes);
  text("heat-high", words[1]);
  fillBlocks($("blocks"), answer, chosen, choose);
  drawSpectrum($("spectrum"), answer.spectrum);
  sentence("spectrum-says", answer.spectrum.says);
  sentence("spectrum-help", answer.spectrum.help);
  fillTable("spectrum", answer.spectrum.table);
  drawMatrix($("attention-matrix"), answer.attention, theme);
  sentence("attention-says", answer.attention.says);
  sentence("moments-says", answer.attention.moments);
  fillTable("attention", answer.attention.table);
  $("depth-figure").hidden = !answer.depth;
  if (answer.depth) {
    drawDepth($("depth-chart"), answer.depth);
    sentence("depth-says", answer.depth.says);
    fillTable("depth", answer.depth.table);
  }
  sentence("headline", answer.headline);
  sentence("tag", answer.tag.line);
  fillNumbers($("numbers"), answer.numbers);
  fillSlopes($("slopes"), answer.slopes, chosen);
  fillSelected(answer.selected[chosen]);
  text("python", answer.python);
  document.documentElement.dataset.ready = theme;
}

function guard(words, asks) {
  $("guard").hidden = words === null;
  $("guard-go").hidden = !asks;
  if (words !== null) text("guard-text", words);
}

/** One polite region, at most once a second, the newest sentence. */
function say(words) {
  clearTimeout(speech);
  const wait = Math.max(0, 1000 - (performance.now() - spoken));
  speech = setTimeout(() => { spoken = performance.now(); sentence("said", words); }, wait);
}

// --- tools ----------------------------------------------------------------------------------------------------------
bindControls(store);
setSymbols();
for (const name of ["part", "detail"]) {
  document.querySelectorAll(`input[name=${name}]`).forEach((input) => input.addEventListener("change", () => {
    memory[name] = input.value; store.remember(); ask();
  }));
}
$("heat").addEventListener("click", (event) => {
  const found = answer && heatAt($("heat"), answer, event);
  if (found) choose(found.block);
});
bindTip($("heat"), (event) => answer && heatAt($("heat"), answer, event));
bindTip($("attention-matrix"), (event) => answer && matrixAt($("attention-matrix"), answer.attention, event));
store.onRest = draw;
const working = $("headline").textContent;
$("guard-go").addEventListener("click", () => {
  if (!answer) sentence("headline", working);
  ask({ confirmed: true });
});
$("preset").addEventListener("change", (event) => {
  if (event.target.value) store.go(boot.presets[event.target.value]);
  event.target.value = "";
});
document.querySelectorAll(".save").forEach((button) => button.addEventListener("click", () => {
  save(written($(button.dataset.picture)), button.dataset.picture, button.dataset.kind);
}));
$("undo").addEventListener("click", () => store.undo());
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("textarea");
  if ((event.ctrlKey || event.metaKey) && event.key === "z" && !typing) { event.preventDefault(); store.undo(); }
});
$("pin").addEventListener("click", () => { memory.pinned = memory.pinned ? null : store.state; store.remember(); showPin(); ask(); });
$("share").addEventListener("click", () => copy(location.href, $("share"), say));
$("copy").addEventListener("click", () => copy($("python").textContent, $("copy"), say));
$("theme").addEventListener("click", () => { setTheme(otherTheme()); draw(); });
document.querySelectorAll("details.numbers").forEach((d) => d.addEventListener("toggle", draw));
new ResizeObserver(() => draw()).observe($("pictures"));

function showPin() {
  const on = memory.pinned !== null;
  $("pin").setAttribute("aria-pressed", String(on));
  text("pin", on ? $("pin").dataset.on : $("pin").dataset.off);
}

firstTheme();
store.load();
bindTour(store, memory);
for (const name of ["part", "detail"]) document.querySelector(`input[name=${name}][value=${memory[name]}]`).checked = true;
showPin();
showControls(store.state, null);
$("undo").disabled = memory.history.length === 0;
$("language").href = `?lang=${boot.lang === "en" ? "ko" : "en"}${location.hash}`;
live.open();
