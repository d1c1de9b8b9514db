// Live bytes by category as stacked areas: over the events of a step, or over the steps of a run.

// data: {x: [], xName, categories: [{name, bytes: []}], stepped, phases: [[x, text, peak]], lines: [{bytes, text}],
//        peak: {x, bytes, text}, xText(x)}
// Returns an object whose onlyChanges(true) takes away from each category the least that it ever holds.
function stackedChart(holder, data, options = {}) {
  const hidden = new Set();
  const categories = [...data.categories].sort((a, b) => stackOrder(a.name) - stackOrder(b.name));
  const ends = data.stepped ? data.xEnd : data.x.at(-1);
  const least = new Map(categories.map(({name, bytes}) => [name, bytes.reduce((low, value) => Math.min(low, value || 0), Infinity)]));
  let view = [data.x[0], ends], marked = null, floor = false;
  const plot = el("div");
  const legend = el("div", {class: "legend"});
  holder.append(plot, legend);
  const redraw = responsive(plot, draw);

  function fillLegend() {
    legend.replaceChildren(...[...categories].reverse().map(({name}) => el("button", {
      class: hidden.has(name) ? "off" : "", title: hidden.has(name) ? "show" : "hide",
      onclick: () => { if (!hidden.delete(name)) hidden.add(name); fillLegend(); redraw(); },
      onmouseenter: () => mark(name), onmouseleave: () => mark(null),
    }, swatch(colorOf(name)), name)));
  }

  function mark(name) {
    marked = name;
    for (const area of plot.querySelectorAll(".area")) area.classList.toggle("faded", name !== null && area.dataset.name !== name);
  }

  function draw(width) {
    const shown = categories.filter(({name}) => !hidden.has(name))
      .map(({name, bytes}) => ({name, bytes: floor ? bytes.map((value) => value - least.get(name)) : bytes}));
    const below = floor ? [...least.values()].reduce((sum, bytes) => sum + bytes, 0) : 0;
    const phases = data.phases || [];
    const left = 68, right = 14, top = data.peak ? 24 : 10, height = options.height, strip = phases.length ? 44 : 0;
    const bottom = top + height;
    const first = Math.max(0, lastAtMost(data.x, view[0])), last = Math.min(data.x.length - 1, lastAtMost(data.x, view[1]) + 1);
    const tops = data.x.map((_, i) => shown.reduce((sum, {bytes}) => sum + (bytes[i] || 0), 0));
    let highest = 1;
    for (let i = first; i <= last; ++i) highest = Math.max(highest, tops[i]);
    const lines = hidden.size === 0 ? (data.lines || []).map(({bytes, text}) => ({bytes: bytes - below, text})) : [];
    for (const {bytes} of lines) if (bytes < highest * 4) highest = Math.max(highest, bytes);
    highest *= 1.06;
    const x = linear(view[0], view[1], left, width - right), y = linear(0, highest, bottom, top);
    const svg = svgEl("svg", {viewBox: `0 0 ${width} ${bottom + strip + 26}`, height: bottom + strip + 26, role: "img",
      "aria-label": options.label || "memory by category"});

    for (const tick of ticksOf(0, highest, height / 42, byteUnit(highest))) {
      svg.append(svgEl("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
        svgEl("text", {x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, (floor && tick > 0 ? "+" : "") + roundText(bytesText(tick))));
    }
    if (floor) svg.append(svgEl("text", {x: left, y: 12}, `above the ${bytesText(below)} that never change`));
    const clip = `clip${stackedChart.count = (stackedChart.count || 0) + 1}`;
    svg.append(svgEl("clipPath", {id: clip}, svgEl("rect", {x: left, y: 0, width: width - right - left, height: bottom + strip})));
    const areas = svgEl("g", {"clip-path": `url(#${clip})`});
    let base = new Array(data.x.length).fill(0);
    for (const {name, bytes} of shown) {
      const above = base.map((under, i) => under + (bytes[i] || 0));
      areas.append(svgEl("path", {class: "area", "data-name": name, fill: colorOf(name), d: areaPath(base, above, first, last)}),
        svgEl("path", {class: "edge", d: edgePath(above, first, last)}));
      base = above;
    }
    svg.append(areas);
    for (const {bytes, text} of lines) {
      if (bytes > highest) continue;
      svg.append(svgEl("line", {class: "planned", x1: left, x2: width - right, y1: y(bytes), y2: y(bytes)}));
      if (width > 560) svg.append(svgEl("text", {class: "strong halo", y: y(bytes) - 6, ...(data.peak && x(data.peak.x) < width / 2 ? {x: width - right - 8, "text-anchor": "end"} : {x: left + 8})}, text));
    }
    drawPeak();
    if (strip) drawStrip(); else drawTicks();
    svg.append(svgEl("line", {class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom}));
    addPointer();
    plot.replaceChildren(svg);
    if (marked) mark(marked);

    // Between two instants a step's memory is that of the first; a run's is joined by straight lines.
    function areaPath(under, above, from, to) {
      const side = (values, order) => order.map((i, n) => {
        const px = x(data.x[i]).toFixed(1), py = y(values[i]).toFixed(1);
        if (!data.stepped) return `${px},${py}`;
        const next = x(i + 1 < data.x.length ? data.x[i + 1] : ends).toFixed(1);
        return order[0] < order[order.length - 1] || order.length === 1 ? `${px},${py} ${next},${py}` : `${next},${py} ${px},${py}`;
      }).join(" ");
      const order = [];
      for (let i = from; i <= to; ++i) order.push(i);
      return `M${side(above, order)} L${side(under, [...order].reverse())}Z`;
    }

    // Where it runs level for a while: a line there would hide peaks that are a hair wide.
    function edgePath(above, from, to) {
      if (!data.stepped) return `M${above.slice(from, to + 1).map((bytes, i) => `${x(data.x[from + i]).toFixed(1)},${y(bytes).toFixed(1)}`).join("L")}`;
      let path = "";
      for (let i = from, next; i <= to; i = next) {
        for (next = i + 1; next <= to && above[next] === above[i]; ++next);
        const x1 = x(data.x[i]), x2 = x(next < data.x.length ? data.x[next] : ends);
        if (x2 - x1 > 2) path += `M${x1.toFixed(1)},${y(above[i]).toFixed(1)}H${x2.toFixed(1)}`;
      }
      return path;
    }

    function drawPeak() {
      if (!data.peak || hidden.size > 0 || data.peak.x < view[0] || data.peak.x > view[1]) return;
      const px = x(data.peak.x), py = y(data.peak.bytes - below), toLeft = px > width * 0.6;
      svg.append(svgEl("circle", {cx: px, cy: py, r: 4, fill: "var(--ink)", stroke: "var(--card)", "stroke-width": 2}),
        svgEl("text", {class: "strong halo", x: px + (toLeft ? -9 : 9), y: py - 8, "text-anchor": toLeft ? "end" : "start"}, data.peak.text));
    }

    // Passes, and below them the layers.
    function drawStrip() {
      const runs = [];
      phases.forEach(([begin, text], p) => {
        const end = p + 1 < phases.length ? phases[p + 1][0] : ends;
        const {pass, layer} = phaseParts(text);
        if (runs.length && runs.at(-1).pass === pass) runs.at(-1).end = end;
        else runs.push({pass, begin, end});
        put({begin, end, text: layer}, bottom + 24, 16, pass, 0.45);
      });
      for (const run of runs) put({...run, text: passName(run.pass)}, bottom + 6, 17, run.pass, 1);
      const at = bottom + strip + 18;
      svg.append(svgEl("text", {x: left, y: at}, data.xName));
      if (!options.picture && width > 560) svg.append(svgEl("text", {x: width - right, y: at, "text-anchor": "end"}, "drag to zoom, double-click to see all"));

      function put({begin, end, text}, yTop, high, pass, opacity) {
        const x1 = Math.max(left, x(begin)), x2 = Math.min(width - right, x(end));
        if (x2 <= x1) return;
        const wide = Math.max(0.5, x2 - x1 - 1);
        svg.append(svgEl("rect", {x: x1, y: yTop, width: wide, height: high, rx: Math.min(3, wide / 3), fill: `var(--${pass})`, opacity}));
        if (wide > text.length * 6.4 + 4) svg.append(svgEl("text", {class: opacity < 1 ? "layer" : "phase", x: (x1 + x2) / 2, y: yTop + high - 4.5, "text-anchor": "middle"}, text));
      }
    }

    function drawTicks() {
      for (const tick of ticksOf(view[0], view[1], Math.max(2, width / 110)).filter(Number.isInteger))
        svg.append(svgEl("text", {x: x(tick), y: bottom + 18, "text-anchor": "middle"}, countText(tick)));
      svg.append(svgEl("text", {x: left - 8, y: bottom + 18, "text-anchor": "end"}, data.xName));
    }

    function addPointer() {
      const cross = svgEl("line", {class: "cross", y1: top, y2: bottom + strip, visibility: "hidden"});
      const brush = svgEl("rect", {class: "brush", y: top, height, visibility: "hidden"});
      const cover = svgEl("rect", {x: left, y: top, width: Math.max(0, width - left - right), height: height + strip, fill: "transparent"});
      svg.append(brush, cross, cover);
      let from = null;
      const at = (event) => Math.max(view[0], Math.min(view[1], x.inverse(event.clientX - svg.getBoundingClientRect().left)));
      cover.addEventListener("pointerdown", (event) => { from = at(event); cover.setPointerCapture(event.pointerId); });
      cover.addEventListener("pointermove", (event) => {
        const here = at(event), i = lastAtMost(data.x, here + (data.stepped ? 0 : 0.5));
        const px = x(data.stepped ? here : data.x[i]);
        cross.setAttribute("x1", px), cross.setAttribute("x2", px), cross.setAttribute("visibility", "visible");
        if (from !== null) {
          brush.setAttribute("x", x(Math.min(from, here))), brush.setAttribute("width", Math.abs(x(here) - x(from)));
          brush.setAttribute("visibility", "visible");
        }
        tooltip.show(event, instantTip(i, here));
      });
      cover.addEventListener("pointerleave", () => { tooltip.hide(); cross.setAttribute("visibility", "hidden"); });
      cover.addEventListener("pointerup", (event) => {
        const to = at(event), begin = from;
        from = null;
        if (begin === null || Math.abs(x(to) - x(begin)) < 6) return redraw();
        view = [Math.min(begin, to), Math.max(begin, to)];
        redraw();
      });
      cover.addEventListener("dblclick", () => { view = [data.x[0], ends]; redraw(); });
    }

    function instantTip(i, here) {
      const held = shown.map(({name, bytes}) => [name, bytes[i] || 0]).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
      return [el("div", {class: "when"}, data.xText(data.stepped ? here : data.x[i], i)), el("div", {class: "total"}, bytesText(tops[i] + below), floor ? el("span", {class: "when"}, `, of which ${bytesText(tops[i])} come and go`) : null),
        el("table", {}, held.map(([name, bytes]) => el("tr", {}, el("td", {}, swatch(colorOf(name)), name), el("td", {}, bytesText(bytes)),
          el("td", {}, shareText(bytes, tops[i])))))];
    }
  }

  fillLegend();
  return {
    onlyChanges(only) { floor = only, redraw(); },
  };
}

// "layer 3 backward" is layer 3 of the pass "backward".
function phaseParts(text) {
  const layer = /^layer (\d+)/.exec(text);
  const pass = /forward/.test(text) ? "forward" : /backward/.test(text) ? "backward" : /loss/.test(text) ? "loss"
    : /optimizer|gradients|update/.test(text) ? "update" : "other";
  return {pass, layer: layer ? layer[1] : text.replace(/ (forward|backward)$/, "")};
}
const passName = (pass) => ({update: "update", other: "set-up", loss: "loss"})[pass] || pass;
