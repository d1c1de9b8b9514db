// Curves over the steps of a run.

const kLineColors = ["var(--accent)", "var(--dispatch)", "var(--vocab)", "var(--attention)", "var(--boundary)", "var(--routing)"];

// lines: [{name, x: [], y: [], smooth, points}]
function lineChart(holder, lines, options = {}) {
  const finite = lines.map((line, n) => {
    const kept = line.x.map((x, i) => [x, line.y[i]]).filter(([, y]) => typeof y === "number" && isFinite(y));
    return {...line, color: kLineColors[n % kLineColors.length], x: kept.map(([x]) => x), y: kept.map(([, y]) => y)};
  }).filter((line) => line.x.length > 0);
  const text = options.text || numberText;
  const plot = el("div");
  holder.append(plot);
  if (finite.length > 1) holder.append(el("div", {class: "legend"}, finite.map((line) => el("span", {class: "scale"}, swatch(line.color), line.name))));
  const all = finite.flatMap((line) => line.y), xs = finite.flatMap((line) => [line.x[0], line.x.at(-1)]);
  if (all.length === 0) return;
  let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  if (options.zero) low = Math.min(0, low);
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  low = low === 0 && options.zero ? 0 : low - pad, high += pad;
  const xLow = Math.min(...xs), xHigh = Math.max(...xs);

  responsive(plot, (width) => {
    const left = 62, right = 12, top = 8, height = options.height || 150, bottom = top + height;
    const x = linear(xLow, xHigh, left, width - right), y = linear(low, high, bottom, top);
    const svg = svgEl("svg", {viewBox: `0 0 ${width} ${bottom + 22}`, height: bottom + 22, role: "img", "aria-label": options.label || ""});
    for (const tick of ticksOf(low, high, 5))
      svg.append(svgEl("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
        svgEl("text", {x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, tickText(tick)));
    for (const tick of ticksOf(xLow, xHigh, Math.max(2, width / 90)).filter(Number.isInteger))
      svg.append(svgEl("text", {x: x(tick), y: bottom + 17, "text-anchor": "middle"}, countText(tick)));
    for (const line of finite) {
      const path = (values) => `M${values.map((value, i) => `${x(line.x[i]).toFixed(1)},${y(value).toFixed(1)}`).join("L")}`;
      const smooth = line.smooth && line.y.length >= 40;
      svg.append(svgEl("path", {class: smooth ? "raw" : "line", stroke: line.color, d: path(line.y)}));
      if (smooth) svg.append(svgEl("path", {class: "line", stroke: line.color, d: path(smoothed(line.y))}));
      if (line.points || line.y.length === 1)
        line.y.forEach((value, i) => svg.append(svgEl("circle", {cx: x(line.x[i]), cy: y(value), r: 3, fill: line.color, stroke: "var(--card)", "stroke-width": 1.5})));
    }
    const cross = svgEl("line", {class: "cross", y1: top, y2: bottom, visibility: "hidden"});
    const cover = svgEl("rect", {x: left, y: top, width: Math.max(0, width - left - right), height, fill: "transparent",
      onpointerleave: () => { tooltip.hide(); cross.setAttribute("visibility", "hidden"); },
      onpointermove: (event) => {
        const here = x.inverse(event.clientX - svg.getBoundingClientRect().left);
        const near = finite.map((line) => {
          const i = lastAtMost(line.x, here), next = Math.min(i + 1, line.x.length - 1);
          return [line, here - line.x[i] > line.x[next] - here ? next : i];
        });
        const step = near[0][0].x[near[0][1]];
        cross.setAttribute("x1", x(step)), cross.setAttribute("x2", x(step)), cross.setAttribute("visibility", "visible");
        tooltip.show(event, el("div", {class: "when"}, `step ${countText(step)}`), el("table", {}, near.map(([line, i]) => el("tr", {},
          el("td", {}, finite.length > 1 ? swatch(line.color) : null, line.name), el("td", {}, text(line.y[i])),
          line.x[i] !== step ? el("td", {class: "when"}, `step ${countText(line.x[i])}`) : null))));
      }});
    svg.append(svgEl("line", {class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom}), cross, cover);
    plot.replaceChildren(svg);
  });

  function tickText(tick) {
    if (options.text) return roundText(options.text(tick));
    const size = Math.abs(tick);
    return size >= 1e4 ? roundText(numberText(tick)) : size !== 0 && size < 1e-2 ? (+tick.toPrecision(3)).toExponential() : String(+tick.toPrecision(6));
  }
}

// The mean of as many values before as after, about a fiftieth of all; fewer towards the ends, so that it never lags.
function smoothed(values) {
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1) + value);
  const most = Math.max(2, Math.round(values.length / 50));
  return values.map((_, i) => {
    const reach = Math.min(most, i, values.length - 1 - i);
    return (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1);
  });
}

