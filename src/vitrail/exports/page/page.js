// The page of a model in one file: an image comes in, the answers are computed here, and the viewer shows them.

const content = JSON.parse(byId("document").textContent);
given = content.model;

const showProblem = (error) => (byId("problem").textContent = error.message);
const clearProblem = () => (byId("problem").textContent = "");

// The weights out of their texts, one after the other, so that the page can be used meanwhile.
async function readWeights() {
  const bytes = new Uint8Array(content.bytes);
  let at = 0;
  for (const element of document.querySelectorAll(".weights")) {
    const part = bytesOf(element.textContent);
    bytes.set(part, at);
    at += part.length;
    element.remove();
    await rest();
  }
  for (const [name, place] of Object.entries(given.weights)) held.set(name, unpackWeight(bytes.buffer, place));
}

// An image with all that the model says of it, as the viewer shows it.
async function answered(file, signal) {
  const progress = byId("progress");
  progress.removeAttribute("value");
  progress.hidden = false;
  const tell = (done) => {
    signal.throwIfAborted();
    progress.value = done;
  };
  try {
    await ready;
    const { bitmap, pixels } = await decode(file);
    const [picture, watch] = [pictureOf(bitmap), startWatch()];
    bitmap.close();
    const shares = Array.from(await run(readLevels(pixels), watch.look, tell));
    const order = shares.map((_, number) => number).sort((one, other) => shares[other] - shares[one]);
    const top = order.slice(0, CLASSES).map((number) => ({ name: content.classes[number], probability: shares[number] }));
    const verdict = top[0].name;
    const said = `${verdict}, ${percent(top[0].probability)}`;
    return { name: file.name, said, verdict, top, shares, label: null, right: null, attention: watch.seen(), ...picture };
  } finally {
    if (!signal.aborted) progress.hidden = true; // else it is that of the file that took its place
  }
}

const examine = (files) => examineEach(files, answered);

byId("subtitle").textContent = content.subtitle;
byId("footer").textContent = content.footer;
followScheme();
Object.assign(state, { show: "rollout", opacity: 0.75, smooth: true }); // the photograph first
startViewer();
listenToFiles();
listenToCamera();
const ready = readWeights();
ready.then(tryCard);
