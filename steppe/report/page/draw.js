// Words for numbers, elements, scales, and the tooltip.
const content = JSON.parse(document.getElementById("content").textContent);

// From the bottom of a stack up: what persists, what is kept between the passes, what comes and goes.
const kStack = ["before the recording", "weights", "optimizer", "grads", "boundary", "saved", "gathered", "residual", "attention",
  "routing", "dispatch", "expert", "ffn", "vocab", "staging", "batch", "control", "untagged"];
const stackOrder = (name) => (kStack.indexOf(name) + kStack.length + 1) % (kStack.length + 1);
const colorOf = (name) => kStack.includes(name) ? `var(--${name === kStack[0] ? "before" : name})` : "var(--untagged)";

function bytesText(bytes) {
  const size = Math.abs(bytes), units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (unit + 1 < units.length && size >= 1024 ** (unit + 1)) ++unit;
  const value = size / 1024 ** unit;
  const digits = unit === 0 || value >= 1000 ? 0 : value >= 100 ? 1 : 2;
  return `${bytes < 0 ? "−" : ""}${value.toFixed(digits)} ${units[unit]}`;
}

function threeDigits(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

function numberText(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size < 1e21) {
    for (const [unit, letter] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
      if (size >= unit) return `${threeDigits(value / unit)} ${letter}`;
    }
  }
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  if (size >= 100 || Number.isInteger(value)) return value.toLocaleString("en", {maximumFractionDigits: 0});
  return size !== 0 && size < 1e-2 ? value.toExponential(2) : value.toPrecision(4);
}

// Of an axis: "1.50 M" is "1.5 M", "20.00 MiB" is "20 MiB".
const roundText = (text) => text.replace(/(\.\d*?)0+(?= )/, "$1").replace(/\.(?= )/, "");
const countText = (value) => value.toLocaleString("en");
const shareText = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–";

// el("div", {class: "card", onclick: f}, child, "text", …)
function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const el = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
const svgEl = (name, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const swatch = (color) => el("span", {class: "swatch", style: `background:${color}`});

function linear(fromLow, fromHigh, toLow, toHigh) {
  const scale = fromHigh === fromLow ? 0 : (toHigh - toLow) / (fromHigh - fromLow);
  const map = (value) => toLow + (value - fromLow) * scale;
  map.inverse = (position) => scale === 0 ? fromLow : fromLow + (position - toLow) / scale;
  return map;
}

// Round values from low to high, about `count` of them; steps are 1, 2, 5 times a power of 10 times `unit`.
function ticksOf(low, high, count, unit = 1) {
  const rough = (high - low) / count / unit;
  if (!(rough > 0) || !isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power * unit;
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(value);
  return ticks;
}
const byteUnit = (high) => 1024 ** Math.max(0, Math.min(5, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024))));

// The index of the last element ≤ value in a rising array; 0 where all are above.
function lastAtMost(array, value) {
  let low = 0, high = array.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (array[middle] <= value) low = middle; else high = middle - 1;
  }
  return low;
}

const tooltip = {
  box: null,
  show(event, ...children) {
    if (!this.box) document.body.append(this.box = el("div", {class: "tooltip"}));
    this.box.replaceChildren(...children.flat().filter((child) => child));
    this.box.style.display = "block";
    const {width, height} = this.box.getBoundingClientRect();
    const left = event.clientX + 18 + width > innerWidth ? event.clientX - 18 - width : event.clientX + 18;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, Math.min(event.clientY - height / 2, innerHeight - height - 8))}px`;
  },
  hide() { if (this.box) this.box.style.display = "none"; },
};

// Every chart is drawn for the width that it has: at once, or where it is not in the page yet, by drawCharts; and again
// when the width changes, then in the next frame: drawing within the observer's call would change sizes that it tells of.
const undrawn = [];
function responsive(holder, draw) {
  let width = 0;
  const fit = () => { if (holder.clientWidth > 0 && holder.clientWidth !== width) draw(width = holder.clientWidth); };
  holder.isConnected ? fit() : undrawn.push(fit);
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(holder);
  return () => { if (width > 0) draw(width); };
}
function drawCharts() {
  for (const fit of undrawn.splice(0)) fit();
}
