// Symbols in sentences and pictures: λ_max, W_Q, d_k set as formulas, the letter slanted and its index below.
import { element } from "./svg.js";

const SYMBOL = /(λ_(?:max|min)|(?<![A-Za-z0-9_])[A-Za-z]_(?:[A-Z0-9]{1,2}|[a-z]{1,2})(?![A-Za-z0-9_]))/;

/** Words as nodes. */
export function symbols(words) {
  return words.split(SYMBOL).map((piece, i) => {
    if (i % 2 === 0) return document.createTextNode(piece);
    const [letter, index] = piece.split("_"), set = document.createElement("span");
    set.className = "symbol";
    set.append(Object.assign(document.createElement("i"), { textContent: letter }), Object.assign(document.createElement("sub"), { textContent: index }));
    return set;
  });
}

/** Words put where they belong, if they are not there yet. */
export function sentence(id, words) {
  const place = document.getElementById(id);
  if (place.dataset.words === words) return;
  place.dataset.words = words;
  place.replaceChildren(...symbols(words));
}

/** The same for the text of a picture. */
export function label(attributes, words) {
  const made = element("text", attributes);
  let lowered = false;
  words.split(SYMBOL).forEach((piece, i) => {
    const up = lowered ? { dy: "-0.25em" } : {};
    if (i % 2 === 0) {
      if (piece) { made.append(element("tspan", up, piece)); lowered = false; }
      return;
    }
    const [letter, index] = piece.split("_"), below = element("tspan", { dy: "0.33em", "font-size": "75%" }, index);
    made.append(element("tspan", { ...up, "font-style": "italic" }, letter), below);
    lowered = true;
  });
  return made;
}

/** The symbols in the words the page came with: labels and captions, not code. */
export function setSymbols() {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (SYMBOL.test(node.data) && !node.parentElement.closest("script, pre, code, option, textarea, [hidden]")) found.push(node);
  }
  for (const node of found) node.replaceWith(...symbols(node.data));
}
