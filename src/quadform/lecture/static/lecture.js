// The lecture: one step at a time, its controls, its pictures; the state is in the address.
import { Live } from "./live.js";
import { boot, draw } from "./pictures.js";
import { sentence } from "./symbols.js";
import { showControls, showErrors } from "./controls.js";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const state = { step: boot.steps[0].name, values: {} };
let answer = null, spoken = -Infinity, speech = null, poll = null, pending = null, chosen = null;

function text(id, words) { if ($(id).textContent !== words) $(id).textContent = words; }

// --- the state and the address ----------------------------------------------------------------------------------------
function fromAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const named = boot.steps.some((s) => s.name === words.get("step"));
  state.step = named ? words.get("step") : boot.steps[0].name;
  words.delete("step");
  state.values = Object.fromEntries([...words].map(([name, value]) => [name, value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value]));
}

function remember() {
  const words = new URLSearchParams({ step: state.step, ...state.values });
  history.replaceState(null, "", `${location.pathname}${location.search}#${words}`);
  $("language").hash = `#${new URLSearchParams({ step: state.step })}`; // another language has its own sentence
}

export function set(name, value) { state.values[name] = value; remember(); ask(); }

export function act(name) { pending = { name, id: crypto.randomUUID() }; ask(); }

function go(index, focus = true) {
  const step = boot.steps[index];
  if (!step) return;
  state.step = step.name;
  state.values = {};
  history.pushState(null, "", `${location.pathname}${location.search}#step=${step.name}`);
  enter(focus);
}

const at = () => boot.steps.findIndex((s) => s.name === state.step);

/** Show the words of the step at once; its pictures come with the answer. */
function enter(focus) {
  const index = at(), { title, text: words } = boot.steps[index];
  sentence("title", title);
  sentence("text", words);
  text("count", $("count").dataset.text.replace("%n", index + 1));
  document.title = `${index + 1}. ${title}`;
  for (const link of document.querySelectorAll(".steps a")) {
    if (link.dataset.step === state.step) link.setAttribute("aria-current", "step"); else link.removeAttribute("aria-current");
  }
  $("back").disabled = index === 0;
  $("next").disabled = index === boot.steps.length - 1;
  $("answer").open = false;
  remember();
  if (focus) { scrollTo(0, 0); $("title").focus({ preventScroll: true }); }
  ask();
}

// --- the server -------------------------------------------------------------------------------------------------------
const live = new Live({
  onOpen: ask,
  onLost: (lost) => { $("lost").hidden = !lost; },
  onLate: (late) => document.body.classList.toggle("late", late),
  onError: ({ control, text: words, step }) => { showErrors(control, words); say(words); root.dataset.ready = step ?? state.step; },
  onAnswer: (got) => {
    if (got.step !== state.step) return;
    if (got.acted && pending?.id === got.acted) pending = null;
    answer = got;
    showErrors(null);
    show();
    clearTimeout(poll);
    if (got.running) poll = setTimeout(ask, 400);
  },
});

function ask() {
  clearTimeout(poll);
  live.send({ lang: boot.lang, step: state.step, values: state.values, ...(pending ? { action: pending } : {}) });
}

function show() {
  if (!answer || answer.step !== state.step) return;
  showControls($("controls"), answer, { set, act });
  draw($("panels"), answer.panels);
  sentence("says", answer.says);
  sentence("exercise", answer.exercise);
  sentence("answer-text", answer.answer);
  text("python", answer.python);
  say(answer.says);
  root.dataset.ready = answer.step;
  root.dataset.seq = answer.seq;
}

/** One polite region, at most once a second, the newest sentence. */
function say(words) {
  clearTimeout(speech);
  const wait = Math.max(0, 1000 - (performance.now() - spoken));
  speech = setTimeout(() => { spoken = performance.now(); text("said", words); }, wait);
}

// --- tools ------------------------------------------------------------------------------------------------------------
$("back").addEventListener("click", () => go(at() - 1));
$("next").addEventListener("click", () => go(at() + 1));
for (const link of document.querySelectorAll(".steps a")) {
  link.addEventListener("click", (event) => { event.preventDefault(); go(boot.steps.findIndex((s) => s.name === link.dataset.step)); });
}
document.addEventListener("keydown", (event) => {
  const busy = event.target.closest?.("input, textarea, select, .scroll, summary");
  if (busy || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (way && boot.steps[at() + way]) { event.preventDefault(); go(at() + way); }
});
addEventListener("popstate", () => { fromAddress(); enter(false); });
$("controls").addEventListener("submit", (event) => event.preventDefault());
$("copy").addEventListener("click", async () => {
  const label = $("copy").textContent;
  try { await navigator.clipboard.writeText($("python").textContent); } catch { return; }
  text("copy", $("copy").dataset.done);
  say($("copy").dataset.done);
  setTimeout(() => text("copy", label), 1500);
});

function setTheme(name) {
  root.dataset.theme = name;
  try { localStorage.setItem("quadform-theme", name); } catch { /* a frame without storage */ }
  show();
}
try { chosen = localStorage.getItem("quadform-theme"); } catch { /* a frame without storage */ }
root.dataset.theme = chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
$("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
let width = 0;
new ResizeObserver(([entry]) => { if (Math.abs(entry.contentRect.width - width) > 1) { width = entry.contentRect.width; show(); } }).observe($("panels"));
fromAddress();
enter(false);
live.open();
