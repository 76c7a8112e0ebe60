// The products on a graphics card, where the browser has WebGPU: taken if it gives what plain JavaScript gives, and sooner.

const TILE = 16; // rows and columns that a group of threads makes together
const KERNEL = `
@group(0) @binding(0) var<storage, read> a: array<f32>; // rows x depth
@group(0) @binding(1) var<storage, read> b: array<f32>; // columns x depth
@group(0) @binding(2) var<storage, read_write> out: array<f32>; // rows x columns
@group(0) @binding(3) var<uniform> size: vec4u; // rows, columns, depth
var<workgroup> partOfA: array<array<f32, ${TILE}>, ${TILE}>;
var<workgroup> partOfB: array<array<f32, ${TILE}>, ${TILE}>;

@compute @workgroup_size(${TILE}, ${TILE})
fn product(@builtin(local_invocation_id) own: vec3u, @builtin(workgroup_id) group: vec3u) {
  let row = group.y * ${TILE} + own.y;
  let column = group.x * ${TILE} + own.x;
  let brought = min(group.x * ${TILE} + own.y, size.y - 1); // the row of b that this thread brings
  var sum = 0.0;
  for (var start = 0u; start < size.z; start += ${TILE}) {
    let at = min(start + own.x, size.z - 1);
    partOfA[own.y][own.x] = select(0.0, a[min(row, size.x - 1) * size.z + at], start + own.x < size.z);
    partOfB[own.y][own.x] = b[brought * size.z + at];
    workgroupBarrier();
    for (var inside = 0u; inside < ${TILE}; inside += 1) { sum += partOfA[own.y][inside] * partOfB[own.x][inside]; }
    workgroupBarrier();
  }
  if (row < size.x && column < size.y) { out[row * size.y + column] = sum; }
}`;

// What draws here; a browser that draws in software has no card, and would complain if it were asked for one.
function drawer() {
  const ink = document.createElement("canvas").getContext("webgl2");
  return ink?.getParameter(ink.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL ?? ink.RENDERER) ?? "software";
}

// The product of a graphics card; it throws where there is none.
async function startCard() {
  if (/software|swiftshader|llvmpipe/i.test(drawer())) throw new Error("there is no graphics card");
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const compute = { module: device.createShaderModule({ code: KERNEL }), entryPoint: "product" };
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute });
  const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const filled = (numbers, usage) => {
    const buffer = device.createBuffer({ size: numbers.byteLength, usage: usage | COPY_DST });
    device.queue.writeBuffer(buffer, 0, numbers);
    return buffer;
  };
  const brought = new Map(); // weights that are on the card
  return async (a, rows, b, columns, depth) => {
    for (const kind of ["validation", "out-of-memory", "internal"]) device.pushErrorScope(kind);
    if (!brought.has(b)) brought.set(b, filled(b, STORAGE));
    const size = 4 * rows * columns;
    const out = device.createBuffer({ size, usage: STORAGE | COPY_SRC });
    const back = device.createBuffer({ size, usage: MAP_READ | COPY_DST });
    const own = [filled(a, STORAGE), out, filled(Uint32Array.of(rows, columns, depth, 0), UNIFORM)];
    const entries = [own[0], brought.get(b), out, own[2]].map((buffer, binding) => ({ binding, resource: { buffer } }));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
    pass.dispatchWorkgroups(Math.ceil(columns / TILE), Math.ceil(rows / TILE));
    pass.end();
    encoder.copyBufferToBuffer(out, 0, back, 0, size);
    device.queue.submit([encoder.finish()]);
    const errors = await Promise.all([1, 2, 3].map(() => device.popErrorScope()));
    if (errors.some(Boolean)) throw new Error("the graphics card refused");
    await back.mapAsync(GPUMapMode.READ);
    const numbers = new Float32Array(back.getMappedRange().slice(0));
    for (const buffer of [...own, back]) buffer.destroy();
    return numbers;
  };
}

// Try the card at a product of the model; where it later fails, plain JavaScript takes over.
async function tryCard() {
  const { tokens, width, weights } = given;
  const name = "blocks.0.mlp.expand.weight";
  const input = Float32Array.from({ length: tokens * width }, (_, at) => Math.sin(at));
  const job = [input, tokens, held.get(name), weights[name][2], width];
  const timed = async (work) => [performance.now(), await work(...job), performance.now()];
  try {
    let card = await startCard();
    await card(...job); // which brings the weight
    const [[start, found, end], [plainStart, expected, plainEnd]] = [await timed(card), await timed(multiplyHere)];
    const most = expected.reduce((one, other) => Math.max(one, Math.abs(other)), 0);
    const same = found.every((number, at) => Math.abs(number - expected[at]) <= 1e-5 * most);
    if (!same || end - start > plainEnd - plainStart) return;
    multiplyElsewhere = (...work) => card(...work).catch(() => ((multiplyElsewhere = null), multiplyHere(...work)));
  } catch {} // there is none, or it cannot
}
