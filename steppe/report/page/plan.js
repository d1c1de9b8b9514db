// The plan beside the measurement.

// The step of a run whose peak was highest.
function measuredPeak() {
  const history = content.history, peaks = history && history.columns.peak_bytes;
  if (!peaks || peaks.length === 0) return null;
  let highest = 0;
  peaks.forEach((bytes, i) => { if ((bytes || 0) > (peaks[highest] || 0)) highest = i; });
  const byCategory = {};
  for (const [name, column] of Object.entries(history.peak_by_category)) byCategory[name] = column[highest] || 0;
  return {step: history.step[highest], bytes: peaks[highest], byCategory, host: (history.columns.host_bytes || [])[highest]};
}

// By a plan's file, or by the run itself; 0: unknown.
function plannedPeak() {
  if (content.plan) return content.plan.peak_bytes;
  return ((content.history && content.history.columns.plan_peak_bytes) || []).find((bytes) => bytes > 0) || 0;
}

function planCard() {
  const plan = content.plan, measured = measuredPeak();
  if (!plan) return [];
  const categories = plan.by_category || {}, names = new Set([...Object.keys(categories), ...Object.keys(measured ? measured.byCategory : {})]);
  const rows = [...names].map((name) => [name, categories[name] || 0, measured ? measured.byCategory[name] || 0 : null])
    .filter(([, planned, real]) => planned > 0 || real > 0).sort((a, b) => b[1] - a[1]);
  const differs = (planned, real) => real === planned ? el("span", {class: "good"}, "equal") : `${real > planned ? "+" : "−"}${bytesText(Math.abs(real - planned))}`;
  const line = (label, planned, real, first) => el("tr", {class: label === "peak" ? "sum" : ""}, el("td", {}, first, label), el("td", {}, bytesText(planned)),
    measured ? [el("td", {}, bytesText(real)), el("td", {}, differs(planned, real))] : []);
  const figures = [["dry run", plan.peak_bytes], ["expected at most", plan.expected_bytes], ["guaranteed at most", plan.guaranteed_bytes],
    measured ? [`measured, step ${measured.step}`, measured.bytes] : null].filter((figure) => figure && figure[1] > 0);
  const around = [["a device holds", plan.device_memory], ["of it not for tensors", plan.reserved_bytes], ["host memory of a node, planned", plan.host_bytes],
    ["a node holds", plan.host_memory]].filter(([, bytes]) => bytes > 0);
  const longest = Math.max(...figures.map((figure) => figure[1]));
  return [el("section", {class: "card", id: "plan"},
    el("div", {class: "head"}, el("h2", {}, measured ? "Plan against measurement" : "The plan"),
      el("span", {class: `pill ${plan.fits ? "good" : "bad"}`}, plan.fits ? "fits" : "does not fit")),
    el("p", {class: "sub"}, [plan.verdict, plan.kept, ...(plan.remarks || [])].filter(Boolean).join("; ")), ...advice(plan),
    el("div", {class: "columns"},
      el("div", {}, el("h3", {}, "Peak of a device"), el("table", {}, figures.map(([label, bytes]) => el("tr", {}, el("td", {}, label),
        el("td", {style: "width:42%;vertical-align:middle"}, el("span", {class: "bar", style: `width:${100 * bytes / longest}%;background:var(--accent)`})),
        el("td", {}, bytesText(bytes)))), around.map(([label, bytes], i) => el("tr", {}, el("td", {class: "quiet"}, label),
        el("td", {style: "vertical-align:middle"}, i === 0 && bytes === plan.device_memory && bytes <= longest ? el("span", {class: "bar", style: `width:${100 * bytes / longest}%;background:var(--ink-2)`}) : null),
        el("td", {class: "quiet"}, bytesText(bytes)))))),
      el("div", {}, el("h3", {}, "At the peak, by category"), el("table", {},
        el("tr", {}, el("th", {}, "category"), el("th", {}, "planned"), measured ? [el("th", {}, "measured"), el("th", {}, "difference")] : []),
        rows.map(([name, planned, real]) => line(name, planned, real, swatch(colorOf(name)))),
        line("peak", plan.peak_bytes, measured ? measured.bytes : null, null)))),
    ...workTables(plan), ...termTables(plan))];
}

