// The page, from top to bottom.

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  document.dispatchEvent(new Event("theme"));
}

function statusPill() {
  const status = content.status;
  if (!status) return null;
  const kind = {finished: "good", failed: "bad", stopped: "warn", running: "quiet"}[status.state] || "quiet";
  return el("span", {class: `pill ${kind}`}, status.state);
}

function tiles() {
  const list = [], add = (label, value, more) => list.push(el("div", {class: "tile"}, el("div", {class: "label"}, label), el("div", {class: "value"}, value),
    el("div", {class: "more"}, more || "\u00a0")));
  const history = content.history, plan = content.plan, measured = measuredPeak();
  if (history && history.step.length > 0) {
    const {columns, step} = history, last = (key) => (columns[key] || []).findLast((value) => typeof value === "number");
    const tokens = last("tokens"), speeds = (columns.tokens_per_s || []).filter((value) => value > 0).slice(-20).sort((a, b) => a - b);
    add("Steps", countText(step.at(-1)), tokens ? `${numberText(tokens)} tokens` : "");
    if (last("loss") !== undefined) add("Training loss", last("loss").toFixed(4), `from ${((columns.loss || []).find((value) => typeof value === "number")).toFixed(4)}`);
    const sets = Object.entries(history.validation);
    if (sets.length > 0) {
      const [name, results] = sets[0], loss = results.loss.at(-1);
      add(`Validation, ${name}`, typeof loss === "number" ? loss.toFixed(4) : "–", `perplexity ${numberText(results.ppl.at(-1))}`);
    }
    if (speeds.length > 0) add("Throughput", `${numberText(speeds[speeds.length >> 1])}/s`, `tokens, all ${last("num_ranks") || 1} rank${last("num_ranks") > 1 ? "s" : ""}`);
  }
  if (measured) add("Peak memory", bytesText(measured.bytes), `fullest rank, step ${measured.step}`);
  const planned = plannedPeak();
  if (planned > 0) {
    const off = measured ? measured.bytes - planned : null;
    add("Planned peak", bytesText(planned), off === null ? (plan.fits ? "fits" : "does not fit")
      : off === 0 ? "equal to the measured one" : `measured ${off > 0 ? "+" : "−"}${bytesText(Math.abs(off))} (${(100 * off / planned).toFixed(2)} %)`);
  }
  if (plan) {
    if (!measured) {
      if (plan.expected_bytes > 0) add("Budget", bytesText(plan.expected_bytes), `guaranteed ${bytesText(plan.guaranteed_bytes || plan.expected_bytes)}`);
      if (plan.device_memory > 0) add("Device memory", bytesText(plan.device_memory), plan.hardware || "");
      if (plan.host_bytes > 0) add("Host memory", bytesText(plan.host_bytes), "of a node, planned");
      if (plan.tokens_per_rank > 0) add("Tokens a rank", countText(plan.tokens_per_rank), plan.layout ? `${plan.layout.world_size} ranks, rows of ${countText(plan.seq_length)}` : "");
    }
  }
  if (measured && measured.host > 0) add("Host memory", bytesText(measured.host), "fullest rank");
  return list.length > 0 ? [el("div", {class: "tiles"}, list)] : [];
}

function header() {
  const theme = el("button", {class: "tool", onclick: () => setTheme(!document.documentElement.classList.contains("dark"))}, "light / dark");
  return el("header", {}, el("h1", {}, content.title), statusPill(),
    content.status && content.status.reason ? el("span", {class: "quiet"}, content.status.reason) : null, el("span", {class: "brand"}, "Steppe report"), theme);
}

function renderPage() {
  const hash = location.hash, picture = hash.startsWith("#picture");
  setTheme(picture ? hash.startsWith("#picture-dark") : matchMedia("(prefers-color-scheme: dark)").matches);
  document.title = `${content.title}: Steppe report`;
  const main = document.getElementById("report");
  if (picture) {
    document.body.classList.add("picture");
    const cards = memoryCard(true);
    main.append(...(cards.length > 0 ? cards : peaksCard()));
  } else {
    const notes = content.notes || [];
    main.append(header(), ...tiles(), ...(notes.length > 0 ? [el("ul", {class: "notes"}, notes.map((note) => el("li", {}, note)))] : []),
      ...memoryCard(false), ...planCard(), ...peaksCard(), ...curvesCard(), ...expertLoadCard(),
      ...(content.recipe ? [el("details", {class: "card"}, el("summary", {}, "Recipe"), el("pre", {}, content.recipe))] : []));
  }
  drawCharts();
  document.documentElement.dataset.ready = "true";
}

renderPage();
