// The controls of a step: made when the step begins, kept while its values change, so that the focus stays.
import { symbols } from "./symbols.js";

const STEPS = 200; // of a logarithmic slider
const $ = (id) => document.getElementById(id);
const digits = (value) => Number(value.toPrecision(3));

function made(name, attributes = {}, words) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (words !== undefined) node.append(...symbols(words));
  return node;
}

const toValue = (input, { log, low, high }) => (log ? digits(low * (high / low) ** (input.value / STEPS)) : Number(input.value));
const toSlider = (value, { log, low, high }) => (log ? (STEPS * Math.log(value / low)) / Math.log(high / low) : value);

function slider(control, { set }) {
  const { name, label } = control, holder = made("div", { class: "control slider", id: `control-${name}` });
  const input = made("input", { type: "range", id: name, name, "aria-describedby": `error-${name}` });
  const track = made("div", { class: "track" });
  track.append(input);
  holder.append(made("label", { for: name }, label), made("output", { class: "value", id: `value-${name}`, for: name }), track);
  input.addEventListener("input", () => { const value = toValue(input, holder.control); $(`value-${name}`).textContent = value; set(name, value); });
  return holder;
}

function sentence(control, { set }) {
  const { name, label, most } = control, holder = made("div", { class: "control inline", id: `control-${name}` });
  const input = made("input", { type: "text", id: name, name, maxlength: most, spellcheck: "false", "aria-describedby": `note-${name} error-${name}` });
  holder.append(made("label", { for: name }, label), input, made("p", { class: "note", id: `note-${name}` }));
  input.addEventListener("input", () => set(name, input.value));
  return holder;
}

function choice(control, { set }) {
  const { name, label, choices } = control, holder = made("fieldset", { class: "control", id: `control-${name}` });
  const row = made("div", { class: "choices" });
  for (const { value, label: words } of choices) {
    const one = made("label", { class: "choice" }), input = made("input", { type: "radio", name, value });
    input.addEventListener("change", () => set(name, value));
    one.append(input, made("span", {}, words));
    row.append(one);
  }
  holder.append(made("legend", {}, label), row);
  return holder;
}

function button(control, { act }) {
  const holder = made("div", { class: "control", id: `control-${control.name}` });
  const press = made("button", { type: "button", class: "strong", id: control.name });
  press.addEventListener("click", () => act(holder.control.action));
  holder.append(press);
  return holder;
}

const KINDS = { slider, sentence, choice, button };

export function showControls(form, answer, handlers) {
  const wanted = [answer.step, ...answer.controls.map((c) => c.name)].join(" ");
  if (form.dataset.has !== wanted) {
    form.querySelectorAll(".control").forEach((c) => c.remove());
    for (const control of answer.controls) {
      const holder = KINDS[control.kind](control, handlers);
      holder.append(made("p", { class: "error", id: `error-${control.name}`, hidden: "" }));
      form.append(holder);
    }
    form.dataset.has = wanted;
  }
  for (const control of answer.controls) update(control);
}

function update(control) {
  const { name, kind, value } = control, holder = $(`control-${name}`), input = $(name);
  holder.control = control;
  if (kind === "slider") {
    input.min = control.log ? 0 : control.low;
    input.max = control.log ? STEPS : control.high;
    input.step = control.log || control.whole ? 1 : "any";
    input.disabled = control.high <= control.low;
    const moved = document.activeElement === input && input.matches(":active"); // a thumb that is held is not moved
    if (!moved) input.value = toSlider(value, control);
    $(`value-${name}`).textContent = control.said ?? value;
    input.setAttribute("aria-valuetext", control.said ?? value);
  } else if (kind === "sentence") {
    if (document.activeElement !== input && input.value !== value) input.value = value;
    $(`note-${name}`).textContent = control.note;
  } else if (kind === "choice") {
    holder.querySelector(`input[value="${CSS.escape(value)}"]`).checked = true;
  } else {
    input.textContent = control.label;
    input.disabled = Boolean(control.off);
  }
}

/** An error at its control, or at the top of the controls; null takes all errors away. */
export function showErrors(control, words) {
  for (const p of document.querySelectorAll("#controls .error")) p.hidden = true;
  for (const input of document.querySelectorAll("#controls [aria-invalid]")) input.removeAttribute("aria-invalid");
  if (control === null) return;
  const place = $(`error-${control}`) ?? $("error-");
  place.hidden = false;
  place.textContent = words;
  $(control)?.setAttribute("aria-invalid", "true");
}