// The keys that `--maximize` or `--tune` found, or that would have to change.
function advice(plan) {
  const changes = plan.changes || [], text = plan.advice || "";
  if (changes.length === 0 && text === "") return [];
  return [el("h3", {}, plan.fits ? "What the search chose" : "What would have to change"), text ? el("p", {class: "sub"}, text) : null,
    changes.length > 0 ? el("pre", {class: "changes"}, changes.join("\n")) : null].filter(Boolean);
}

// What a step of one rank does, by kind: operations, bytes to other ranks, bytes between host and device.
function workTables(plan) {
  const tables = [["flops", "Floating-point operations", numberText], ["wire_bytes", "Bytes to other ranks", bytesText], ["link_bytes", "Bytes over the host link", bytesText]]
    .map(([key, title, text]) => [title, text, Object.entries(plan[key] || {}).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1])])
    .filter(([, , rows]) => rows.length > 0);
  if (tables.length === 0) return [];
  const seconds = plan.step_seconds > 0 ? `, about ${numberText(plan.step_seconds)} s by the plan's time model` : "";
  return [el("h3", {style: "margin-top:22px"}, `The work of a step, one rank${seconds}`), el("div", {class: "multiples"}, tables.map(([title, text, rows]) => {
    const whole = rows.reduce((sum, [, value]) => sum + value, 0);
    return el("table", {}, el("tr", {}, el("th", {style: "white-space:nowrap"}, title), el("th"), el("th")),
      rows.map(([name, value]) => el("tr", {}, el("td", {}, name.replace("_h2d", ", to the device").replace("_d2h", ", to the host")), el("td", {}, text(value)),
        el("td", {}, shareText(value, whole)))),
      el("tr", {class: "sum"}, el("td", {}, "together"), el("td", {}, text(whole)), el("td")));
  }))];
}

// The budget: what persists, and the phase that needs most beside it; then how high every phase goes.
function termTables(plan) {
  const phases = plan.phases || [], largest = phases.find(({name}) => name === plan.largest_phase);
  const groups = [{name: "what persists", terms: plan.terms || []}, ...(largest ? [largest] : []), {name: "in host memory", terms: plan.host_terms || []}].filter(({terms}) => terms && terms.length > 0);
  if (groups.length === 0) return [];
  const sum = (terms, key) => terms.reduce((total, term) => total + (term[key] || 0), 0);
  const rows = groups.flatMap(({name, terms}) => [
    el("tr", {class: "group"}, el("td", {colspan: 3}, name), el("td", {}, bytesText(sum(terms, "expected_bytes"))), el("td", {}, bytesText(sum(terms, "guaranteed_bytes")))),
    ...terms.map((term) => el("tr", {}, el("td", {}, term.name), el("td", {class: "text"}, swatch(colorOf(term.category)), term.category),
      el("td", {class: "text"}, el("code", {}, term.formula)), el("td", {}, bytesText(term.expected_bytes)), el("td", {}, bytesText(term.guaranteed_bytes))))]);
  return [el("h3", {style: "margin-top:22px"}, largest ? `The budget, term by term; of the phases, ${largest.name} needs most` : "The budget, term by term"),
    el("div", {class: "scroll"}, el("table", {}, el("tr", {}, el("th", {}, "term"), el("th", {class: "text"}, "category"), el("th", {class: "text"}, "formula"),
      el("th", {}, "expected"), el("th", {}, "guaranteed")), rows)),
    ...(phases.length > 1 ? [el("details", {style: "margin-top:14px"}, el("summary", {class: "small"}, `All ${phases.length} phases`), el("table", {},
      el("tr", {}, el("th", {}, "phase"), el("th", {}, "expected"), el("th", {}, "guaranteed")),
      phases.map((phase) => el("tr", {}, el("td", {}, phase.name), el("td", {}, bytesText(phase.expected_bytes)), el("td", {}, bytesText(phase.guaranteed_bytes))))))] : [])];
}
