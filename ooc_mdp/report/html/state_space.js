// Draws the chosen field over two axes of a thinned grid; the other axes stand where their sliders do.
// Arguments: numbers {name: array}, of_partition {name: bool}, owner, shape, axes, units, positions, palettes,
// and the models source, field, across, up, sliders, mapper, x_axis, y_axis, x_range, y_range, note.

if (across.value === up.value) {
  const other = cb_obj === up ? across : up;
  other.value = axes.find((name) => name !== cb_obj.value);  // which calls this function again
  return;
}
const i = axes.indexOf(across.value);
const j = axes.indexOf(up.value);
const stride = shape.map((_, k) => shape.slice(k + 1).reduce((p, q) => p * q, 1));
let base = 0;
sliders.forEach((slider, k) => {
  const at = positions[k][slider.value];
  slider.title = `${axes[k]} = ${Number(at.toPrecision(4))} ${units[k]}`;
  slider.visible = k !== i && k !== j;
  if (slider.visible) base += slider.value * stride[k];
});

const name = field.value;
const all = numbers[name];
const cell = of_partition[name] ? (c) => all[owner[c]] : name === "policy" ? (c) => (all[c] < 0 ? NaN : all[c]) : (c) => all[c];
const width = shape[i];
const height = shape[j];
const values = new Float32Array(width * height);
for (let y = 0; y < height; y++) {
  for (let x = 0; x < width; x++) values[y * width + x] = cell(base + x * stride[i] + y * stride[j]);
}
let low = Infinity;
let high = -Infinity;
for (const v of name === "policy" || scale.value === "whole grid" ? all : values) {
  if (Number.isFinite(v) && !(name === "policy" && v < 0)) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
}
if (low > high) { low = 0; high = 1; }
if (low === high) high = low + (Math.abs(low) || 1);
mapper.palette = name === "policy" ? palettes.policy : palettes.number;
mapper.low = name === "policy" ? -0.5 : low;
mapper.high = name === "policy" ? palettes.policy.length - 0.5 : high;

const cell_width = (k) => (shape[k] > 1 ? (positions[k][shape[k] - 1] - positions[k][0]) / (shape[k] - 1) : 1);
const edge = (k) => positions[k][0] - cell_width(k) / 2;
const length = (k) => cell_width(k) * shape[k];
const Image = source.data.image[0].constructor;
source.data = { image: [new Image(values, [height, width])], x: [edge(i)], y: [edge(j)], dw: [length(i)], dh: [length(j)] };
x_axis.axis_label = units[i] ? `${axes[i]} [${units[i]}]` : axes[i];
y_axis.axis_label = units[j] ? `${axes[j]} [${units[j]}]` : axes[j];
x_range.setv({ start: edge(i), end: edge(i) + length(i) });
y_range.setv({ start: edge(j), end: edge(j) + length(j) });
