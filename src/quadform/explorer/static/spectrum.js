// The spectrum: bars of counts over a symmetric-log axis, the other state as a dashed outline.
import { element, power, symlog } from "./svg.js";

const [TOP, BOTTOM, SIDE, DECADES] = [24, 34, 14, 5];

export function drawSpectrum(svg, { bins, ghost, words }) {
  const width = svg.clientWidth, height = svg.clientHeight;
  if (!width) return;
  const all = [...bins, ...(ghost ?? [])];
  const reach = Math.max(...all.flatMap(([a, b]) => [Math.abs(a), Math.abs(b)]), 1e-300);
  const linear = 10 ** Math.floor(Math.log10(reach) - DECADES);
  const place = symlog(linear);
  const least = 0.3 * place(reach); // either side of 0 has some room
  const low = Math.min(-least, ...all.map(([a]) => place(a))), high = Math.max(least, ...all.map(([, b]) => place(b)));
  const x = (v) => SIDE + ((place(v) - low) / (high - low)) * (width - 2 * SIDE);
  const most = Math.max(...all.map(([, , n]) => n), 1);
  const y = (n) => height - BOTTOM - (n / most) * (height - TOP - BOTTOM);
  const made = [
    element("rect", { x: SIDE, y: TOP, width: x(0) - SIDE, height: height - TOP - BOTTOM, class: "shade" }),
    element("line", { x1: SIDE, x2: width - SIDE, y1: y(0), y2: y(0), class: "axis" }),
    element("line", { x1: x(0), x2: x(0), y1: TOP, y2: y(0), class: "axis", "stroke-dasharray": "3 3" }),
  ];
  for (const [a, b, n] of bins) {
    made.push(element("rect", { x: x(a) + 0.4, y: y(n), width: Math.max(x(b) - x(a) - 0.8, 1), height: y(0) - y(n), class: b <= 0 ? "down" : "up" }));
  }
  if (ghost) {
    const path = ghost.map(([a, b, n]) => `M${x(a)},${y(0)}V${y(n)}H${x(b)}V${y(0)}`).join("");
    made.push(element("path", { d: path, class: "ghost" }));
  }
  const top = Math.floor(Math.log10(reach));
  let left = Infinity, right = -Infinity;
  const label = (v, words_) => {
    const at = x(v);
    if (at < SIDE || at > width - SIDE) return;
    made.push(element("line", { x1: at, x2: at, y1: y(0), y2: y(0) + 5, class: "axis" }));
    made.push(element("text", { x: at, y: y(0) + 18, "text-anchor": "middle" }, words_));
    [left, right] = [Math.min(left, at), Math.max(right, at)];
  };
  label(0, "0");
  for (let e = top; e > top - DECADES; e -= 2) {
    if (x(10 ** e) - x(0) > 34) label(10 ** e, power(e));
    if (x(0) - x(-(10 ** e)) > 34) label(-(10 ** e), `−${power(e)}`);
  }
  made.push(element("text", { x: width - SIDE, y: height - 2, "text-anchor": "end", class: "quiet" }, svg.dataset.axis));
  made.push(element("text", { x: SIDE + 2, y: 14 }, words[0]));
  made.push(element("text", { x: width - SIDE, y: 14, "text-anchor": "end" }, words[2]));
  if (width > 300) made.push(element("text", { x: Math.min(Math.max(x(0), 130), width - 130), y: 14, "text-anchor": "middle", class: "quiet" }, words[1]));
  svg.replaceChildren(...made);
}
