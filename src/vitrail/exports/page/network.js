// The Vision Transformer, equation by equation, on plain typed arrays; a matrix is its rows one after the other.

const ROOM = 8_000_000; // bytes of attention maps that are kept of an image
const LARGEST = 1e30; // of a logit

let given; // what the page says of the model: sizes, names, preprocessing
let bytes; // all weights
const held = new Map(); // weights by name, as numbers

// The numbers of a half: a sign, 5 bits of exponent, 10 of fraction.
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, half) => {
  const [sign, exponent, fraction] = [half >> 15 ? -1 : 1, (half >> 10) & 31, half & 1023];
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

// The numbers of a weight; null where the model has no such weight. int8 has a factor for each row before it.
function weight(name) {
  if (!held.has(name)) held.set(name, name in given.weights ? unpackWeight(...given.weights[name]) : null);
  return held.get(name);
}

function unpackWeight(kind, start, rows, columns) {
  const count = rows * columns;
  if (kind === "float32") return new Float32Array(bytes, start, count);
  if (kind === "float16") return Float32Array.from(new Uint16Array(bytes, start, count), (half) => HALVES[half]);
  const [factors, whole] = [new Float32Array(bytes, start, rows), new Int8Array(bytes, start + 4 * rows, count)];
  return Float32Array.from(whole, (value, at) => value * factors[(at / columns) | 0]);
}

// a (rows x depth) times b (columns x depth) transposed, plus a bias for each column: two rows and four columns at once,
// whose eight sums stay in registers. At the ends, steps go back a little, and what they cover twice is the same.
function product(a, rows, b, columns, depth, bias = null) {
  const out = new Float32Array(rows * columns);
  if (rows < 2 || columns < 4) return plainProduct(a, rows, b, columns, depth, bias, out);
  for (let right = 0; right < columns; right += 4) {
    const column = Math.min(right, columns - 4);
    const [b0, b1, b2, b3] = [0, 1, 2, 3].map((more) => (column + more) * depth);
    const [e0, e1, e2, e3] = [0, 1, 2, 3].map((more) => (bias ? bias[column + more] : 0));
    for (let down = 0; down < rows; down += 2) {
      const row = Math.min(down, rows - 2);
      const a0 = row * depth;
      const a1 = a0 + depth;
      let [s00, s01, s02, s03] = [e0, e1, e2, e3];
      let [s10, s11, s12, s13] = [e0, e1, e2, e3];
      for (let at = 0; at < depth; at += 1) {
        const x0 = a[a0 + at];
        const x1 = a[a1 + at];
        const y0 = b[b0 + at];
        const y1 = b[b1 + at];
        const y2 = b[b2 + at];
        const y3 = b[b3 + at];
        s00 += x0 * y0;
        s01 += x0 * y1;
        s02 += x0 * y2;
        s03 += x0 * y3;
        s10 += x1 * y0;
        s11 += x1 * y1;
        s12 += x1 * y2;
        s13 += x1 * y3;
      }
      const to = row * columns + column;
      out[to] = s00;
      out[to + 1] = s01;
      out[to + 2] = s02;
      out[to + 3] = s03;
      out[to + columns] = s10;
      out[to + columns + 1] = s11;
      out[to + columns + 2] = s12;
      out[to + columns + 3] = s13;
    }
  }
  return out;
}

function plainProduct(a, rows, b, columns, depth, bias, out) {
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      let sum = bias ? bias[column] : 0;
      for (let at = 0; at < depth; at += 1) sum += a[row * depth + at] * b[column * depth + at];
      out[row * columns + column] = sum;
    }
  }
  return out;
}

const linear = (input, rows, name) => {
  const [, , outputs, inputs] = given.weights[`${name}.weight`];
  return product(input, rows, weight(`${name}.weight`), outputs, inputs, weight(`${name}.bias`));
};

function norm(input, name) {
  const [scale, shift] = [weight(`${name}.weight`), weight(`${name}.bias`)];
  const width = scale.length;
  const out = new Float32Array(input.length);
  for (let start = 0; start < input.length; start += width) {
    let [sum, squares] = [0, 0];
    for (let at = start; at < start + width; at += 1) sum += input[at];
    const mean = sum / width;
    for (let at = start; at < start + width; at += 1) squares += (input[at] - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / width + given.epsilon);
    for (let at = 0; at < width; at += 1) out[start + at] = (input[start + at] - mean) * factor * scale[at] + shift[at];
  }
  return out;
}

// The error function, within 1.5e-7 (Abramowitz and Stegun, 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const terms = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - terms * Math.exp(-x * x));
}

const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  "gelu-tanh": (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x))),
};

// Add a branch to the tokens, each feature times its layer scale where there is one.
function addBranch(tokens, branch, name) {
  const scale = weight(`${name}.weight`);
  for (let at = 0; at < tokens.length; at += 1) tokens[at] += scale ? branch[at] * scale[at % scale.length] : branch[at];
}

// Whether a query sees a key, by their places: all do, or those of one row or column, or what came before.
function seesOf(layer) {
  const { columns, axial, causal } = given;
  if (causal) return (query, key) => key <= query;
  if (!axial) return null;
  if (layer % 2 === 0) return (query, key) => Math.floor(query / columns) === Math.floor(key / columns);
  return (query, key) => query % columns === key % columns;
}

