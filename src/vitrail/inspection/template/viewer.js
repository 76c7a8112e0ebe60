// The viewer: one image, what is laid over it, and everything that changes it. Names are only ever set as text.

const SIDE = 960; // pixels of the canvas's longer side
const PARTS = { patch: "maps", pooled: "pooled", rollout: "rollout" };
const MARKS = { true: ["\u2713", "right"], false: ["\u2717", "wrong"] };

// All that is chosen; layer and head count from 1, head 0 is the mean, image and patch count from 0 as in the document.
const state = { image: 0, layer: Infinity, head: 0, show: "patch", patch: -1, opacity: 0.85, smooth: false };
let images = [];
let attention = null; // of the image shown, unpacked
let weights = null; // of the view shown
let hovered = -1; // the patch under the pointer
let backdrop = null; // the image alone, at the canvas's size
let whenChosen = () => {}; // told after someone asked for another view

const available = (show) => attention !== null && (show === "nothing" || attention[PARTS[show]] !== null);
const shown = () => [state.show, "patch", "pooled", "rollout"].find(available) ?? "nothing";

// Make the controls work, once; `told` is called whenever someone asks for another view.
function startViewer(told = () => {}) {
  whenChosen = told;
  byId("scale").querySelector("i").style.background = `linear-gradient(90deg, ${STOPS.map(
    (stop) => `rgb(${stop.join(" ")})`,
  ).join(", ")})`;
  listenToControls();
  listenToPicture();
  listenToThumbnails();
}

// Take these images in the place of those before, and open one of them.
function showImages(given, first = 0) {
  images = given;
  state.image = first;
  byId("viewer").hidden = false;
  byId("thumbnails").hidden = images.length === 1;
  byId("thumbnails").replaceChildren(...images.map(thumbnail));
  openImage();
}

// One option of the list: the picture, and whether the answer is right as a sign and in words.
function thumbnail(image, index) {
  const [sign, word] = MARKS[image.right] ?? ["", ""];
  const option = make("li", { id: `option-${index}` }, make("img", { src: image.src, alt: "", draggable: false }));
  option.setAttribute("role", "option");
  option.setAttribute("aria-label", word ? `${image.name}, ${word}` : image.name);
  option.title = image.name;
  if (word) option.append(make("span", { className: `mark ${word}`, textContent: sign }));
  option.addEventListener("click", () => choose({ image: index }));
  return option;
}

// Change the view because someone asked for it.
function choose(change) {
  const other = "image" in change && change.image !== state.image;
  Object.assign(state, change);
  if (other) openImage();
  else draw();
  whenChosen();
}

// Bring up the chosen image: its bytes, its answers, and controls that fit its attention.
function openImage() {
  const image = images[state.image];
  attention = image.attention ? unpack(image.attention) : null;
  if (!["patch", "pooled", "rollout"].some(available)) attention = null;
  hovered = -1;
  if (attention) {
    const { count, rows, cols, layers, heads } = attention;
    if (!(state.patch >= 0 && state.patch < count)) state.patch = (rows >> 1) * cols + (cols >> 1);
    state.layer = Math.min(state.layer, layers);
    state.head = attention.all_heads && state.head <= heads ? state.head : 0;
  }
  showAnswer(image);
  fitControls();
  for (const option of byId("thumbnails").children) {
    const chosen = option.id === `option-${state.image}`;
    option.setAttribute("aria-selected", String(chosen));
    if (chosen) keepInSight(byId("thumbnails"), option);
  }
  byId("thumbnails").setAttribute("aria-activedescendant", `option-${state.image}`);
  const scale = SIDE / Math.max(image.width, image.height);
  const picture = byId("picture");
  [picture.width, picture.height] = [Math.round(image.width * scale), Math.round(image.height * scale)];
  const loaded = byId(`option-${state.image}`).firstChild;
  loaded.decode().then(() => image === images[state.image] && draw(), () => {});
  backdrop = null;
  draw();
}

