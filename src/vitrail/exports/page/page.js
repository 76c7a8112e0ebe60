// The page of a model in one file: an image comes in, a worker computes the answers, and the viewer shows them.

const content = JSON.parse(byId("document").textContent);
const awaited = new Map(); // what waits for an answer, by number
let asked = 0;
let worker = null; // a promise of it, with the weights in it

function showProblem(error) {
  byId("problem").textContent = error.message;
}

function clearProblem() {
  byId("problem").textContent = "";
}

// The weights out of their texts, one after the other, so that the page can be used meanwhile.
async function readWeights() {
  const bytes = new Uint8Array(content.bytes);
  let at = 0;
  for (const element of document.querySelectorAll(".weights")) {
    const part = bytesOf(element.textContent);
    bytes.set(part, at);
    at += part.length;
    element.remove();
    await new Promise((go) => setTimeout(go));
  }
  return bytes.buffer;
}

async function startWorker() {
  const bytes = await readWeights();
  const address = URL.createObjectURL(new Blob([byId("worker").textContent], { type: "text/javascript" }));
  const made = new Worker(address);
  made.onmessage = ({ data: { id, done, answer, problem } }) => {
    if (answer) awaited.get(id)?.resolve(answer);
    else if (problem) awaited.get(id)?.reject(new Refusal(-1, asSentence(problem)));
    else if (id === asked) byId("progress").value = done;
  };
  made.onerror = (event) => {
    event.preventDefault();
    for (const { reject } of awaited.values()) reject(new Refusal(-1, asSentence(event.message ?? "the computation failed")));
  };
  made.postMessage({ given: content.model, bytes }, [bytes]);
  return made;
}

// Ask the worker for one answer; where the signal comes first, nobody waits for it any more.
async function ask(file, signal) {
  const id = (asked += 1);
  const ready = await (worker ??= startWorker());
  byId("progress").removeAttribute("value");
  byId("progress").hidden = false;
  try {
    return await new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      awaited.set(id, { resolve, reject });
      ready.postMessage({ id, file });
    });
  } finally {
    awaited.delete(id);
    byId("progress").hidden = id === asked;
  }
}

// An image with all that the model says of it, as the viewer shows it.
async function answered(file, signal) {
  const { shares, attention, picture } = await ask(file, signal);
  const order = shares.map((_, number) => number).sort((one, other) => shares[other] - shares[one]);
  const top = order.slice(0, CLASSES).map((number) => ({ name: content.classes[number], probability: shares[number] }));
  const verdict = top[0].name;
  const said = `${verdict}, ${percent(top[0].probability)}`;
  const { blob, height, width } = picture;
  const where = { src: URL.createObjectURL(blob), height, width };
  return { name: file.name, said, verdict, top, shares, label: null, right: null, attention, ...where };
}

const examine = (files) => examineEach(files, answered);

byId("subtitle").textContent = content.subtitle;
byId("footer").textContent = `Made by Vitrail ${content.version}. The model is in this file: images stay on this machine.`;
followScheme();
Object.assign(state, { show: "rollout", opacity: 0.75, smooth: true }); // the photograph first
startViewer();
listenToFiles();
listenToCamera();
worker = startWorker();
