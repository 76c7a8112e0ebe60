// Where the model looked, as the viewer of the inspector reads it: bytes, and what the largest of each map stands for.

class Watch {
  constructor() {
    const { layers, heads, tokens, rows, columns } = given;
    this.leading = tokens - rows * columns; // the class token, or none
    this.patches = rows * columns;
    this.means = Array.from({ length: layers }, () => new Float32Array(tokens * tokens)); // over the heads
    this.allHeads = layers * heads * this.patches ** 2 <= ROOM;
    this.heads = this.allHeads ? heads : 1;
    const kept = layers * this.heads;
    this.pooled = new Float32Array(kept * this.patches);
    this.maps = kept * this.patches ** 2 <= ROOM ? new Uint8Array(kept * this.patches ** 2) : null;
    this.peaks = new Float32Array(kept * this.patches);
  }

  // Look at the weights of a head; where all heads are too many, at their mean, after the last.
  see(layer, head, weights) {
    const [mean, { heads }] = [this.means[layer], given];
    for (let at = 0; at < mean.length; at += 1) mean[at] += weights[at] / heads;
    if (this.allHeads) this.keep(layer * heads + head, weights);
    else if (head === heads - 1) this.keep(layer, mean);
  }

  keep(which, weights) {
    const [{ tokens }, { leading, patches }] = [given, this];
    const pooled = this.pooled.subarray(which * patches, (which + 1) * patches);
    for (let query = 0; query < tokens; query += 1) {
      const row = weights.subarray(query * tokens + leading, (query + 1) * tokens);
      if (!leading) row.forEach((weight, at) => (pooled[at] += weight / tokens));
      else if (query === 0) pooled.set(row);
      const map = which * patches + query - leading;
      if (this.maps && query >= leading) this.peaks[map] = toBytes(row, this.maps.subarray(map * patches, (map + 1) * patches));
    }
  }

  // Attention rollout (Appendix D.8): the mean of the heads with the residual, layer times layer, from what is read back
  // to the first layer; a row of the product is all that is needed of it.
  rollout() {
    const { tokens } = given;
    let shares = new Float64Array(tokens).fill(this.leading ? 0 : 1 / tokens);
    if (this.leading) shares[0] = 1;
    for (const mean of this.means.toReversed()) {
      const before = new Float64Array(tokens);
      for (let query = 0; query < tokens; query += 1) {
        const half = shares[query] / 2; // each token keeps as much as it takes
        before[query] += half;
        for (let key = 0; key < tokens; key += 1) before[key] += half * mean[query * tokens + key];
      }
      shares = before;
    }
    return shares.subarray(this.leading);
  }

  document() {
    const { layers, rows, columns } = given;
    const pooled = new Uint8Array(this.pooled.length);
    const pooledPeaks = Float32Array.from({ length: layers * this.heads }, (_, at) => {
      const part = [at * this.patches, (at + 1) * this.patches];
      return toBytes(this.pooled.subarray(...part), pooled.subarray(...part));
    });
    const rollout = new Uint8Array(this.patches);
    return {
      rows,
      cols: columns,
      layers,
      heads: this.heads,
      all_heads: this.allHeads,
      class_token: this.leading === 1,
      maps: this.maps,
      peaks: this.peaks,
      pooled,
      pooled_peaks: pooledPeaks,
      rollout_peak: toBytes(this.rollout(), rollout),
      rollout,
    };
  }
}

// Write weights as bytes whose largest is 255; give what that stands for.
function toBytes(weights, to) {
  const peak = weights.reduce((one, other) => Math.max(one, other), 0);
  for (let at = 0; at < weights.length; at += 1) to[at] = Math.round((255 * weights[at]) / (peak || 1));
  return peak;
}

// The part of a picture that the model reads, to be shown.
async function pictureOf(bitmap, [down, across]) {
  const [tall, wide] = [bitmap.height * down, bitmap.width * across];
  const scale = Math.min(SHOWN / Math.max(tall, wide), 1);
  const [height, width] = [tall, wide].map((side) => Math.max(Math.round(side * scale), 1));
  const canvas = new OffscreenCanvas(width, height);
  const ink = canvas.getContext("2d");
  ink.fillStyle = "#fff";
  ink.fillRect(0, 0, width, height);
  ink.imageSmoothingQuality = "high";
  ink.drawImage(bitmap, (bitmap.width - wide) / 2, (bitmap.height - tall) / 2, wide, tall, 0, 0, width, height);
  const type = scale < 1 ? "image/jpeg" : "image/png";
  return { blob: await canvas.convertToBlob({ type, quality: 0.9 }), height, width };
}

const SHOWN = 960; // pixels of a picture's longer side

// What the page asks for: the model once, then files, one answer each.
self.onmessage = async ({ data }) => {
  if (data.given) {
    [given, bytes] = [data.given, data.bytes];
    Object.keys(given.weights).forEach(weight); // now, so that the first image does not wait for it
    return;
  }
  try {
    const { bitmap, image } = await decode(data.file, given.least, given.channels);
    const { read, share } = evaluationImage(image, given);
    const picture = await pictureOf(bitmap, share);
    bitmap.close();
    const watch = new Watch();
    const logits = run(read, (...seen) => watch.see(...seen), (done) => self.postMessage({ id: data.id, done }));
    self.postMessage({ id: data.id, answer: { shares: probabilities(logits), attention: watch.document(), picture } });
  } catch (error) {
    self.postMessage({ id: data.id, problem: error.message });
  }
};
