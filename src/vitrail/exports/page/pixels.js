// From a file to the levels that the model reads, as `vitrail predict` makes them: the browser decodes; what follows is
// done here, in whole numbers, with the weights that torch takes for bytes. Images are {height, width, channels, levels},
// row by row, a pixel's channels side by side.

const BAND = 1 << 22; // pixels that are read at once
const BITS = 15; // of a whole weight, without its sign
const MOST_BITS = 22;
const UNREADABLE = "This is no image that the browser can read. JPEG, PNG, WebP, GIF, BMP and AVIF are.";

// Decode a file: its picture, to be shown, and its levels. A large JPEG is read at a half, a quarter or an eighth where
// both sides stay `least` pixels, as `predict` reads it.
async function decode(file, least, channels) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(file, options).catch(() => Promise.reject(new Error(UNREADABLE)));
  const fits = (by) => bitmap.width >= by * least && bitmap.height >= by * least;
  const shrink = least > 0 && (await isUprightJpeg(file)) ? ([8, 4, 2].find(fits) ?? 1) : 1;
  const small = shrink > 1 ? await decodeSmaller(file, bitmap, shrink) : null;
  return { bitmap, image: small ? readLevels(small, 1, channels) : readLevels(bitmap, shrink, channels) };
}

// Let the browser's decoder of JPEG give a smaller picture by itself, exactly as `predict` has it; null where it cannot.
async function decodeSmaller(file, bitmap, shrink) {
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.ceil(side / shrink));
  try {
    const how = { type: "image/jpeg", colorSpaceConversion: "none", desiredWidth: width, desiredHeight: height };
    const decoder = new ImageDecoder({ data: await file.arrayBuffer(), ...how });
    const { image } = await decoder.decode();
    const data = new Uint8ClampedArray(4 * width * height);
    const fits = image.codedWidth === width && image.codedHeight === height;
    if (fits) await image.copyTo(data, { format: "RGBA" });
    image.close();
    decoder.close();
    return fits ? await createImageBitmap(new ImageData(data, width, height)) : null;
  } catch {
    return null; // a browser without it, or without this format
  }
}