// Scroll the list alone: scrollIntoView would move the whole page.
function keepInSight(list, option) {
  const top = option.offsetTop - list.scrollTop;
  if (top < 0 || top + option.offsetHeight > list.clientHeight) list.scrollTop = option.offsetTop - 8;
}

function showAnswer(image) {
  byId("name").textContent = image.name;
  const [sign, word] = MARKS[image.right] ?? ["", ""];
  const verdict = byId("verdict");
  verdict.className = word;
  verdict.textContent = image.verdict ?? (image.label === null ? "No label is known" : `Labelled ${image.label}`);
  if (word) verdict.textContent = `${sign} ${word === "right" ? "Right:" : "Wrong: labelled"} ${image.label}`;
  byId("top").replaceChildren(
    ...image.top.map(({ name, probability, color }) => {
      const bar = make("i");
      if (color) bar.style.background = color; // of what is drawn over the image
      bar.style.width = `${100 * (probability ?? 0)}%`; // a number has none
      const said = make("span", { className: "share", textContent: probability === null ? "" : percent(probability) });
      const entry = make("li", {}, make("span", { className: "class", textContent: name }), said, make("b", {}, bar));
      if (name === image.label) entry.className = "label";
      return entry;
    }),
  );
}

function fitControls() {
  byId("controls").hidden = attention === null;
  byId("viewer").classList.toggle("without-attention", attention === null);
  if (attention === null) return;
  byId("layer").max = attention.layers;
  byId("pooled-name").textContent = attention.class_token ? "class token" : "mean over tokens";
  for (const radio of byId("show").elements) radio.disabled = !available(radio.value);
  const numbers = attention.all_heads ? Array.from({ length: attention.heads }, (_, head) => head + 1) : [];
  byId("head").replaceChildren(
    make("option", { value: 0, textContent: "mean of heads" }),
    ...numbers.map((head) => make("option", { value: head, textContent: `head ${head}` })),
  );
  byId("hint").textContent = available("patch")
    ? "Click a patch, or focus the picture and use the arrow keys; Home and End go to the ends of a row."
    : "";
}

// Paint the picture and say in words what it shows.
function draw() {
  const image = images[state.image];
  const loaded = byId(`option-${state.image}`).firstChild;
  const picture = byId("picture");
  const ink = picture.getContext("2d");
  if (backdrop === null && loaded.complete && loaded.naturalWidth) {
    backdrop = make("canvas", { width: picture.width, height: picture.height });
    const base = backdrop.getContext("2d");
    base.imageSmoothingQuality = "high";
    base.drawImage(loaded, 0, 0, picture.width, picture.height);
  }
  ink.clearRect(0, 0, picture.width, picture.height);
  if (backdrop) ink.drawImage(backdrop, 0, 0);
  const show = shown();
  weights = show === "nothing" ? null : weightsOf(attention, { ...state, show });
  if (weights) {
    ink.imageSmoothingEnabled = state.smooth;
    ink.drawImage(paneOf(weights, attention.rows, attention.cols, state.opacity), 0, 0, picture.width, picture.height);
    if (hovered >= 0) outline(ink, hovered, 2);
    if (show === "patch") outline(ink, state.patch, 5);
  }
  showControls(show);
  byId("readout").textContent = sentence(show);
  picture.setAttribute("aria-label", attention ? `${image.name}, with the map laid over it` : image.name);
}

// White inside black, so that it is seen on any picture.
function outline(ink, patch, thickness) {
  const { rows, cols } = attention;
  const [across, down] = [ink.canvas.width / cols, ink.canvas.height / rows];
  for (const [colour, width] of [["#000c", thickness + 3], ["#fff", thickness]]) {
    ink.strokeStyle = colour;
    ink.lineWidth = width;
    ink.strokeRect((patch % cols) * across, Math.floor(patch / cols) * down, across, down);
  }
}

