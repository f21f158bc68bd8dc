// Inputs on one side, the state on the other. A slider with data-log has STEPS equal steps in the logarithm of its value.
import { boot } from "./store.js";
import { text } from "./tables.js";

const STEPS = 400; // one arrow key is about 2 % of the input scale
const $ = (id) => document.getElementById(id);
const sliders = () => document.querySelectorAll("#controls input[type=range]");
const digits = (value) => Number(value.toPrecision(3));
const written = (value) => (value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e5) ? String(value) : value.toExponential(2));

function toValue(input) {
  const [at, low, high] = [Number(input.value), Number(input.dataset.low), Number(input.dataset.high)];
  return "log" in input.dataset ? digits(low * (high / low) ** (at / STEPS)) : at;
}

function toSlider(input, value) {
  const [low, high] = [Number(input.dataset.low), Number(input.dataset.high)];
  return "log" in input.dataset ? (STEPS * Math.log(value / low)) / Math.log(high / low) : value;
}

export function bindControls(store) {
  for (const input of sliders()) {
    const ends = [Number(input.dataset.low), Number(input.dataset.high)].map((v) => toSlider(input, v));
    [input.min, input.max] = ends;
    input.addEventListener("input", () => store.set(input.name, toValue(input), false));
    input.addEventListener("change", () => store.set(input.name, toValue(input), true));
  }
  for (const name of ["attention", "factor", "data"]) {
    for (const input of document.querySelectorAll(`#controls input[name=${name}]`)) {
      input.addEventListener("change", () => store.set(name, input.value));
    }
  }
  $("design").addEventListener("change", (event) => store.set("design", event.target.value));
  $("text").addEventListener("input", (event) => store.set("text", event.target.value, false));
  $("text").addEventListener("change", (event) => store.set("text", event.target.value, true));
  $("upload").addEventListener("change", (event) => upload(event.target.files[0], store));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

async function upload(file, store) {
  if (!file) return;
  if (file.size > boot.largest_upload) { // the server would say the same, after the whole file had been sent
    const got = await fetch(`upload?${new URLSearchParams({ name: file.name, lang: boot.lang })}`, { method: "POST", body: file.slice(0, boot.largest_upload + 1) });
    showErrors("upload", (await got.json()).text);
    return;
  }
  try {
    const got = await fetch(`upload?${new URLSearchParams({ name: file.name, lang: boot.lang })}`, { method: "POST", body: file });
    const body = await got.json();
    if (got.ok) { showErrors(null); store.set("upload", body.upload); } else showErrors("upload", body.text);
  } catch { /* the banner says that the server is gone */ }
}

/** Put the state into the inputs; what the answer says about controls stands below them. */
export function showControls(state, answer) {
  const upload = state.data === "upload";
  for (const input of sliders()) {
    const value = state[input.name];
    if (input.name === "layer") input.max = Math.max(state.depth, 2);
    const at = toSlider(input, value);
    if (Math.abs(Number(input.value) - at) > Number(input.step) * 0.51) input.value = at;
    text(`value-${input.name}`, written(value));
    input.setAttribute("aria-valuetext", written(value));
    input.disabled = (upload && ["tokens", "dim"].includes(input.name))
      || (input.name === "sink" && state.attention === "linear") || (input.name === "layer" && state.depth === 1);
    text(`note-${input.name}`, answer?.notes[input.name] ?? "");
  }
  for (const name of ["attention", "factor", "data"]) {
    const input = document.querySelector(`#controls input[name=${name}][value=${CSS.escape(state[name])}]`);
    if (input) input.checked = true;
  }
  $("design").value = state.design;
  if ($("text").value !== state.text) $("text").value = state.text;
  $("control-text").hidden = state.data !== "text";
  $("control-upload").hidden = !upload;
  text("note-text", answer?.notes.text ?? "");
  const [low, high] = boot.ranges.scale.map(Math.log10);
  const from = answer?.one_hot_from;
  $("one-hot").hidden = !from;
  if (from) $("one-hot").style.left = `${(100 * (Math.log10(from) - low)) / (high - low)}%`;
}

/** An error at its control, or at the top of the controls; null takes all errors away. */
export function showErrors(control, words) {
  for (const p of document.querySelectorAll(".controls .error")) p.hidden = true;
  for (const input of document.querySelectorAll(".controls [aria-invalid]")) input.removeAttribute("aria-invalid");
  if (control === null) return;
  const place = $(`error-${control}`) ?? $("error-");
  place.hidden = false;
  place.textContent = words;
  const own = $(`control-${control}`);
  if (own) { own.hidden = false; own.querySelector("input, select, textarea")?.setAttribute("aria-invalid", "true"); }
}
