// A picture as a file: SVG with its colours written into it, or PNG, twice as large as on the screen.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "text-anchor", "image-rendering"];

/** The SVG text of a drawn picture: what the style sheet says is written into every element. */
export function written(svg) {
  const copy = svg.cloneNode(true), [from, to] = [svg, copy].map((e) => [e, ...e.querySelectorAll("*")]);
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    to[i].removeAttribute("class");
    for (const name of STYLES) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  const { width, height } = svg.getBoundingClientRect();
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}

export const address = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;

async function png(text) {
  const image = new Image();
  image.src = address(text);
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * image.width, height: 2 * image.height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--paper");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

/** Hand a picture to the reader as a file. */
export async function save(text, name, kind) {
  const blob = kind === "svg" ? new Blob([text], { type: "image/svg+xml" }) : await png(text);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `quadform-${name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
