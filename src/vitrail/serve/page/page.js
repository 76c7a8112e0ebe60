// The page that a server shows: an image comes in, is sent to the model, and is opened in the viewer with its answers.
"use strict";

const TOKEN = "vitrail-token"; // where this tab keeps it

let models = [];
let token = remembered();

function remembered() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return ""; // a browser that keeps nothing
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

function command({ id, classes, attention, task }) {
  const path = isDense(task) ? `v1/${task}?${query({ model: id, format: "overlay" })}` : classes ? `v1/classify?${query({ model: id, top: CLASSES })}` : `v1/${attention ? "attention" : "embed"}?${query({ model: id })}`;
  const lines = ["curl -H 'Content-Type: image/jpeg'", "--data-binary @photo.jpg"];
  if (token) lines.push('-H "Authorization: Bearer $TOKEN"');
  if (isDense(task)) lines.push("-o found.png");
  if (!classes && attention) lines.push("-o attention.png");
  return [...lines, `'${new URL(path, document.baseURI).href}'`].join(" \\\n  ");
}

// Send files to the model, where there is one.
async function examine(files) {
  const model = chosenModel();
  if (model !== undefined) return examineEach(files, (file, signal) => answered(file, model, signal));
  running?.abort();
  waiting = [...files];
  return begin(); // which comes back here once there is one
}

const isDense = (task) => task === "segment" || task === "detect";

// An image with the masks or boxes of a model drawn over it, and what they are.
async function found(file, model, send) {
  const [said] = (await send(`v1/${model.task}?${query({ model: model.id, overlay: true })}`)).predictions;
  const listed = said.classes ?? said.objects;
  const top = listed.map(({ label, share, score, color }) => ({ name: label, probability: share ?? score, color }));
  const count = said.objects?.length;
  const verdict = count === undefined ? "Shares of the pixels" : `${count || "No"} object${count === 1 ? "" : "s"}`;
  const name = models.length > 1 ? `${file.name} \u00b7 ${model.id}` : file.name;
  const drawn = count === undefined ? "Each class has the color beside its share." : "Each box has the color of its class.";
  const picture = { src: said.overlay, width: said.width, height: said.height, drawn };
  return { file, name, said: `${verdict}.`, verdict, top, label: null, right: null, attention: null, ...picture };
}

// An image with all that the model says of it, as the viewer shows it.
async function answered(file, model, signal) {
  const type = file.type.startsWith("image/") ? file.type : "application/octet-stream";
  const send = (path) => ask(path, { method: "POST", body: file, headers: { "Content-Type": type }, signal });
  if (isDense(model.task)) return found(file, model, send);
  const [named, looked] = await Promise.all([
    model.classes ? send(`v1/classify?${query({ model: model.id, top: CLASSES })}`) : null,
    model.attention ? send(`v1/attention?${query({ model: model.id, format: "maps" })}`) : null,
  ]);
  const answer = named?.predictions[0] ?? {};
  const numbers = Object.entries(answer.values ?? {}).map(([label, value]) => `${label}: ${+value.toPrecision(6)}`);
  const classes = (answer.top ?? []).map(({ label, probability }) => ({ name: label, probability }));
  const top = [...numbers.map((text) => ({ name: text, probability: null })), ...classes];
  const one = answer.label ?? (top.length ? top[0].name : "This model names no classes");
  const verdict = answer.labels ? answer.labels.join(", ") || "no label" : one;
  const sure = top.find(({ name }) => name === verdict)?.probability ?? null;
  const said = sure === null ? `${verdict}.` : `${verdict}, ${percent(sure)}`;
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
