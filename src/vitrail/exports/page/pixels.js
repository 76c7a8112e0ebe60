// From a file to the levels that the model reads, as `vitrail predict` makes them: the browser decodes; what follows is
// done here, with the whole weights that torch takes for bytes. Pixels are { width, height, data }, four numbers each.

const BAND = 1 << 22; // pixels of a canvas, which has a largest size
const SHOWN = 960; // pixels of a picture's longer side
const UNREADABLE = "This is no image that the browser can read. JPEG, PNG, WebP, GIF, BMP and AVIF are.";
// How a camera was held, in a JPEG's Exif: 1 is upright.
const HELD = /Exif\0\0(?:II[^]*?\x12\x01\x03\0\x01\0\0\0|MM[^]*?\x01\x12\0\x03\0\0\0\x01\0)([^])/;

// A file's picture, to be shown, and its pixels. A large upright JPEG is read at a half, a quarter or an eighth where both
// sides keep the pixels that are needed, by the browser's own decoder if it can: that is what `predict` reads.
async function decode(file) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(file, options).catch(() => Promise.reject(new Refusal(-1, UNREADABLE)));
  const head = new TextDecoder("latin1").decode(await file.slice(0, 1 << 18).arrayBuffer());
  const fits = (by) => given.least > 0 && Math.min(bitmap.width, bitmap.height) >= by * given.least;
  const turned = /[\x02-\x08]/.test(HELD.exec(head)?.[1] ?? "");
  const several = head.includes("MPF\0") && !head.includes(' hdrgm:Version="'); // pictures in one JPEG
  const shrink = /^\xff\xd8/.test(head) && !turned && !several ? [8, 4, 2].find(fits) : null;
  const smaller = shrink ? decodeSmaller(file, Math.ceil(bitmap.width / shrink), Math.ceil(bitmap.height / shrink)) : null;
  const pixels = (await smaller?.catch(() => null)) ?? shrinkPixels(readPixels(bitmap), shrink ?? 1);
  if (given.channels === 1) toGray(pixels);
  return { bitmap, pixels };
}

async function decodeSmaller(file, width, height) {
  const how = { type: "image/jpeg", colorSpaceConversion: "none", desiredWidth: width, desiredHeight: height };
  const decoder = new ImageDecoder({ data: file.stream(), ...how });
  const { image } = await decoder.decode();
  const data = new Uint8ClampedArray(4 * width * height);
  const fits = image.codedWidth === width && image.codedHeight === height;
  if (fits) await image.copyTo(data, { format: "RGBA" });
  image.close();
  decoder.close();
  return fits ? { width, height, data } : null;
}

// The pixels of a picture on white.
function readPixels(bitmap) {
  const { width, height } = bitmap;
  const data = new Uint8ClampedArray(4 * width * height);
  const rows = Math.min(Math.ceil(BAND / width), height);
  const ink = make("canvas", { width, height: rows }).getContext("2d", { willReadFrequently: true });
  ink.fillStyle = "#fff";
  for (let top = 0; top < height; top += rows) {
    ink.fillRect(0, 0, width, rows);
    ink.drawImage(bitmap, 0, -top);
    data.set(ink.getImageData(0, 0, width, Math.min(rows, height - top)).data, 4 * width * top);
  }
  return { width, height, data };
}

// Squares of pixels become their mean: nearly what a decoder of JPEG gives of them.
function shrinkPixels({ width, height, data }, by) {
  if (by === 1) return { width, height, data };
  const [less, lower] = [width, height].map((side) => Math.ceil(side / by));
  const sums = new Float32Array(4 * less * lower);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const to = 4 * (Math.floor(y / by) * less + Math.floor(x / by));
      for (let channel = 0; channel < 4; channel += 1) sums[to + channel] += data[4 * (y * width + x) + channel];
    }
  }
  const means = sums.map((sum, at) => (255 * sum) / sums[at | 3]); // where alpha is 255 everywhere
  return { width: less, height: lower, data: Uint8ClampedArray.from(means) };
}