// Eq. 6: the weights of all queries of a head, rows that sum to one; `relative` are the keys of offsets 1 - T to T - 1.
function attentionWeights(query, key, tokens, depth, relative, sees) {
  const weights = product(query, tokens, key, tokens, depth);
  const offsets = relative && product(query, tokens, relative, 2 * tokens - 1, depth);
  for (let row = 0; row < tokens; row += 1) {
    const start = row * tokens;
    let most = -Infinity;
    for (let at = 0; at < tokens; at += 1) {
      if (offsets) weights[start + at] += offsets[row * (2 * tokens - 1) + row - at + tokens - 1];
      if (sees && !sees(row, at)) weights[start + at] = -Infinity;
      most = Math.max(most, weights[start + at]);
    }
    let sum = 0;
    for (let at = start; at < start + tokens; at += 1) sum += weights[at] = Math.exp(weights[at] - most);
    for (let at = start; at < start + tokens; at += 1) weights[at] /= sum;
  }
  return weights;
}

// Eqs. 5 to 8: all heads of a layer; `watch` is shown each head's weights.
function attend(input, layer, watch) {
  const { tokens, width, heads } = given;
  const depth = width / heads;
  const name = `blocks.${layer}.attention`;
  const qkv = linear(input, tokens, `${name}.qkv`); // T x 3 h d
  const mixed = new Float32Array(tokens * width);
  const relative = weight(`relative.${layer}`); // h x M d
  for (let head = 0; head < heads; head += 1) {
    const [query, key, value] = [0, 1, 2].map((part) => {
      const cut = new Float32Array(tokens * depth);
      for (let row = 0; row < tokens; row += 1) {
        for (let at = 0; at < depth; at += 1) {
          const number = qkv[row * 3 * width + part * width + head * depth + at];
          if (part === 2) cut[at * tokens + row] = number; // d x T, as `product` wants it
          else cut[row * depth + at] = part === 0 ? number / Math.sqrt(depth) : number;
        }
      }
      return cut;
    });
    const size = (2 * tokens - 1) * depth;
    const keys = relative && relative.subarray(head * size, (head + 1) * size);
    const weights = attentionWeights(query, key, tokens, depth, keys, seesOf(layer));
    watch(layer, head, weights);
    const out = product(weights, tokens, value, depth, tokens);
    for (let row = 0; row < tokens; row += 1) mixed.set(out.subarray(row * depth, (row + 1) * depth), row * width + head * depth);
  }
  return linear(mixed, tokens, `${name}.out`);
}

function think(input, layer) {
  const inner = linear(input, given.tokens, `blocks.${layer}.mlp.expand`);
  const activation = ACTIVATIONS[given.activation];
  for (let at = 0; at < inner.length; at += 1) inner[at] = activation(inner[at]);
  return linear(inner, given.tokens, `blocks.${layer}.mlp.contract`);
}

// Eq. 1 without positions: patches row by row, inside a patch row, column, channel; then the class token before them.
function embed({ levels, width, channels }) {
  const { patch, rows, columns } = given;
  const { mean, deviation } = given.preprocessing;
  const flat = new Float32Array(rows * columns * patch * patch * channels);
  let to = 0;
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      for (let y = row * patch; y < (row + 1) * patch; y += 1) {
        for (let x = column * patch; x < (column + 1) * patch; x += 1) {
          for (let channel = 0; channel < channels; channel += 1, to += 1) {
            const level = levels[(y * width + x) * channels + channel];
            flat[to] = (level - 255 * mean[channel % mean.length]) / (255 * deviation[channel % deviation.length]);
          }
        }
      }
    }
  }
  const patches = linear(flat, rows * columns, "embedding.projection");
  const first = weight("class_token");
  if (!first) return patches;
  const tokens = new Float32Array(first.length + patches.length);
  tokens.set(first);
  tokens.set(patches, first.length);
  return tokens;
}

// Eqs. 1 to 4 and the classifier: logits; `watch` is shown all attention weights, `tell` the share that is done.
function run(image, watch, tell) {
  const pre = given.norm === "pre";
  let tokens = embed(image);
  for (let layer = 0; layer < given.layers; layer += 1) {
    const name = `blocks.${layer}`;
    const places = weight(given.positions[layer]);
    if (places) for (let at = 0; at < tokens.length; at += 1) tokens[at] += places[at];
    addBranch(tokens, attend(pre ? norm(tokens, `${name}.attention_norm`) : tokens, layer, watch), `${name}.attention_scale`);
    if (!pre) tokens = norm(tokens, `${name}.attention_norm`);
    addBranch(tokens, think(pre ? norm(tokens, `${name}.mlp_norm`) : tokens, layer), `${name}.mlp_scale`);
    if (!pre) tokens = norm(tokens, `${name}.mlp_norm`);
    tell((layer + 1) / given.layers);
  }
  let features = pool(pre ? norm(tokens, "norm") : tokens);
  if (weight("hidden.weight")) features = linear(features, 1, "hidden").map(Math.tanh);
  if (given.cosine) {
    const length = Math.max(Math.hypot(...features), 1e-6);
    features = features.map((feature) => feature / length);
  }
  return linear(features, 1, "head");
}

function pool(tokens) {
  const { width, pooling } = given;
  if (pooling === "token") return tokens.slice(0, width);
  return Float32Array.from({ length: width }, (_, feature) => {
    let [sum, most] = [0, -Infinity];
    for (let at = feature; at < tokens.length; at += width) {
      sum += tokens[at];
      most = Math.max(most, tokens[at]);
    }
    return pooling === "max" ? most : sum / given.tokens;
  });
}

function probabilities(logits) {
  const scaled = Array.from(logits, (logit) => Math.min(Math.max(logit, -LARGEST), LARGEST) / given.temperature);
  const most = scaled.reduce((one, other) => Math.max(one, other));
  const shares = scaled.map((logit) => Math.exp(logit - most));
  const sum = shares.reduce((one, other) => one + other);
  return shares.map((share) => share / sum);
}
