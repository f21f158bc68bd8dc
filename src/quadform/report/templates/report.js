"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts"), words = read("words"), root = document.documentElement;
  const views = new Map();

  // A figure fits the room it has: fluid views take the width, grids become one column on a narrow page.
  function fit(data, theme, room) {
    const spec = structuredClone(data[theme]);
    spec.datasets = { ...data.datasets, ...spec.datasets };
    const meta = spec.usermeta || {}, narrow = room < (meta.narrow || 0);
    const chrome = narrow ? meta.chrome_narrow || meta.chrome || 0 : meta.chrome || 0;
    const width = Math.max(120, Math.floor(room / (narrow ? 1 : meta.columns || 1)) - chrome);
    (function walk(node) {
      if (narrow && node.columns) node.columns = 1;
      if (node.name && node.name.startsWith("fluid")) node.width = width;
      for (const key of ["concat", "vconcat", "hconcat"]) for (const child of node[key] || []) walk(child);
    })(spec);
    return spec;
  }

  // Indices of symbols (λ_max, H_o) stand below the line; the text stays, its `_` is not shown.
  const index = /(?<!\w)([A-Za-zα-ω])_(−?[A-Za-z0-9]{1,3})(?!\w)/g;
  function typeset(place) {
    for (const text of place.querySelectorAll("svg text")) {
      if (text.childElementCount || text.textContent.search(index) < 0) continue;
      const span = (shown, marks) => {
        const made = document.createElementNS(text.namespaceURI, "tspan");
        made.textContent = shown;
        for (const [name, value] of Object.entries(marks)) made.setAttribute(name, value);
        return made;
      };
      const size = parseFloat(getComputedStyle(text).fontSize), down = (0.22 * size).toFixed(2);
      let lowered = false;
      const pieces = text.textContent.split(index).flatMap((piece, i) => {
        if (i % 3 === 2) {
          lowered = true;
          return [span("_", { display: "none" }), span(piece, { dy: down, "font-size": `${0.75 * size}px` })];
        }
        const back = lowered ? { dy: `-${down}` } : {};
        if (piece) lowered = false;
        return piece ? [span(piece, i % 3 ? { ...back, "font-style": "italic" } : back)] : [];
      });
      text.replaceChildren(...pieces);
    }
  }

  async function draw(place) {
    const id = place.dataset.chart, data = charts[id], room = Math.floor(place.clientWidth);
    const controls = place.closest("article").querySelector(".controls");
    const kept = views.get(id);
    const sign = kept && kept.signs ? kept.view.signal("sign") : null;
    if (kept) kept.finalize();
    controls.replaceChildren();
    const made = await vegaEmbed(place, fit(data, root.dataset.theme, room), {
      renderer: "svg", actions: false, bind: controls,
    });
    const signs = controls.querySelector("input") !== null;
    views.set(id, { view: made.view, finalize: made.finalize, room, signs });
    if (sign) await made.view.signal("sign", sign).runAsync();
    typeset(place);
    place.dataset.drawn = root.dataset.theme;
  }

  // One drawing at a time: a later wish waits for the earlier one and then draws what is wanted by then.
  let chain = Promise.resolve();
  const drawAll = () => (chain = chain.then(async () => {
    for (const place of document.querySelectorAll("[data-chart]")) if (place.clientWidth) await draw(place);
    root.dataset.ready = root.dataset.theme;
  }));

  // On a desk the contents stand open and every figure too; on a phone the first figure of each study.
  const contents = document.querySelector(".contents details");
  const wide = matchMedia("(min-width: 64rem)"), phone = matchMedia("(max-width: 34rem)");
  const unfold = () => { contents.open = wide.matches; };
  unfold();
  wide.addEventListener("change", unfold);
  contents.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    const folded = document.querySelector(`${link.getAttribute("href")} > .drawn`);
    if (folded) folded.open = true;
    contents.open = wide.matches;
  });
  if (phone.matches) for (const card of document.querySelectorAll(".card:not(.red) details")) card.open = false;
  for (const folded of document.querySelectorAll(".drawn")) {
    folded.open = !phone.matches || folded.hasAttribute("data-first");
    folded.addEventListener("toggle", () => {
      const place = folded.querySelector("[data-chart]"), kept = views.get(place.dataset.chart);
      const old = !kept || place.dataset.drawn !== root.dataset.theme || kept.room !== Math.floor(place.clientWidth);
      if (folded.open && old) chain = chain.then(() => draw(place));
    });
  }

  const button = document.getElementById("theme");
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  function paint(theme) {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? words.to_light : words.to_dark;
    return drawAll();
  }
  button.hidden = false;
  button.addEventListener("click", () => paint(root.dataset.theme === "dark" ? "light" : "dark"));
  wanted.addEventListener("change", () => paint(wanted.matches ? "dark" : "light"));

  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const moved = [...document.querySelectorAll("[data-chart]")].some(
        (place) => place.clientWidth && views.has(place.dataset.chart) && views.get(place.dataset.chart).room !== Math.floor(place.clientWidth));
      if (moved) drawAll();
    }, 150);
  });

  // Paper is white and narrow: figures are drawn for it while the page is idle, because printing does not wait.
  const paper = new Map();
  async function prepare() {
    for (const place of document.querySelectorAll("[data-chart]")) {
      const id = place.dataset.chart, aside = document.createElement("div");
      const made = await vegaEmbed(aside, fit(charts[id], "light", 660), { renderer: "svg", actions: false, bind: aside });
      paper.set(id, await made.view.toSVG());
      made.finalize();
    }
    root.dataset.paper = "ready";
  }
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll(".drawn")) folded.open = true;
    if (!root.dataset.paper) return;
    for (const place of document.querySelectorAll("[data-chart]")) {
      const sheet = place.closest("article").querySelector(".print");
      sheet.innerHTML = paper.get(place.dataset.chart);
      typeset(sheet);
    }
    root.classList.add("printing");
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    for (const place of document.querySelectorAll(".print")) place.replaceChildren();
  });

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }
  const actions = {
    csv: (id) => save(`${id}.csv`, "text/csv", "\ufeff" + charts[id].csv),
    svg: async (id) => save(`${id}.svg`, "image/svg+xml", await views.get(id).view.toSVG()),
    python: (id) => copy(charts[id].python),
    json: (id) => save(`${id}.json`, "application/json", document.getElementById(id).textContent),
  };
  for (const line of document.querySelectorAll(".buttons")) line.hidden = false;
  for (const pressed of document.querySelectorAll("button[data-action]")) {
    pressed.addEventListener("click", async () => {
      await actions[pressed.dataset.action](pressed.dataset.for);
      const said = pressed.parentElement.querySelector(".said");
      if (said && pressed.dataset.action === "python") {
        said.textContent = words.copied;
        setTimeout(() => (said.textContent = ""), 3000);
      }
    });
  }

  const idle = window.requestIdleCallback || ((task) => setTimeout(task, 500));
  paint(wanted.matches ? "dark" : "light").then(() => idle(prepare));
})();