// Weigh colours to gray (ITU-R 601), in their places.
function toGray({ data }) {
  for (let at = 0; at < data.length; at += 4) {
    data[at] = (19595 * data[at] + 38470 * data[at + 1] + 7471 * data[at + 2] + 32768) >> 16;
  }
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const cubic = (far) => {
  const sharp = given.preprocessing.antialias ? -0.5 : -0.75;
  if (far <= 1) return ((sharp + 2) * far - (sharp + 3)) * far * far + 1;
  return far < 2 ? ((far - 5) * far + 8) * far * sharp - 4 * sharp : 0;
};
// By name: how far an old pixel may be from a new one, and what it then weighs.
const KERNELS = {
  bilinear: [1, (far) => Math.max(1 - far, 0)],
  bicubic: [2, cubic],
  lanczos: [3, (far) => (far < 3 ? sinc(far) * sinc(far / 3) : 0)],
};

// For every new pixel of a line, the first of the old ones that it is made of, and their weights, which sum to one.
function tapsOf(old, now) {
  const { interpolation, antialias } = given.preprocessing;
  const [reach, kernel] = KERNELS[interpolation] ?? [];
  const wide = antialias || interpolation === "lanczos";
  const step = wide ? Math.max(old / now, 1) : 1;
  return Array.from({ length: now }, (_, place) => {
    const center = (old / now) * (place + 0.5);
    if (!kernel) return { first: Math.floor(center), weights: [1] }; // the nearest
    const [from, to] = [-reach, reach].map((far) => Math.floor(center + far * step + 0.5));
    const [first, last] = [Math.max(from, 0), Math.min(to, old) - 1];
    const weights = new Float64Array(last + 1 - first);
    for (let at = from; at < to; at += 1) {
      const inside = Math.min(Math.max(at, first), last); // what lies outside is nothing, or else the border's
      if (at === inside || !wide) weights[inside - first] += kernel(Math.abs(at + 0.5 - center) / step);
    }
    const sum = weights.reduce((one, other) => one + other);
    return { first, weights: weights.map((weight) => weight / sum) };
  });
}

const isWhole = () => given.preprocessing.antialias && given.preprocessing.interpolation.startsWith("bi");

// Make weights whole, with as many bits as 16 hold; give how many.
function makeWhole(taps) {
  const largest = Math.max(...taps.map(({ weights }) => Math.max(...weights)));
  let bits = 0;
  while (bits < 22 && Math.floor(0.5 + largest * 2 ** (bits + 1)) < 1 << 15) bits += 1;
  for (const tap of taps) tap.weights = tap.weights.map((weight) => Math.trunc(weight * 2 ** bits + 0.5 * Math.sign(weight)));
  return bits;
}

// Resize an axis of pixels, in lines whose places are `inner` numbers each: the middle `cut` places become `large`, and the
// middle `kept` of those are written.
function resizeAxis(to, from, inner, { length, cut, large, kept }) {
  const taps = tapsOf(cut, large);
  const bits = isWhole() ? makeWhole(taps) : 0;
  const lines = from.length / length / inner;
  for (let place = 0; place < kept; place += 1) {
    const { first, weights } = taps[place + ((large - kept) >> 1)];
    for (let line = 0; line < lines; line += 1) {
      for (let each = 0; each < inner; each += 1) {
        let sum = bits ? 1 << (bits - 1) : 0;
        let at = (line * length + ((length - cut) >> 1) + first) * inner + each;
        for (let tap = 0; tap < weights.length; tap += 1, at += inner) sum += weights[tap] * from[at];
        to[(line * kept + place) * inner + each] = bits ? sum >> bits : sum; // bytes round real numbers, halves to even
      }
    }
  }
  return to;
}

const roundEven = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

// How each axis is resized: height, then width. Of a very long image, the far ends that no middle reads are cut first.
function axesOf({ width, height }) {
  const { size, before, preprocessing } = given;
  const crop = preprocessing.resize === "crop";
  const most = crop ? [(8 * width * size[0]) / size[1], (8 * height * size[1]) / size[0]].map(Math.ceil) : [Infinity, Infinity];
  const cuts = [Math.min(height, most[0]), Math.min(width, most[1])];
  const shorter = Math.min(...cuts);
  const side = Math.ceil(shorter * Math.max(before[0] / cuts[0], before[1] / cuts[1]) - 1e-6);
  return [height, width].map((length, axis) => {
    const large = crop ? Math.max(roundEven(cuts[axis] * (side / shorter)), 1) : before[axis];
    return { length, cut: cuts[axis], large, kept: size[axis] };
  });
}

// The levels that the model reads.
function readLevels({ width, height, data }) {
  const [down, across] = axesOf({ width, height });
  const wide = new (isWhole() ? Uint8ClampedArray : Float64Array)(height * across.kept * 4);
  resizeAxis(wide, data, 4, across);
  return resizeAxis(new Uint8ClampedArray(down.kept * across.kept * 4), wide, 4 * across.kept, down);
}

// The part of a picture that the model reads, to be shown.
function pictureOf(bitmap) {
  const [tall, wide] = axesOf(bitmap).map(({ length, cut, large, kept }) => [length, (kept / large) * cut]);
  const scale = Math.min(SHOWN / Math.max(tall[1], wide[1]), 1);
  const [height, width] = [tall, wide].map(([, part]) => Math.max(Math.round(part * scale), 1));
  const canvas = make("canvas", { width, height });
  const ink = canvas.getContext("2d");
  ink.fillStyle = "#fff";
  ink.fillRect(0, 0, width, height);
  ink.imageSmoothingQuality = "high";
  const [left, top] = [wide, tall].map(([length, part]) => (length - part) / 2);
  ink.drawImage(bitmap, left, top, wide[1], tall[1], 0, 0, width, height);
  return { src: canvas.toDataURL(scale < 1 ? "image/jpeg" : "image/png", 0.9), height, width };
}
