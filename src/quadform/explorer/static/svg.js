// Small helpers for charts: elements, and the symmetric logarithm that places a number on an axis.
const NS = "http://www.w3.org/2000/svg";

export function element(name, attributes, words) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

export const symlog = (linear) => (x) => Math.sign(x) * Math.log10(1 + Math.abs(x) / linear);

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
export const power = (exponent) => `10${[...String(exponent)].map((c) => RAISED[c]).join("")}`;
