// The guided tour: each step starts in its own state and asks for one control to be moved.
import { boot } from "./store.js";
import { sentence } from "./symbols.js";

const $ = (id) => document.getElementById(id);
const FRAMES = 24; // pictures of a slider that is moved for the reader

let awaited = null; // the picture of the step, until it has been brought into view

export function bindTour(store, memory) {
  let at = 0, moving = null;

  function show(index) {
    clearInterval(moving);
    at = index;
    const step = boot.tour[at];
    $("tour").hidden = false;
    $("tour-count").textContent = $("tour-count").dataset.text.replace("%n", at + 1);
    for (const part of document.querySelectorAll(".step")) part.hidden = part.dataset.step !== step.name;
    document.querySelectorAll(".step h2").forEach((h) => h.removeAttribute("id"));
    const title = document.querySelector(`.step[data-step=${step.name}] h2`);
    title.id = "tour-title";
    title.focus();
    $("tour-back").disabled = at === 0;
    $("tour-next").disabled = at === boot.tour.length - 1;
    choosePart(step.part);
    memory.step = step.name;
    sentence("tour-told", "");
    document.body.classList.add("touring");
    store.go(step.start);
    spotlight(step.looks);
  }

  /** A frame around what the step speaks of; its picture comes into view with the answer. */
  function spotlight(ids) {
    document.querySelectorAll(".spot").forEach((e) => e.classList.remove("spot"));
    document.documentElement.style.setProperty("--tour", `${$("tour").offsetHeight}px`);
    ids.forEach((id) => $(id).classList.add("spot"));
    awaited = ids[1];
  }

  function end() {
    clearInterval(moving);
    memory.step = "";
    $("tour").hidden = true;
    document.body.classList.remove("touring");
    spotlight([]);
    $("start-tour").focus();
  }

  function choosePart(name) {
    memory.part = name;
    document.querySelector(`input[name=part][value=${name}]`).checked = true;
  }

  /** The control goes where the step wants it: step by step, or at once for readers who asked for less motion. */
  function move() {
    clearInterval(moving);
    const { start, control, to } = boot.tour[at];
    const from = start[control], calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (typeof to !== "number" || calm) { store.set(control, to); return; }
    const log = boot.logarithmic.includes(control), whole = Number.isInteger(to) && Number.isInteger(from) && !log;
    let frame = 0;
    moving = setInterval(() => {
      frame += 1;
      const t = frame / FRAMES;
      const value = frame === FRAMES ? to : log ? from * (to / from) ** t : from + (to - from) * t;
      const last = frame === FRAMES;
      if (last) clearInterval(moving);
      store.set(control, last ? to : whole ? Math.round(value) : Number(value.toPrecision(3)), last);
    }, 50);
  }

  $("start-tour").addEventListener("click", () => show(0));
  $("tour-back").addEventListener("click", () => show(at - 1));
  $("tour-next").addEventListener("click", () => show(at + 1));
  $("tour-show").addEventListener("click", move);
  $("tour-end").addEventListener("click", end);
  memory.step = "";
}

/** What the step has found in the answer; the picture it speaks of may have come with it. */
export function tellTour(answer) {
  if (answer.told === undefined) return;
  sentence("tour-told", answer.told);
  document.documentElement.style.setProperty("--tour", `${$("tour").offsetHeight}px`);
  if (awaited && $(awaited).offsetParent) { $(awaited).scrollIntoView({ block: "nearest" }); awaited = null; }
}
