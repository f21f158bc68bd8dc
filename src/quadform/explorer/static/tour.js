// The guided tour: each step starts in its own state and asks for one control to be moved.
import { boot } from "./store.js";

const $ = (id) => document.getElementById(id);
const FRAMES = 24; // pictures of a slider that is moved for the reader

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
    if (step.name === "softmax") choosePart("functional"); else choosePart("total");
    store.go(step.start);
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
  $("tour-end").addEventListener("click", () => { clearInterval(moving); $("tour").hidden = true; $("start-tour").focus(); });
}
