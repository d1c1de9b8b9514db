// The memory of a recorded step, and what made its peak.

function memoryCard(picture) {
  const timelines = (content.timelines || []).filter((timeline) => timeline.domains.length > 0);
  if (timelines.length === 0) return [];
  const choices = timelines.flatMap((timeline) => timeline.domains.map((series) => ({timeline, series})));
  const chartHolder = el("div"), explained = el("section", {class: "card"});
  const own = (name) => /^step_\d+_rank_\d+$/.test(name);
  const title = ({timeline, series}) => [own(timeline.name) ? null : timeline.name, timeline.step >= 0 ? `step ${timeline.step}` : null,
    timeline.rank >= 0 ? `rank ${timeline.rank}` : null, series.domain].filter((part) => part !== null).join(", ");
  const select = el("select", {"aria-label": "which recording", onchange: () => show(choices[select.value])},
    choices.map((choice, i) => el("option", {value: i}, title(choice))));
  const toggle = el("button", {class: "tool", "aria-pressed": "false", onclick: () => {
    const only = toggle.getAttribute("aria-pressed") === "false";
    toggle.setAttribute("aria-pressed", only);
    chart.onlyChanges(only);
  }}, "only what changes");
  const sub = el("p", {class: "sub"});
  let chart;

  function show({timeline, series}) {
    const peak = series.peak;
    toggle.setAttribute("aria-pressed", "false");
    sub.textContent = `${picture ? `${content.title}, ${title({timeline, series})}. ` : ""}Every allocation and release in program order: ` +
      `${countText(series.num_events)} of them. The peak of ${bytesText(peak.bytes)} comes in ${peak.phase || "the step's beginning"}.`;
    chartHolder.replaceChildren();
    const planned = plannedPeak();
    chart = stackedChart(chartHolder, {
      x: series.events, xEnd: series.num_events + 1, xName: "allocations and releases, in order", stepped: true, phases: series.phases,
      categories: series.categories.map((name, c) => ({name, bytes: series.bytes[c]})),
      lines: planned > 0 && content.history && series.domain === "device" ? [{bytes: planned, text: `planned ${bytesText(planned)}`}] : [],
      peak: {x: peak.event, bytes: peak.bytes, text: `peak ${bytesText(peak.bytes)}, ${peak.phase}`},
      xText: (x) => {
        const event = Math.floor(x), phase = series.phases.findLast(([begin]) => begin <= event);
        return `${phase && phase[1] ? `${phase[1]}, ` : ""}event ${countText(event)}`;
      },
    }, {picture, height: picture ? 350 : 420, label: "memory over one step by category"});
    explained.replaceChildren(...peakExplained(series));
  }

  show(choices[0]);
  if (location.hash.endsWith("-changes")) toggle.click();
  const card = el("section", {class: "card", id: "memory"}, el("div", {class: "head"}, el("h2", {}, "Memory over one step"),
    el("span", {class: "space"}), toggle, choices.length > 1 ? select : null), sub, chartHolder);
  return picture ? [card] : [card, explained];
}

function peakExplained(series) {
  const {peak} = series;
  const ranked = series.categories.map((name, c) => [name, peak.by_category[c]]).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
  const most = ranked.slice(0, 3), together = most.reduce((sum, [, bytes]) => sum + bytes, 0);
  const blocks = peak.blocks.slice(0, 12);
  return [
    el("div", {class: "head"}, el("h2", {}, "What makes the peak")),
    el("p", {class: "sub"}, `${bytesText(peak.bytes)} after event ${countText(peak.event)} of ${countText(series.num_events)}, in ` +
      `${peak.phase || "the step's beginning"}. ${most.map(([name]) => name).join(", ")} hold ${shareText(together, peak.bytes)} of it.`),
    el("div", {class: "columns"},
      el("div", {}, el("h3", {}, "By category"), barTable(ranked, peak.bytes)),
      el("div", {}, el("h3", {}, "Largest blocks alive at that instant"), el("table", {},
        el("tr", {}, el("th", {}, "category"), el("th", {class: "text"}, "from"), el("th", {}, "blocks"), el("th", {}, "together")),
        blocks.map((block) => el("tr", {}, el("td", {}, swatch(colorOf(series.categories[block.category])), series.categories[block.category]),
          el("td", {class: "text quiet"}, block.before ? "before the step" : block.phase || "several phases"),
          el("td", {}, block.before ? "" : block.count === 1 ? "1" : `${block.count} × ${bytesText(block.bytes)}`),
          el("td", {}, bytesText(block.bytes * block.count))))))),
    ...phasePeaks(series)];
}

function barTable(ranked, whole) {
  const longest = ranked.length ? ranked[0][1] : 1;
  return el("table", {}, ranked.map(([name, bytes]) => el("tr", {}, el("td", {style: "width:8em"}, swatch(colorOf(name)), name),
    el("td", {style: "width:45%;vertical-align:middle"}, el("span", {class: "bar", style: `width:${100 * bytes / longest}%;background:${colorOf(name)}`})),
    el("td", {}, bytesText(bytes)), el("td", {}, shareText(bytes, whole)))),
    el("tr", {class: "sum"}, el("td", {}, "together"), el("td"), el("td", {}, bytesText(whole)), el("td", {}, "")));
}

// How high each phase goes above what the lowest instant of the step holds: flat is good.
function phasePeaks(series) {
  if (series.phases.length < 3) return [];
  const holder = el("div");
  responsive(holder, (width) => {
    const left = 68, right = 14, top = 8, height = 96, bottom = top + height;
    const highest = Math.max(...series.phases.map((phase) => phase[2])) * 1.04;
    const y = linear(0, highest, bottom, top), slot = (width - left - right) / series.phases.length;
    const svg = svgEl("svg", {viewBox: `0 0 ${width} ${bottom + 8}`, height: bottom + 8, role: "img", "aria-label": "peak of every phase"});
    for (const tick of ticksOf(0, highest, 3, byteUnit(highest)))
      svg.append(svgEl("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
        svgEl("text", {x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, roundText(bytesText(tick))));
    series.phases.forEach(([begin, text, bytes], p) => svg.append(svgEl("rect", {
      x: left + p * slot, width: Math.max(0.6, slot - Math.min(2, slot * 0.2)), y: y(bytes), height: bottom - y(bytes), rx: Math.min(2, slot / 4),
      fill: `var(--${phaseParts(text).pass})`,
      onpointermove: (event) => tooltip.show(event, el("div", {class: "when"}, `${text || "before the first phase"}, from event ${countText(begin)}`),
        el("div", {class: "total"}, bytesText(bytes))),
      onpointerleave: () => tooltip.hide(),
    })));
    holder.replaceChildren(svg);
  });
  return [el("h3", {style: "margin-top:20px"}, "The peak of every phase, in order"), holder];
}
