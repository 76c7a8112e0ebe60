// The page that a server shows: an image comes in, is sent to the model, and is opened in the viewer with its answers.
"use strict";

const KEPT = 24; // images that can be gone back to
const CLASSES = 5; // that are named
const TOKEN = "vitrail-token"; // where this tab keeps it

let models = [];
let token = remembered();
const seen = []; // images with their answers, the newest first
let waiting = []; // files that are not answered yet
let running = null; // what stops the request under way

function remembered() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return ""; // a browser that keeps nothing
  }
}

// A request that was refused, or that reached nobody, as a sentence.
class Refusal extends Error {
  constructor(status, message, seconds = null) {
    super(message);
    Object.assign(this, { status, seconds });
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const size = options.body ? ` The file has ${(options.body.size / 1e6).toFixed(1)} MB: it may be more than is taken.` : "";
    throw new Refusal(0, `The server did not answer: it may have stopped, or closed the connection.${size}`);
  }
  const said = await answer.json().catch(() => null);
  if (answer.ok && said !== null) return said;
  const reason = said?.error?.message ?? `The server answered ${answer.status} ${answer.statusText}`.trim();
  throw new Refusal(answer.status, asSentence(reason), secondsUntil(answer.headers.get("Retry-After")));
}

const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

// Retry-After is a number of seconds or a date.
function secondsUntil(text) {
  if (text === null) return null;
  const seconds = /^\d+$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(Math.ceil(seconds), 1) : null;
}

function showProblem(error) {
  const when = error.seconds === 1 ? "a second" : `${error.seconds} seconds`;
  const busy = error.status === 429 || error.status === 503;
  const hint = error.seconds === null ? "" : ` Try again in ${when}.`;
  byId("problem").textContent = error.status === 401 && !token ? "This server asks for a token." : error.message + hint;
  byId("token-form").hidden = error.status !== 401;
  byId("again").hidden = !(busy || error.status === 0);
  if (error.status === 401) byId("token").focus();
}

function clearProblem() {
  byId("problem").textContent = "";
  byId("token-form").hidden = byId("again").hidden = true;
}

function say(text, busy = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("unseen", !busy);
  byId("intake").classList.toggle("busy", busy);
  byId("viewer").setAttribute("aria-busy", String(busy));
}

// The models, whose first is chosen; and then what waits, where something does.
async function begin() {
  try {
    models = (await ask("v1/models")).data;
  } catch (error) {
    showProblem(error);
    return;
  }
  clearProblem();
  byId("model").replaceChildren(...models.map(({ id }) => make("option", { value: id, textContent: id })));
  byId("model-choice").hidden = models.length < 2;
  showModel();
  if (models.length && waiting.length) await examine(waiting);
}

const chosenModel = () => models.find(({ id }) => id === byId("model").value);

function showModel() {
  const model = chosenModel();
  if (model === undefined) {
    byId("problem").textContent = "This server has no model yet.";
    return;
  }
  byId("title").textContent = model.id;
  byId("subtitle").textContent = model.description + (model.classes ? `, ${model.classes.toLocaleString("en")} classes` : "");
  document.title = `${model.id} \u00b7 Vitrail`;
  byId("terminal").hidden = false;
  byId("curl").textContent = command(model);
}

const query = (values) => new URLSearchParams(values).toString().replaceAll("'", "%27");

function command({ id, classes, attention }) {
  const path = classes ? `v1/classify?${query({ model: id, top: CLASSES })}` : `v1/${attention ? "attention" : "embed"}?${query({ model: id })}`;
  const lines = ["curl -H 'Content-Type: image/jpeg'", "--data-binary @photo.jpg"];
  if (token) lines.push('-H "Authorization: Bearer $TOKEN"');
  if (!classes && attention) lines.push("-o attention.png");
  return [...lines, `'${new URL(path, document.baseURI).href}'`].join(" \\\n  ");
}

// Send files to the model one after another; a new call ends the one before.
async function examine(files) {
  running?.abort();
  waiting = [...files];
  const model = chosenModel();
  if (model === undefined) return void (await begin()); // which comes back here once there is one
  const mine = (running = new AbortController());
  clearProblem();
  try {
    for (let done = 0; waiting.length; done += 1) {
      const which = files.length > 1 ? ` (${done + 1} of ${files.length})` : "";
      say(`Looking at ${waiting[0].name}${which}\u2026`, true);
      const image = await answered(waiting[0], model, mine.signal);
      waiting.shift();
      seen.unshift(image);
      seen.splice(KEPT).forEach(({ src }) => URL.revokeObjectURL(src));
      document.body.classList.add("answered");
      byId("intake-title").textContent = "Another photograph";
      byId("ways").textContent = "Drop or paste it anywhere, too.";
      showImages(seen);
    }
    say(seen[0].said);
  } catch (error) {
    if (running !== mine) return; // another took its place
    say("");
    showProblem(error instanceof Refusal ? error : new Refusal(-1, `This page failed: ${error.message}`));
  }
}

