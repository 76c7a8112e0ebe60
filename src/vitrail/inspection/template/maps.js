// The numbers: attention out of its bytes, weights of one view, and their colours.

// Plasma, a perceptually uniform colour map, at nine even stops.
const STOPS = ["0d0887", "4c02a1", "7e03a8", "aa2395", "cc4778", "e66c5c", "f89540", "fdc527", "f0f921"].map((code) =>
  [0, 2, 4].map((at) => parseInt(code.slice(at, at + 2), 16)),
);

// The red, green and blue of a share between 0 and 1.
function colourOf(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const below = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[below].map((low, channel) => low + (STOPS[below + 1][channel] - low) * (place - below));
}

function bytesOf(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

// Little-endian, as Python wrote them and as every machine with a browser stores them.
function floatsOf(text) {
  return new Float32Array(bytesOf(text).buffer);
}

// An image's attention with its bytes unpacked, where they are text; parts that the document leaves out stay null.
function unpack(attention) {
  const part = (held, read) => (typeof held === "string" ? read(held) : (held ?? null));
  return {
    ...attention,
    count: attention.rows * attention.cols,
    maps: part(attention.maps, bytesOf),
    peaks: part(attention.peaks, floatsOf),
    pooled: part(attention.pooled, bytesOf),
    pooled_peaks: part(attention.pooled_peaks, floatsOf),
    rollout: part(attention.rollout, bytesOf),
  };
}

// The weight of every patch in a view; a view is {show, layer, head, patch}, layer and head from 1, head 0 the mean.
function weightsOf(attention, view) {
  const { count, heads } = attention;
  const weights = new Float64Array(count);
  const add = (bytes, map, peak, share) => {
    const scale = (peak / 255) * share;
    for (let at = 0; at < count; at += 1) weights[at] += bytes[map * count + at] * scale;
  };
  if (view.show === "rollout") {
    add(attention.rollout, 0, attention.rollout_peak, 1);
    return weights;
  }
  const chosen = view.head === 0 ? Array.from({ length: heads }, (_, head) => head) : [view.head - 1];
  for (const head of chosen) {
    const row = (view.layer - 1) * heads + head;
    if (view.show === "pooled") add(attention.pooled, row, attention.pooled_peaks[row], 1 / chosen.length);
    else add(attention.maps, row * count + view.patch, attention.peaks[row * count + view.patch], 1 / chosen.length);
  }
  return weights;
}

function largest(weights) {
  let best = 0;
  for (let at = 1; at < weights.length; at += 1) if (weights[at] > weights[best]) best = at;
  return best;
}

// A canvas of one pixel a patch: colour by weight, and alpha by weight times opacity.
function paneOf(weights, rows, cols, opacity) {
  const pane = document.createElement("canvas");
  [pane.width, pane.height] = [cols, rows];
  const ink = pane.getContext("2d");
  const pixels = ink.createImageData(cols, rows);
  const top = weights[largest(weights)] || 1;
  weights.forEach((weight, at) => pixels.data.set([...colourOf(weight / top), (255 * opacity * weight) / top], 4 * at));
  ink.putImageData(pixels, 0, 0);
  return pane;
}

// A share in per cent with three digits or so: 12.3 %, 1.23 %, 0.123 %.
function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0 %";
  if (value < 0.001) return "under 0.001 %";
  return `${value.toFixed(value >= 10 ? 1 : value >= 1 ? 2 : 3)} %`;
}