function showControls(show) {
  if (attention === null) return;
  const layered = show === "patch" || show === "pooled";
  for (const radio of byId("show").elements) radio.checked = radio.value === show;
  byId("layer").disabled = !layered;
  byId("layer").value = state.layer;
  byId("layer-said").textContent = show === "rollout" ? "all" : `${state.layer} of ${attention.layers}`;
  byId("head").disabled = !layered || !attention.all_heads;
  byId("head").value = state.head;
  byId("head-note").textContent = attention.all_heads ? "" : "This page keeps only the mean of the heads.";
  byId("opacity").disabled = byId("smooth").disabled = show === "nothing";
  byId("opacity").value = Math.round(100 * state.opacity);
  byId("opacity-said").textContent = `${Math.round(100 * state.opacity)} %`;
  byId("smooth").checked = state.smooth;
  byId("scale").style.visibility = weights ? "visible" : "hidden";
  if (weights) byId("scale-top").textContent = percent(weights[largest(weights)]);
}

// What is seen, in words: the weight under the pointer, or else the largest.
function sentence(show) {
  if (attention === null) return images[state.image].drawn ?? "This model has no attention maps: its answers stand alone.";
  if (show === "nothing") return "The image alone.";
  const place = (patch) => `row ${Math.floor(patch / attention.cols) + 1}, column ${(patch % attention.cols) + 1}`;
  const target = hovered >= 0 ? hovered : largest(weights);
  const share = percent(weights[target]);
  const most = hovered >= 0 ? "" : ", the most";
  if (show === "rollout") return `rollout through all layers: ${place(target)} holds ${share}${most}`;
  const where = `layer ${state.layer}, ${state.head ? `head ${state.head}` : "mean of heads"}`;
  if (show === "pooled") {
    const who = attention.class_token ? "the class token gives" : "a token gives, on average,";
    return `${where}: ${who} ${share} of its attention to ${place(target)}${most}`;
  }
  const whom = target === state.patch ? "itself" : place(target);
  return `${where}: patch ${place(state.patch)} gives ${share} of its attention to ${whom}${most}`;
}

function listenToControls() {
  const listen = (id, kind, change) => byId(id).addEventListener(kind, (event) => choose(change(event.target)));
  listen("show", "change", (radio) => ({ show: radio.value }));
  listen("layer", "input", (slider) => ({ layer: Number(slider.value) }));
  listen("head", "change", (select) => ({ head: Number(select.value) }));
  listen("opacity", "input", (slider) => ({ opacity: Number(slider.value) / 100 }));
  listen("smooth", "change", (box) => ({ smooth: box.checked }));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
}

function listenToPicture() {
  const picture = byId("picture");
  const patchAt = (event) => {
    const box = picture.getBoundingClientRect();
    const part = (position, size, steps) => Math.min(Math.max(Math.floor((position / size) * steps), 0), steps - 1);
    const row = part(event.clientY - box.top, box.height, attention.rows);
    return row * attention.cols + part(event.clientX - box.left, box.width, attention.cols);
  };
  const hover = (patch) => {
    if (patch === hovered || attention === null) return;
    hovered = patch;
    draw();
  };
  picture.addEventListener("pointermove", (event) => attention && event.pointerType !== "touch" && hover(patchAt(event)));
  picture.addEventListener("pointerleave", () => hover(-1));
  picture.addEventListener("click", (event) => available("patch") && choose({ show: "patch", patch: patchAt(event) }));
  picture.addEventListener("keydown", (event) => {
    if (!available("patch") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { rows, cols } = attention;
    const [row, col] = [Math.floor(state.patch / cols), state.patch % cols];
    const moves = { ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1], ArrowUp: [row - 1, col] };
    const [down, across] = { ...moves, ArrowDown: [row + 1, col], Home: [row, 0], End: [row, cols - 1] }[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    hovered = -1;
    if (down >= 0 && down < rows && across >= 0 && across < cols) choose({ show: "patch", patch: down * cols + across });
  });
}

function listenToThumbnails() {
  byId("thumbnails").addEventListener("keydown", (event) => {
    const last = images.length - 1;
    const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -last, End: last };
    if (!Object.hasOwn(steps, event.key)) return;
    event.preventDefault();
    choose({ image: Math.min(Math.max(state.image + steps[event.key], 0), last) });
  });
}
