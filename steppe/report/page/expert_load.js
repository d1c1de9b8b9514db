// Where tokens went: experts against layers, at a step of the run.

function expertLoadCard() {
  const load = content.history && content.history.load;
  if (!load || load.steps.length === 0) {
    const routed = content.history && (content.history.columns["moe/load_max_over_mean"] || []).length > 0;
    return routed ? [el("section", {class: "card", id: "load"}, el("div", {class: "head"}, el("h2", {}, "Expert load")),
      el("p", {class: "sub"}, "Loads of single experts were not kept: with logging.moe = \"detailed\" they are."))] : [];
  }
  const canvas = el("canvas"), caption = el("p", {class: "sub"});
  const slider = el("input", {type: "range", min: 0, max: load.steps.length - 1, value: load.steps.length - 1, "aria-label": "step", oninput: () => draw()});
  const label = el("span", {class: "quiet"});
  let drawn;

  function draw() {
    drawn = load.values[slider.value];
    label.textContent = `step ${countText(load.steps[slider.value])}`;
    const rows = drawn.length, cols = Math.max(...drawn.map((layer) => layer.length));
    canvas.width = cols, canvas.height = rows;
    canvas.style.height = `${Math.max(48, Math.min(520, rows * Math.max(4, Math.min(26, 260 / rows))))}px`;
    const style = getComputedStyle(document.documentElement), color = (name) => rgb(style.getPropertyValue(name));
    const [low, mid, high, none] = ["--low", "--mid", "--high", "--none"].map(color);
    const pixels = canvas.getContext("2d"), image = pixels.createImageData(cols, rows);
    drawn.forEach((layer, row) => layer.forEach((hundredths, col) => {
      // Twice the mean is as far from it as half.
      const away = hundredths > 0 ? Math.max(-1, Math.min(1, Math.log2(hundredths / 100) / 2)) : 0;
      const shade = hundredths === 0 ? none : mix(mid, away < 0 ? low : high, Math.abs(away));
      image.data.set([...shade, 255], 4 * (row * cols + col));
    }));
    pixels.putImageData(image, 0, 0);
    const flat = drawn.flat(), idle = flat.filter((value) => value === 0).length;
    caption.textContent = `Tokens of each expert, against the mean of its layer. Fullest: ${(flat.reduce((most, value) => Math.max(most, value), 0) / 100).toFixed(2)} times the mean. ` +
      `${idle === 0 ? "Every expert had tokens." : `${countText(idle)} of ${countText(flat.length)} experts had none.`}`;
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * canvas.height), col = Math.floor((event.clientX - box.left) / box.width * canvas.width);
    const hundredths = drawn[row] && drawn[row][col];
    if (hundredths === undefined) return tooltip.hide();
    tooltip.show(event, el("div", {class: "when"}, `MoE layer ${row}, expert ${col}`),
      el("div", {class: "total"}, hundredths === 0 ? "no tokens" : `${(hundredths / 100).toFixed(2)} × mean`));
  });
  canvas.addEventListener("pointerleave", () => tooltip.hide());
  document.addEventListener("theme", draw);
  draw();
  return [el("section", {class: "card", id: "load"},
    el("div", {class: "head"}, el("h2", {}, "Expert load"), el("span", {class: "space"}), load.steps.length > 1 ? [slider, label] : label), caption,
    el("div", {class: "heat"}, el("span", {class: "rows"}, "MoE layer"), canvas, el("span"), el("span", {class: "cols"}, `expert 0 to ${canvas.width - 1}`)),
    el("div", {style: "margin-top:8px"}, el("span", {class: "scale"}, "¼ of the mean", el("i", {style: "background:linear-gradient(90deg,var(--low),var(--mid),var(--high))"}),
      "4 times", swatch("var(--none)"), "none")))];
}

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.trim().slice(at, at + 2), 16));
const mix = (from, to, share) => from.map((value, i) => Math.round(value + (to[i] - value) * share));
