// The rest of the page: its head, links into the viewer, the mistakes, the figures and the tables.

const given = JSON.parse(byId("document").textContent);
const SHORT = 16; // signs of a text that stays in one line
const LONG = 24; // rows from which it scrolls by itself

// A figure without a dark picture keeps its light one, on white.
function colourFigures(dark) {
  given.figures.forEach((figure) => {
    const picture = byId(`figure-${figure.id}`).querySelector("img");
    picture.src = dark && figure.dark ? figure.dark : figure.src;
    picture.classList.toggle("on-white", dark && !figure.dark);
  });
}

// Take over what a link says; whatever is not understood or out of range is left out. True where it spoke of an image.
function adopt(hash) {
  const short = /^#image-(\d+)$/.exec(hash);
  const said = new URLSearchParams(short ? `image=${short[1]}` : hash.slice(1));
  const whole = (name, low, high) => {
    const value = /^\d+$/.test(said.get(name) ?? "") ? Number(said.get(name)) : -1;
    if (value >= low && value <= high) state[name] = value;
  };
  whole("image", 0, given.images.length - 1);
  const grid = given.images[state.image].attention;
  if (grid) {
    whole("layer", 1, grid.layers);
    whole("head", 1, grid.heads);
    whole("patch", 0, grid.rows * grid.cols - 1);
    if (said.get("head") === "mean") state.head = 0;
    if (Object.hasOwn(PARTS, said.get("show") ?? "") || said.get("show") === "nothing") state.show = said.get("show");
  }
  return said.has("image");
}

// The address follows what is chosen a moment later, since browsers limit its changes.
let later = 0;
function writeAddress() {
  clearTimeout(later);
  later = setTimeout(() => {
    const { image, layer, head, patch } = state;
    const view = attention ? `&layer=${layer}&head=${head || "mean"}&show=${shown()}&patch=${patch}` : "";
    history.replaceState(null, "", `#image=${image}${view}`);
  }, 120);
}

function openViewer() {
  adopt(location.hash);
  startViewer(writeAddress);
  showImages(given.images, state.image);
  window.addEventListener("hashchange", () => {
    if (!adopt(location.hash)) return;
    openImage();
    byId("viewer").scrollIntoView();
    byId("picture").focus({ preventScroll: true });
  });
}

// What stands beside every figure and table.
function words({ title, caption }) {
  return make("div", { className: "words" }, make("h2", { textContent: title }), make("p", { textContent: caption }));
}

function figureOf(figure) {
  const { width, height, alt } = figure;
  const entry = make("article", { id: `figure-${figure.id}`, className: "exhibit" }, words(figure));
  entry.append(make("img", { width, height, alt, decoding: "async" }));
  return entry;
}

// Numbers to the right, words to the left.
function tableOf(table) {
  const numeric = table.columns.map((_, at) => table.rows.every((row) => /^[-+\u2212]?[\d.,\s]+(e[-+]?\d+)?( \u00b1 [\d.]+)?\s*%?$|^$/.test(row[at])));
  const line = (tag, cells) =>
    make("tr", {}, ...cells.map((text, at) => make(tag, { textContent: text, className: numeric[at] ? "number" : text.length <= SHORT ? "short" : "" })));
  const head = make("thead", {}, line("th", table.columns));
  const body = make("tbody", {}, ...table.rows.map((row) => line("td", row)));
  for (const cell of head.querySelectorAll("th")) cell.scope = "col";
  if (table.sortable) makeSortable(head, body, numeric);
  const entry = make("article", { id: `table-${table.id}`, className: "exhibit" }, words(table));
  const scroll = make("div", { className: "scroll" }, make("table", {}, head, body));
  if (table.rows.length > LONG) {
    scroll.classList.add("long");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", table.title);
  }
  entry.append(scroll);
  return entry;
}

// Heads become buttons: the first press sorts upwards, the next downwards; what has no value stays last.
function makeSortable(head, body, numeric) {
  [...head.querySelectorAll("th")].forEach((cell, at) => {
    if (!cell.textContent) return;
    const button = make("button", { type: "button", textContent: cell.textContent });
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = cell.getAttribute("aria-sort") !== "ascending";
      for (const other of head.querySelectorAll("th")) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      const text = (row) => row.children[at].textContent;
      const value = (row) => parseFloat(text(row).replaceAll(",", "").replace("\u2212", "-"));
      const order = (one, two) => (numeric[at] ? value(one) - value(two) : text(one).localeCompare(text(two)));
      const rows = [...body.children];
      const empty = rows.filter((row) => text(row) === "");
      const full = rows.filter((row) => text(row) !== "").sort((one, two) => (up ? order(one, two) : order(two, one)));
      body.append(...full, ...empty);
    });
  });
}

// A small picture with its rollout, and a link that opens it in the viewer.
function mistakeOf(image, index) {
  const canvas = make("canvas", { width: 320, height: Math.round((320 * image.height) / image.width) });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", image.name);
  const loaded = byId(`option-${index}`).firstChild;
  loaded.decode().then(() => {
    const ink = canvas.getContext("2d");
    ink.drawImage(loaded, 0, 0, canvas.width, canvas.height);
    const { rollout, rows, cols } = image.attention ?? {};
    if (rollout) ink.drawImage(paneOf(bytesOf(rollout), rows, cols, 0.75), 0, 0, canvas.width, canvas.height);
  }, () => {});
  const [answer] = image.top;
  const said = make("span", { className: "said" });
  said.append(make("span", { className: "class", textContent: image.label ?? "unlabelled" }));
  said.append(make("span", { className: "wrong", textContent: `\u2717 taken for ${answer.name}` }));
  said.append(make("span", { className: "share", textContent: `${percent(answer.probability)} sure` }));
  return make("li", {}, make("a", { href: `#image-${index}` }, canvas, said));
}

function start() {
  for (const part of ["title", "subtitle", "command"]) byId(part).textContent = given[part];
  byId("footer").textContent = `Made by Vitrail ${given.version}. One file, which asks nothing of the network.`;
  for (const [part, text] of Object.entries(given.headline ?? {})) byId(`headline-${part}`).textContent = text;
  byId("headline").hidden = !given.headline;
  const [figures, tables] = [given.figures, given.tables].map((all) => Object.groupBy(all, (one) => (one.measured ? "first" : "last")));
  const [first, second] = [(tables.first ?? []).slice(0, 1), (tables.first ?? []).slice(1)];
  byId("measured").append(...first.map(tableOf), ...(figures.first ?? []).map(figureOf), ...second.map(tableOf));
  byId("figures").append(...(figures.last ?? []).map(figureOf));
  byId("tables").append(...(tables.last ?? []).map(tableOf));
  byId("measured").hidden = !given.headline && !first.length && !figures.first;
  byId("figures").hidden = !figures.last;
  byId("tables").hidden = !tables.last;
  if (given.images.length) openViewer();
  given.images.forEach((image, index) => image.mistake && byId("mistake-list").append(mistakeOf(image, index)));
  byId("mistakes").hidden = byId("mistake-list").children.length === 0;
  followScheme(colourFigures);
}

start();