// An image with all that the model says of it, as the viewer shows it.
async function answered(file, model, signal) {
  const type = file.type.startsWith("image/") ? file.type : "application/octet-stream";
  const send = (path) => ask(path, { method: "POST", body: file, headers: { "Content-Type": type }, signal });
  const [named, looked] = await Promise.all([
    model.classes ? send(`v1/classify?${query({ model: model.id, top: CLASSES })}`) : null,
    model.attention ? send(`v1/attention?${query({ model: model.id, format: "maps" })}`) : null,
  ]);
  const top = (named?.predictions[0].top ?? []).map(({ label, probability }) => ({ name: label, probability }));
  const verdict = top.length ? top[0].name : "This model names no classes";
  const said = top.length ? `${verdict}, ${percent(top[0].probability)}` : `${verdict}.`;
  const name = models.length > 1 ? `${file.name} \u00b7 ${model.id}` : file.name;
  const picture = looked?.picture ?? (await pictureOf(file));
  return { file, name, said, verdict, top, label: null, right: null, attention: looked, ...picture };
}

// The file itself, where the server gives no picture; a square where the browser cannot show it.
async function pictureOf(file) {
  const image = make("img", { src: URL.createObjectURL(file) });
  await image.decode().catch(() => {});
  return { src: image.src, width: image.naturalWidth || 1, height: image.naturalHeight || 1 };
}

function listenToFiles() {
  byId("choose").addEventListener("click", () => byId("file").click());
  for (const input of [byId("file"), byId("snap")]) {
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = ""; // the same file can be chosen again
      if (files.length) examine(files);
    });
  }
  document.addEventListener("paste", (event) => {
    if (event.target.closest?.("input")) return;
    const files = [...event.clipboardData.files];
    if (files.length) examine(files);
    else showProblem(new Refusal(-1, "What was pasted is no image. Copy an image, or a file, and paste again."));
  });
  let depth = 0; // of elements that the pointer has entered with a file
  const hover = (change) => byId("intake").classList.toggle("over", (depth = Math.max(depth + change, 0)) > 0);
  document.addEventListener("dragenter", () => hover(1));
  document.addEventListener("dragleave", () => hover(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    hover(-Infinity);
    const files = [...event.dataTransfer.files];
    if (files.length) examine(files);
    else showProblem(new Refusal(-1, "What was dropped is no file. Save the image first, or copy and paste it."));
  });
}

const CAMERA = {
  NotAllowedError: "The camera was refused. Allow it for this page in the browser, or choose a file.",
  NotFoundError: "No camera was found. Choose a file, or paste an image.",
  NotReadableError: "The camera is in use by another program. Close that one, or choose a file.",
};

async function openCamera() {
  clearProblem();
  if (!navigator.mediaDevices?.getUserMedia) {
    if (matchMedia("(pointer: coarse)").matches) byId("snap").click(); // a telephone's own camera
    else showProblem(new Refusal(-1, "A browser gives the camera to secure pages alone: open this one over https, or at localhost."));
    return;
  }
  try {
    const ideal = { facingMode: { ideal: "environment" }, width: { ideal: 1920 }, height: { ideal: 1080 } };
    const stream = await navigator.mediaDevices.getUserMedia({ video: ideal, audio: false });
    byId("preview").srcObject = stream;
    byId("camera").showModal();
    await byId("preview").play();
  } catch (error) {
    byId("camera").close();
    showProblem(new Refusal(-1, CAMERA[error.name] ?? `The camera cannot be used: ${asSentence(error.message)}`));
  }
}

function listenToCamera() {
  const [dialog, preview] = [byId("camera"), byId("preview")];
  byId("open-camera").addEventListener("click", openCamera);
  byId("close-camera").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    preview.srcObject?.getTracks().forEach((track) => track.stop());
    preview.srcObject = null;
  });
  byId("shutter").addEventListener("click", () => {
    if (!preview.videoWidth) return; // its first picture has not come yet
    const frame = make("canvas", { width: preview.videoWidth, height: preview.videoHeight });
    frame.getContext("2d").drawImage(preview, 0, 0);
    dialog.close();
    frame.toBlob((blob) => examine([new File([blob], "camera.jpg", { type: "image/jpeg" })]), "image/jpeg", 0.95);
  });
}

function listenToTheRest() {
  byId("model").addEventListener("change", () => {
    showModel();
    if (seen.length) examine([seen[state.image].file]);
  });
  byId("again").addEventListener("click", () => (models.length ? examine(waiting) : begin()));
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = byId("token").value.trim();
    if (!/^[\x21-\x7e]+$/.test(given)) {
      byId("problem").textContent = "A token has letters, digits and signs without accents or spaces.";
      return;
    }
    token = given;
    try {
      sessionStorage.setItem(TOKEN, token);
    } catch {} // kept by this page alone
    byId("token").value = "";
    byId("choose").focus();
    begin();
  });
  byId("copy").addEventListener("click", () => copyText(byId("curl"), byId("copy")));
}

followScheme();
Object.assign(state, { show: "rollout", opacity: 0.75, smooth: true }); // the photograph first
startViewer();
listenToFiles();
listenToCamera();
listenToTheRest();
begin();