function curvesCard() {
  const history = content.history;
  if (!history || history.step.length === 0) return [];
  const {columns, step} = history, sections = [];
  const add = (title, lines, options) => {
    const shown = lines.filter((line) => line.y && line.y.some((value) => typeof value === "number"));
    if (shown.length === 0) return;
    const holder = el("div", {}, el("h3", {}, title));
    lineChart(holder, shown, {label: title, ...options});
    sections.push(holder);
  };
  const of = (key, name) => ({name: name || key, x: step, y: columns[key], smooth: true});
  const sets = Object.entries(history.validation);
  add("Loss, nats per token", [of("loss", "training"), ...(sets.length === 1 ? validationLines("loss") : [])]);
  if (sets.length > 1) add("Validation loss", validationLines("loss"));
  add("Tokens per second, all ranks", [of("tokens_per_s", "tokens/s")], {zero: true});
  add("Model TFLOP/s, all ranks", [of("tflops", "TFLOP/s")], {zero: true});
  add("Gradient norm, before clipping", [of("grad_norm", "norm")], {zero: true});
  add("Learning rate", [{...of("lr", "rate"), smooth: false}], {zero: true});
  add("Seconds a step", [of("step_s", "step"), of("data_wait_s", "waiting for data")], {zero: true});
  add("Seconds that saving holds a step up", [{...of("checkpoint/stall_s", "stall"), smooth: false}], {zero: true});
  add("Fullest expert, times the mean", [of("moe/load_max_over_mean", "max ÷ mean")], {zero: true});
  add("Unevenness of experts", [of("moe/load_cv", "deviation ÷ mean"), of("moe/dead_expert_frac", "share without tokens")], {zero: true});
  add("Router entropy, of its maximum", [of("moe/router_entropy", "entropy")]);
  add("Largest expert bias", [{...of("moe/bias_max_abs", "bias"), smooth: false}], {zero: true});
  const known = /^(loss|tokens_per_s|tflops|grad_norm|lr|step_s|data_wait_s|tokens|target_tokens|num_ranks|time_left_s|peak_bytes|plan_peak_bytes|host_bytes|checkpoint\/stall_s|moe\/(load_.*|dead_expert_frac|router_entropy|bias_max_abs))$/;
  for (const key of Object.keys(columns).filter((name) => !known.test(name))) add(key, [of(key)]);
  return [el("section", {class: "card", id: "curves"}, el("div", {class: "head", style: "margin-bottom:12px"}, el("h2", {}, "Training")),
    el("div", {class: "multiples"}, sections))];

  function validationLines(key) {
    return sets.map(([name, results]) => ({name: sets.length === 1 ? "validation" : name, x: results.step, y: results[key], points: results.step.length < 60}));
  }
}

// Who held the peak, step by step.
function peaksCard() {
  const history = content.history, entries = history ? Object.entries(history.peak_by_category) : [];
  if (entries.length === 0 || history.step.length < 2) return [];
  const holder = el("div"), planned = plannedPeak();
  const used = entries.filter(([, bytes]) => bytes.some((value) => value > 0));
  stackedChart(holder, {
    x: history.step, xName: "step", stepped: false, categories: used.map(([name, bytes]) => ({name, bytes})),
    lines: planned ? [{bytes: planned, text: `planned ${bytesText(planned)}`}] : [], xText: (step) => `step ${countText(step)}, fullest rank`,
  }, {height: 180, label: "peak memory of every step by category"});
  return [el("section", {class: "card", id: "peaks"}, el("div", {class: "head"}, el("h2", {}, "Peak memory of every step")),
    el("p", {class: "sub"}, "What the fullest rank held at the peak of each step."), holder)];
}
