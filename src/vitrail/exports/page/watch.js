// Where the model looked, as the viewer reads it: maps as bytes with what 255 stands for, the rest as numbers.

const ROOM = 8_000_000; // bytes of maps that are kept of an image

function startWatch() {
  const { layers, heads, tokens, rows, columns } = given;
  const [patches, leading] = [rows * columns, tokens - rows * columns]; // the class token, or none
  const means = Array.from({ length: layers }, () => new Float32Array(tokens * tokens)); // over the heads
  const [pooled, peaks] = [0, 1].map(() => new Float32Array(layers * heads * patches));
  const maps = peaks.length * patches <= ROOM ? new Uint8ClampedArray(peaks.length * patches) : null;

  // Look at the weights of one query.
  function look(layer, head, query, shares) {
    const first = (layer * heads + head) * patches;
    const map = first + query - leading;
    for (let key = 0; key < tokens; key += 1) means[layer][query * tokens + key] += shares[key] / heads;
    let peak = 0;
    for (let at = leading; at < tokens; at += 1) peak = Math.max(peak, shares[at]);
    if (query >= leading) peaks[map] = peak;
    for (let at = 0; at < patches; at += 1) {
      const share = shares[leading + at];
      if (!leading || query === 0) pooled[first + at] += leading ? share : share / tokens;
      if (maps && query >= leading) maps[map * patches + at] = (255 * share) / (peak || 1);
    }
  }

  // Attention rollout (Appendix D.8): the mean of the heads with the residual, layer times layer, from what is read back
  // to the first layer; a row of the product is all that is needed of it.
  function rollout() {
    let shares = new Float64Array(tokens).fill(leading ? 0 : 1 / tokens);
    if (leading) shares[0] = 1;
    for (const mean of means.toReversed()) {
      const before = shares.map((share) => share / 2); // each token keeps as much as it takes
      mean.forEach((weight, at) => (before[at % tokens] += (shares[Math.floor(at / tokens)] / 2) * weight));
      shares = before;
    }
    return shares.subarray(leading);
  }

  const seen = () => {
    const shape = { rows, cols: columns, layers, heads, all_heads: true, class_token: leading === 1 };
    const asTheyAre = { pooled_peaks: new Uint8Array(layers * heads).fill(255), rollout_peak: 255 };
    return { ...shape, ...asTheyAre, maps, peaks, pooled, rollout: rollout() };
  };
  return { look, seen };
}