// Whether a file is a JPEG whose camera was held upright: its Exif says 1, or nothing.
async function isUprightJpeg(file) {
  const head = new DataView(await file.slice(0, 1 << 18).arrayBuffer());
  try {
    if (head.getUint16(0) !== 0xffd8) return false;
    for (let at = 2; head.getUint16(at) !== 0xffda; at += 2 + head.getUint16(at + 2)) {
      if (head.getUint16(at) !== 0xffe1 || head.getUint32(at + 4) !== 0x45786966) continue; // "Exif"
      const start = at + 10;
      const little = head.getUint16(start) === 0x4949;
      const list = start + head.getUint32(start + 4, little);
      for (let entry = list + 2; entry < list + 2 + 12 * head.getUint16(list, little); entry += 12) {
        const held = head.getUint16(entry, little) === 0x0112 ? head.getUint16(entry + 8, little) : 1;
        if (held >= 2 && held <= 8) return false;
      }
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // a header that ends too soon says nothing
  }
  return head.byteLength > 1 && head.getUint16(0) === 0xffd8;
}

// Read a picture on white, band by band, since a canvas has a largest size. Squares of `shrink` pixels become their mean,
// which decoders of JPEG give too, but for the rounding of what the file keeps: brightness and two colours.
function readLevels(bitmap, shrink, channels) {
  const [height, width] = [bitmap.height, bitmap.width].map((side) => Math.ceil(side / shrink));
  const levels = new Uint8ClampedArray(height * width * channels);
  const rows = Math.min(Math.max(Math.floor(BAND / bitmap.width / 8), 1) * 8, bitmap.height);
  const ink = new OffscreenCanvas(bitmap.width, rows).getContext("2d", { willReadFrequently: true });
  ink.fillStyle = "#fff";
  for (let top = 0; top < bitmap.height; top += rows) {
    const count = Math.min(rows, bitmap.height - top);
    ink.fillRect(0, 0, bitmap.width, count);
    ink.drawImage(bitmap, 0, top, bitmap.width, count, 0, 0, bitmap.width, count);
    const { data } = ink.getImageData(0, 0, bitmap.width, count);
    for (let row = 0; row * shrink < count; row += 1) {
      for (let column = 0; column < width; column += 1) {
        const bottom = Math.min((row + 1) * shrink, count);
        const right = Math.min((column + 1) * shrink, bitmap.width);
        const pixels = (bottom - row * shrink) * (right - column * shrink);
        let red = 0;
        let green = 0;
        let blue = 0;
        for (let y = row * shrink; y < bottom; y += 1) {
          for (let x = column * shrink; x < right; x += 1) {
            const at = 4 * (y * bitmap.width + x);
            red += data[at];
            green += data[at + 1];
            blue += data[at + 2];
          }
        }
        if (shrink > 1) [red, green, blue] = asKept(red / pixels, green / pixels, blue / pixels);
        const to = channels * ((top / shrink + row) * width + column);
        if (channels === 3) {
          levels[to] = red;
          levels[to + 1] = green;
          levels[to + 2] = blue;
        } else levels[to] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16; // ITU-R 601
      }
    }
  }
  return { height, width, channels, levels };
}

// Round a colour as a JPEG does: brightness and two colours are whole (ITU-R 601), and so is what becomes of them.
function asKept(red, green, blue) {
  const light = 0.299 * red + 0.587 * green + 0.114 * blue;
  const [bright, toBlue, toRed] = [light, (blue - light) / 1.772, (red - light) / 1.402].map(Math.round);
  const made = [bright + 1.402 * toRed, bright - 0.344136 * toBlue - 0.714136 * toRed, bright + 1.772 * toBlue];
  return made.map((level) => Math.min(Math.max(Math.round(level), 0), 255));
}

// Cut out the middle.
function middle(image, height, width) {
  const { channels } = image;
  const [top, left] = [(image.height - height) >> 1, (image.width - width) >> 1];
  const levels = new Uint8ClampedArray(height * width * channels);
  for (let row = 0; row < height; row += 1) {
    const start = ((top + row) * image.width + left) * channels;
    levels.set(image.levels.subarray(start, start + width * channels), row * width * channels);
  }
  return { height, width, channels, levels };
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const triangle = (x) => Math.max(1 - Math.abs(x), 0);
const lanczos = (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0);
const cubic = (sharpness) => (x) => {
  const far = Math.abs(x);
  if (far <= 1) return ((sharpness + 2) * far - (sharpness + 3)) * far * far + 1;
  return far < 2 ? ((far - 5) * far + 8) * far * sharpness - 4 * sharpness : 0;
};
// By name: how far the kernel reaches, the kernel, and the kernel without antialiasing.
const KERNELS = { nearest: [0], bilinear: [1, triangle, triangle], bicubic: [2, cubic(-0.5), cubic(-0.75)], lanczos: [3, lanczos] };

// For every new pixel, the first of the old ones that it is made of, and their weights.
function tapsOf(old, now, how, antialias) {
  const [reach, kernel, sharp] = KERNELS[how];
  const scale = old / now;
  return Array.from({ length: now }, (_, place) => {
    const center = scale * (place + 0.5);
    if (how === "nearest") return { first: Math.min(Math.floor(center), old - 1), weights: [1] };
    const wide = antialias || how === "lanczos";
    const step = wide ? Math.max(scale, 1) : 1;
    let first = Math.floor(center - reach * step + 0.5);
    let last = Math.floor(center + reach * step + 0.5);
    if (wide) [first, last] = [Math.max(first, 0), Math.min(last, old)];
    const weights = new Array(Math.min(last, old) - Math.max(first, 0)).fill(0);
    for (let at = first; at < last; at += 1) {
      const inside = Math.min(Math.max(at, 0), old - 1) - Math.max(first, 0); // what lies outside is the border's
      weights[inside] += (wide ? kernel : sharp)((at + 0.5 - center) / step);
    }
    const sum = weights.reduce((one, other) => one + other, 0);
    return { first: Math.max(first, 0), weights: Float64Array.from(weights, (weight) => weight / sum) };
  });
}

// Make weights whole, with as many bits as 16 hold; give how many.
function makeWhole(taps) {
  const largest = Math.max(...taps.map(({ weights }) => Math.max(...weights)));
  let bits = 0;
  while (bits < MOST_BITS && Math.floor(0.5 + largest * 2 ** (bits + 1)) < 1 << BITS) bits += 1;
  for (const tap of taps) tap.weights = tap.weights.map((weight) => Math.trunc(weight * 2 ** bits + (weight < 0 ? -0.5 : 0.5)));
  return bits;
}

// Resize to a height and a width: first along the rows, then along the columns.
function resize(image, height, width, { interpolation, antialias }) {
  if (image.height === height && image.width === width) return image;
  const whole = antialias && (interpolation === "bilinear" || interpolation === "bicubic");
  const pass = (from, Kind, lines, old, now, inner) => {
    const taps = tapsOf(old, now, interpolation, antialias);
    const bits = whole ? makeWhole(taps) : 0;
    const to = new Kind(lines * now * inner);
    const half = bits ? 1 << (bits - 1) : 0;
    for (let line = 0; line < lines; line += 1) {
      for (let place = 0; place < now; place += 1) {
        const { first, weights } = taps[place];
        for (let each = 0; each < inner; each += 1) {
          let sum = half;
          let at = (line * old + first) * inner + each;
          for (let tap = 0; tap < weights.length; tap += 1, at += inner) sum += weights[tap] * from[at];
          to[(line * now + place) * inner + each] = whole ? sum >> bits : sum; // bytes round real numbers, halves to even
        }
      }
    }
    return to;
  };
  const { channels } = image;
  const across = pass(image.levels, whole ? Uint8ClampedArray : Float64Array, image.height, image.width, width, channels);
  return { height, width, channels, levels: pass(across, Uint8ClampedArray, 1, image.height, height, width * channels) };
}

const roundEven = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

// What the model reads of an image, and which share of its height and width that is, in the middle.
function evaluationImage(image, { size, before, preprocessing }) {
  if (preprocessing.resize === "squash") {
    const read = middle(resize(image, ...before, preprocessing), ...size);
    return { read, share: [size[0] / before[0], size[1] / before[1]] };
  }
  const [rows, columns] = [Math.ceil((8 * image.width * size[0]) / size[1]), Math.ceil((8 * image.height * size[1]) / size[0])];
  const cut = middle(image, Math.min(image.height, rows), Math.min(image.width, columns)); // no middle reads such far ends
  const shorter = Math.min(cut.height, cut.width);
  const side = Math.ceil(shorter * Math.max(before[0] / cut.height, before[1] / cut.width) - 1e-6);
  const large = [cut.height, cut.width].map((length) => Math.max(roundEven(length * (side / shorter)), 1));
  const share = [(size[0] / large[0]) * (cut.height / image.height), (size[1] / large[1]) * (cut.width / image.width)];
  return { read: middle(resize(cut, ...large, preprocessing), ...size), share };
}
