// Small helpers for charts: elements, colours of a style sheet, numbers as people write them, and the symmetric logarithm.
const NS = "http://www.w3.org/2000/svg";

export function element(name, attributes, words) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const symlog = (linear) => (x) => Math.sign(x) * Math.log10(1 + Math.abs(x) / linear);

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
export const power = (exponent) => `10${[...String(exponent)].map((c) => RAISED[c]).join("")}`;

/** Three digits: `0.758`, `−2.06`, `3.4×10⁻⁶`. */
export function number(value) {
  if (!value) return "0";
  const [mantissa, exponent] = Math.abs(value).toExponential(2).split("e");
  const size = Number(exponent) > -4 && Number(exponent) < 6 ? String(Number(value.toPrecision(3))).replace("-", "") : `${Number(mantissa)}×${power(Number(exponent))}`;
  return (value < 0 ? "−" : "") + size;
}

const channel = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => channel(parseInt(colour.slice(i, i + 2), 16) / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);

/** The ink of the page that is read best on a colour (#rrggbb). */
export function inkOn(colour) {
  const at = luminance(colour);
  return [css("--ink"), css("--paper")].sort((a, b) => contrast(luminance(b), at) - contrast(luminance(a), at))[0];
}
