// Images come in: chosen, dropped, pasted or photographed. The page that they come to has three functions of its own:
// `examine` takes files, `showProblem` a Refusal, and `clearProblem` takes that away.
"use strict";

const KEPT = 24; // images that can be gone back to
const CLASSES = 5; // that are named

const seen = []; // images with their answers, the newest first
let waiting = []; // files that are not answered yet
let running = null; // what stops the work under way

// What cannot be done, as a sentence: a request that was refused or reached nobody, a file that is no image.
class Refusal extends Error {
  constructor(status, message, seconds = null) {
    super(message);
    Object.assign(this, { status, seconds });
  }
}

const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function say(text, busy = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("unseen", !busy);
  byId("intake").classList.toggle("busy", busy);
  byId("viewer").setAttribute("aria-busy", String(busy));
}

// Let `answer` look at files one after another, and show each with what it says; a new call ends the one before.
async function examineEach(files, answer) {
  running?.abort();
  waiting = [...files];
  const mine = (running = new AbortController());
  clearProblem();
  try {
    for (let done = 0; waiting.length; done += 1) {
      const which = files.length > 1 ? ` (${done + 1} of ${files.length})` : "";
      say(`Looking at ${waiting[0].name}${which}\u2026`, true);
      const image = await answer(waiting[0], mine.signal);
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
    else showProblem(new Refusal(-1, "A browser gives the camera to secure pages alone: open this one over https, or at localhost, or choose a file."));
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
