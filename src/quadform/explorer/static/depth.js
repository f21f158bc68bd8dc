// Token similarity by layer: a line from before the first block to after the last, the other state dashed.
import { element } from "./svg.js";

const [TOP, BOTTOM, LEFT, RIGHT] = [12, 36, 36, 12];

export function drawDepth(svg, { cosine, ghost, axis }) {
  const width = svg.clientWidth, height = svg.clientHeight;
  if (!width) return;
  const all = [...cosine, ...(ghost ?? [])].filter((v) => v !== null);
  const low = Math.min(0, ...all), count = Math.max(cosine.length, ghost?.length ?? 0) - 1;
  const x = (i) => LEFT + (i / count) * (width - LEFT - RIGHT);
  const y = (v) => height - BOTTOM - ((v - low) / (1 - low)) * (height - TOP - BOTTOM);
  const path = (values) => values.map((v, i) => (v === null ? "" : `${i && values[i - 1] !== null ? "L" : "M"}${x(i)},${y(v)}`)).join("");
  const made = [];
  for (const v of [0, 0.5, 1]) {
    made.push(element("line", { x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v), class: "grid" }));
    made.push(element("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, String(v)));
  }
  for (let i = 0; i <= count; i++) made.push(element("text", { x: x(i), y: height - BOTTOM + 16, "text-anchor": "middle" }, String(i)));
  made.push(element("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end", class: "quiet" }, axis));
  if (ghost) made.push(element("path", { d: path(ghost), class: "ghost" }));
  made.push(element("path", { d: path(cosine), class: "line" }));
  cosine.forEach((v, i) => v !== null && made.push(element("circle", { cx: x(i), cy: y(v), r: 3.5, class: "dot" })));
  svg.replaceChildren(...made);
}
