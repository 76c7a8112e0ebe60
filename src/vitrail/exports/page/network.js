// The Vision Transformer, equation by equation, on plain typed arrays; a matrix is its rows one after the other.

const GROUP = 32; // whole numbers of a weight that share a factor
const TURN = 40; // milliseconds of work, after which the page may do something else

let given; // what the page says of the model: sizes, weights by name, preprocessing
let multiplyElsewhere = null; // on a graphics card, where there is one that gives the same
let rested = 0; // when
const held = new Map(); // by name, as numbers

// The numbers of a half: a sign, 5 bits of exponent, 10 of fraction.
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, half) => {
  const [sign, exponent, fraction] = [half >> 15 ? -1 : 1, (half >> 10) & 31, half & 1023];
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

// The numbers of a weight out of all bytes. Whole ones have their factors before them, and behind them the low 4 of 12 bits.
function unpackWeight(bytes, [kind, start, rows, columns]) {
  const count = rows * columns;
  if (kind === "float32") return new Float32Array(bytes, start, count);
  const numbers = new Float32Array(count);
  if (kind === "float16") {
    new Uint16Array(bytes, start, count).forEach((half, at) => (numbers[at] = HALVES[half]));
    return numbers;
  }
  const factors = new Uint16Array(bytes, start, Math.ceil(count / GROUP));
  const whole = new Int8Array(bytes, start + factors.byteLength, count);
  const low = kind === "int12" ? new Uint8Array(bytes, whole.byteOffset + count, Math.ceil(count / 2)) : null;
  whole.forEach((high, at) => {
    const value = low ? 16 * high + ((low[at >> 1] >> (4 * (at % 2))) & 15) : high;
    numbers[at] = value * HALVES[factors[Math.floor(at / GROUP)]];
  });
  return numbers;
}

// a (rows x depth) times b (columns x depth) transposed, for some of the columns: two rows and four columns at once, whose
// eight sums stay in registers. Past an end, the last row or column is computed once more.
function multiply(a, rows, b, columns, depth, out, first, end) {
  for (let column = first; column < end; column += 4) {
    const [c0, c1, c2, c3] = [0, 1, 2, 3].map((more) => Math.min(column + more, columns - 1));
    const [b0, b1, b2, b3] = [c0 * depth, c1 * depth, c2 * depth, c3 * depth];
    for (let row = 0; row < rows; row += 2) {
      const next = Math.min(row + 1, rows - 1);
      const [a0, a1, out0, out1] = [row * depth, next * depth, row * columns, next * columns];
      let [s00, s01, s02, s03] = [0, 0, 0, 0];
      let [s10, s11, s12, s13] = [0, 0, 0, 0];
      for (let at = 0; at < depth; at += 1) {
        const x0 = a[a0 + at], x1 = a[a1 + at];
        const y0 = b[b0 + at], y1 = b[b1 + at], y2 = b[b2 + at], y3 = b[b3 + at];
        s00 += x0 * y0;
        s01 += x0 * y1;
        s02 += x0 * y2;
        s03 += x0 * y3;
        s10 += x1 * y0;
        s11 += x1 * y1;
        s12 += x1 * y2;
        s13 += x1 * y3;
      }
      [out[out0 + c0], out[out0 + c1], out[out0 + c2], out[out0 + c3]] = [s00, s01, s02, s03];
      [out[out1 + c0], out[out1 + c1], out[out1 + c2], out[out1 + c3]] = [s10, s11, s12, s13];
    }
  }
}

// The whole product, some columns at a time, so that the page stays alive.
async function multiplyHere(a, rows, b, columns, depth) {
  const out = new Float32Array(rows * columns);
  for (let first = 0; first < columns; first += 32) {
    multiply(a, rows, b, columns, depth, out, first, Math.min(first + 32, columns));
    await rest();
  }
  return out;
}

// Let the page do something else, where it has waited long.
async function rest() {
  if (performance.now() - rested < TURN) return;
  await (globalThis.scheduler?.yield?.() ?? new Promise((go) => setTimeout(go)));
  rested = performance.now();
}

async function linear(input, rows, name) {
  const [, , outputs, inputs] = given.weights[`${name}.weight`];
  const work = multiplyElsewhere ?? multiplyHere;
  const out = await work(input, rows, held.get(`${name}.weight`), outputs, inputs);
  const bias = held.get(`${name}.bias`);
  for (let at = 0; bias && at < out.length; at += 1) out[at] += bias[at % outputs];
  return out;
}

function norm(input, name) {
  const [scale, shift, out] = [held.get(`${name}.weight`), held.get(`${name}.bias`), new Float32Array(input.length)];
  const width = scale.length;
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

// Eq. 1 without positions: patches row by row, inside a patch row, column, channel; then the class token before them.
async function embed(levels) {
  const { patch, rows, columns, channels, mean, deviation } = given;
  const flat = new Float32Array(rows * columns * patch * patch * channels);
  for (let y = 0; y < rows * patch; y += 1) {
    for (let x = 0; x < columns * patch; x += 1) {
      const [which, inside] = [Math.floor(y / patch) * columns + Math.floor(x / patch), (y % patch) * patch + (x % patch)];
      for (let channel = 0; channel < channels; channel += 1) {
        const level = levels[4 * (y * columns * patch + x) + channel];
        flat[(which * patch * patch + inside) * channels + channel] = (level / 255 - mean[channel]) / deviation[channel];
      }
    }
  }
  const tokens = new Float32Array(given.tokens * given.width);
  const patches = await linear(flat, rows * columns, "embedding.projection");
  tokens.set(held.get("class_token") ?? []);
  tokens.set(patches, tokens.length - patches.length);
  return tokens;
}

// Whether a query sees a key, by their places: those of one row or column, or what came before; null where all do.
function seesOf(layer) {
  const { axial, causal, columns } = given;
  if (axial && layer % 2) return (query, key) => query % columns === key % columns;
  if (axial) return (query, key) => Math.floor(query / columns) === Math.floor(key / columns);
  return causal ? (query, key) => key <= query : null;
}

const dot = (a, start, b, other, count) => {
  let sum = 0;
  for (let at = 0; at < count; at += 1) sum += a[start + at] * b[other + at];
  return sum;
};

// Eqs. 5 to 8: every query weighs the values of all tokens that it sees; `look` is shown its weights.
async function attend(input, layer, look) {
  const { tokens, width, heads } = given;
  const [depth, name, sees] = [width / heads, `blocks.${layer}.attention`, seesOf(layer)];
  const qkv = await linear(input, tokens, `${name}.qkv`); // T x 3 h d
  const relative = held.get(`relative.${layer}`); // h x M d, M offsets from 1 - T to T - 1
  const [mixed, shares] = [new Float32Array(tokens * width), new Float32Array(tokens)];
  for (let head = 0; head < heads; head += 1) {
    await rest();
    for (let query = 0; query < tokens; query += 1) {
      const [from, to] = [query * 3 * width + head * depth, query * width + head * depth];
      for (let key = 0; key < tokens; key += 1) {
        let logit = dot(qkv, from, qkv, key * 3 * width + width + head * depth, depth);
        if (relative) logit += dot(qkv, from, relative, (head * (2 * tokens - 1) + query - key + tokens - 1) * depth, depth);
        shares[key] = !sees || sees(query, key) ? logit / Math.sqrt(depth) : -Infinity;
      }
      softmax(shares);
      look(layer, head, query, shares);
      for (let key = 0; key < tokens; key += 1) {
        const value = key * 3 * width + 2 * width + head * depth;
        for (let at = 0; at < depth; at += 1) mixed[to + at] += shares[key] * qkv[value + at];
      }
    }
  }
  return linear(mixed, tokens, `${name}.out`);
}

// Make shares of logits, in their place; they sum to one.
function softmax(logits) {
  const most = logits.reduce((one, other) => Math.max(one, other));
  let sum = 0;
  for (let at = 0; at < logits.length; at += 1) sum += logits[at] = Math.exp(logits[at] - most);
  for (let at = 0; at < logits.length; at += 1) logits[at] /= sum;
  return logits;
}

async function think(input, layer) {
  const inner = await linear(input, given.tokens, `blocks.${layer}.mlp.expand`);
  const activation = ACTIVATIONS[given.activation];
  for (let at = 0; at < inner.length; at += 1) inner[at] = activation(inner[at]);
  return linear(inner, given.tokens, `blocks.${layer}.mlp.contract`);
}

// Eqs. 1 to 4 and the classifier: every class's share; `look` is shown all attention weights, `tell` the part that is done.
async function run(levels, look, tell) {
  const pre = given.norm === "pre";
  let tokens = await embed(levels);
  const branch = async (work, layer, name) => {
    const added = await work(pre ? norm(tokens, `${name}_norm`) : tokens, layer, look);
    const scale = held.get(`${name}_scale.weight`);
    for (let at = 0; at < tokens.length; at += 1) tokens[at] += scale ? scale[at % scale.length] * added[at] : added[at];
    if (!pre) tokens = norm(tokens, `${name}_norm`);
  };
  for (let layer = 0; layer < given.layers; layer += 1) {
    const positions = held.get(given.positions[layer]);
    for (let at = 0; positions && at < tokens.length; at += 1) tokens[at] += positions[at];
    await branch(attend, layer, `blocks.${layer}.attention`);
    await branch(think, layer, `blocks.${layer}.mlp`);
    tell((layer + 1) / given.layers);
  }
  let features = pool(pre ? norm(tokens, "norm") : tokens);
  if (held.has("hidden.weight")) features = (await linear(features, 1, "hidden")).map(Math.tanh);
  const length = given.cosine ? Math.max(Math.hypot(...features), 1e-6) : 1;
  const logits = await linear(features.map((feature) => feature / length), 1, "head");
  return softmax(Float64Array.from(logits, (logit) => Math.min(Math.max(logit, -1e30), 1e30) / given.temperature));
}

function pool(tokens) {
  const { width, pooling } = given;
  const pooled = tokens.slice(0, width); // the class token's
  if (pooling === "token") return pooled;
  for (let at = width; at < tokens.length; at += 1) {
    const [sum, one] = [pooled[at % width], tokens[at]];
    pooled[at % width] = pooling === "max" ? Math.max(sum, one) : sum + one;
  }
  return pooling === "max" ? pooled : pooled.map((sum) => sum / given.tokens);
}
