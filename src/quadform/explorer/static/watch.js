// The page of a watched run: asks every two seconds, and draws what has grown.
import { Live } from "./live.js";

const EVERY = 2000; // milliseconds
const part = (id) => document.getElementById(id);
const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.documentElement.dataset.theme = theme;
let version = "";

const ask = () => live.send({ lang: document.documentElement.lang, theme, version });
const live = new Live({
  onOpen: ask,
  onLost: (lost) => { part("lost").hidden = !lost; },
  onLate: () => {},
  onError: (message) => { part("said").textContent = message.text; },
  onAnswer: draw,
});

function draw(found) {
  if (!found.pictures) return;
  version = found.version;
  part("said").textContent = found.said;
  part("warnings").replaceChildren(...found.warnings.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  part("pictures").replaceChildren(...found.pictures.map(picture));
  document.documentElement.dataset.ready = "";
}

function picture({ title, svg, alt }) {
  const panel = document.createElement("section");
  const image = Object.assign(document.createElement("img"), { alt, src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}` });
  panel.append(Object.assign(document.createElement("h2"), { textContent: title }), image);
  return panel;
}

live.open();
setInterval(ask, EVERY);
