// The plots, drawn with plotly. The colours are those of Okabe and Ito, safe for colour-blind readers; runs also differ in dashes.

const COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"],
  dark: ["#56b4e9", "#f08a3c", "#2fc79a", "#e6a3c8", "#f0e442", "#5b9bff"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"]; // five dashes and six colours: thirty combinations
const DRAWN = 300; // the most curves drawn: more would be slow and impossible to tell apart
const POINTS = 30000; // the most points over all curves, about as many as a screen can show
const BINS = 30;
const FLOOR = 1e-7; // the smallest rate on logarithmic and probit axes

const colour = (index) => COLOURS[document.documentElement.dataset.theme][index % 6];
const classColour = (place) => colour(place + 2); // the first two colours are used for runs
const dash = (index) => DASHES[index % DASHES.length];

function themed() {
  const style = getComputedStyle(document.documentElement);
  const property = (name) => style.getPropertyValue(name).trim();
  return { ink: property("--ink"), paper: property("--card"), grid: property("--line"), faint: property("--faint"), mark: property("--mark"), accent: property("--accent"), range: property("--range") };
}

function axis(theme, title, options = {}) {
  return { title: { text: title, standoff: 8 }, gridcolor: theme.grid, zeroline: false, linecolor: theme.grid, automargin: true, fixedrange: false, ...options };
}

function layout(theme, options) {
  return {
    paper_bgcolor: theme.paper,
    plot_bgcolor: theme.paper,
    font: { color: theme.ink, family: "system-ui, sans-serif", size: 12 },
    margin: { l: 48, r: 12, t: 12, b: 40 },
    hovermode: "closest",
    hoverlabel: { bgcolor: theme.paper, bordercolor: theme.grid, font: { color: theme.ink } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    dragmode: false,
    ...options,
  };
}

// Nothing may leave the page: by default plotly offers to upload its plots.
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "pan2d", "zoom2d"] };

const draw = (id, traces, plotLayout) => Plotly.react(byId(id), traces, plotLayout, CONFIG);

const DRAWINGS = {
  "plot-far": () => drawRates("far"),
  "plot-frr": () => drawRates("frr"),
  "plot-curves": drawCurves,
  "plot-distances": drawDistances,
  "plot-roc": drawRoc,
  "plot-det": () => drawErrors("plot-det", ["FAR", "pooledFar"], ["FRR", "pooledFrr"]),
  "plot-identification": () => hasUnknown && drawErrors("plot-identification", ["FPIR", "pooledFpir"], ["FNIR", "pooledFnir"]),
  "plot-pareto": drawPareto,
};
const undrawn = new Set();
let timer;

/** Draws the plots in view now and the others later, so that the slider does not have to wait for them. */
function drawSoon(...ids) {
  for (const id of ids) undrawn.add(id);
  if (!window.Plotly) return; // its script comes after this one
  for (const id of [...undrawn]) if (isInView(byId(id))) drawNow(id);
  clearTimeout(timer);
  if (undrawn.size > 0) timer = setTimeout(drawNext, 120);
  document.documentElement.dataset.busy = String(undrawn.size > 0);
}

function drawNow(id) {
  undrawn.delete(id);
  DRAWINGS[id]();
}

function drawNext() {
  const [id] = undrawn;
  if (id !== undefined) drawNow(id);
  if (undrawn.size > 0) timer = setTimeout(drawNext);
  document.documentElement.dataset.busy = String(undrawn.size > 0);
}

function isInView(plot) {
  const box = plot.getBoundingClientRect();
  return box.bottom > 0 && box.top < window.innerHeight;
}

/** Places the threshold line over a plot. It is an element of its own, so that moving it does not redraw hundreds of curves. */
function placeLine(id) {
  const plot = byId(id);
  const line = plot.parentElement.querySelector(".threshold-line");
  const drawn = plot._fullLayout;
  if (!drawn) return;
  const x = drawn.xaxis.d2p(chosenRun().thresholds[chosenStop()]);
  line.hidden = !(x >= 0 && x <= drawn.xaxis._length);
  line.style.left = `${drawn.xaxis._offset + x}px`;
  line.style.top = `${drawn.yaxis._offset}px`;
  line.style.height = `${drawn.yaxis._length}px`;
}

const verticalLine = (x, colour, dash, width = 2) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour, dash, width } });

/** Histogram of a rate over classes at the threshold: bars for the chosen run, lines for the others. */
function drawRates(rate) {
  const theme = themed();
  const chosen = chosenRun();
  const values = runs.map((run) => {
    const rates = [];
    for (let classIndex = 0; classIndex < run.classes; classIndex++) {
      const value = run[rate](classIndex, state.stops[run.index]);
      if (!Number.isNaN(value)) rates.push(value);
    }
    return rates;
  });
  const tolerance = Math.min(state.tolerance[rate], 2); // outside the plot if there is no limit
  const pooled = (rate === "far" ? chosen.pooledFar : chosen.pooledFrr)[chosenStop()];
  const most = Math.min(1, Math.max(...values.flatMap((rates) => rates.reduce((a, b) => Math.max(a, b), 0)), tolerance <= 1 ? tolerance * 1.2 : 0, 1e-6));
  const width = most / BINS;
  const middles = Array.from({ length: BINS }, (_, bin) => 100 * (bin + 0.5) * width);
  const traces = runs.map((run) => {
    const counts = new Array(BINS).fill(0);
    for (const value of values[run.index]) counts[Math.min(Math.floor(value / width), BINS - 1)] += 1;
    const common = { x: middles, y: counts, name: legendLabel(run.name), hovertemplate: "%{y} classes near %{x:.3g}%<extra></extra>" };
    return run === chosen
      ? { ...common, type: "bar", width: 100 * width * 0.92, marker: { color: colour(run.index) } }
      : { ...common, type: "scatter", mode: "lines", line: { shape: "hvh", color: colour(run.index), dash: dash(run.index) } };
  });
  const shapes = [verticalLine(100 * pooled, theme.ink, "solid"), verticalLine(100 * tolerance, theme.mark, "dash")];
  const notes = [
    { x: 100 * pooled, y: 1, yref: "paper", text: "pooled", showarrow: false, xanchor: "left", yanchor: "top", bgcolor: theme.paper },
    { x: 100 * tolerance, y: 0.86, yref: "paper", text: "limit", showarrow: false, xanchor: "left", yanchor: "top", bgcolor: theme.paper },
  ].filter((note) => note.x <= 102 * most);
  draw(`plot-${rate}`, traces, layout(theme, {
    xaxis: axis(theme, `${rate.toUpperCase()} of a class (%)`, { range: [0, 102 * most] }),
    yaxis: axis(theme, "number of classes", { rangemode: "tozero" }),
    shapes: shapes.filter((shape) => shape.x0 <= 102 * most),
    annotations: notes,
    showlegend: runs.length > 1,
    bargap: 0,
  }));
}

const GROUPS = {
  all: () => "",
  none: () => " besides the highlighted ones",
  worst: (share) => `: the ${share} of classes with the lowest mean utility`,
  best: (share) => `: the ${share} of classes with the highest mean utility`,
};

/** The classes whose curves are drawn: all of the group, or the worst, the best and an even sample by rank in between. */
function drawnClasses(run, group) {
  const classes = run.group(group);
  if (classes.length <= DRAWN) return classes;
  const ends = Math.floor(DRAWN / 10);
  const between = Array.from({ length: DRAWN - 2 * ends }, (_, place) =>
    classes[ends + Math.floor(((place + 0.5) * (classes.length - 2 * ends)) / (DRAWN - 2 * ends))]);
  return [...classes.slice(0, ends), ...between, ...classes.slice(-ends)];
}

const HOVER = "%{text}<br>utility %{y:.3f} at %{x:.4f}<extra></extra>";

function drawCurves() {
  const theme = themed();
  const run = chosenRun();
  const shown = drawnClasses(run, state.group);
  const x = [];
  const y = [];
  const text = [];
  const step = Math.ceil((shown.length * run.stops) / POINTS);
  for (const classIndex of shown) {
    const name = label(run.names[classIndex]);
    for (let stop = (run.stops - 1) % step; stop < run.stops; stop += step) {
      x.push(run.thresholds[stop]);
      y.push(run.utility(classIndex, stop));
      text.push(name);
    }
    x.push(null);
    y.push(null);
    text.push("");
  }
  const { mean, low, high } = run.summary;
  const middle = run.settings.mean_curve === "pooled" ? "all pairs pooled" : "mean over classes";
  const thresholds = run.thresholds;
  const traces = [
    { x, y, mode: "lines", opacity: 0.6, line: { color: theme.faint, width: 0.8 }, text, hovertemplate: HOVER, name: "one class", meta: "classes" },
    { x: thresholds, y: low, mode: "lines", line: { width: 1.2, color: theme.accent, dash: "dot" }, hoverinfo: "skip", showlegend: false, meta: "low" },
    { x: thresholds, y: high, mode: "lines", line: { width: 1.2, color: theme.accent, dash: "dot" }, hoverinfo: "skip", name: "90% of classes lie between", meta: "high" },
    { x: thresholds, y: mean, mode: "lines", line: { color: theme.ink, width: 2.5 }, text: thresholds.map(() => middle), hovertemplate: HOVER, name: middle, meta: "mean" },
    ...state.highlighted.map((classIndex, place) => ({
      x: thresholds,
      y: thresholds.map((_, stop) => run.utility(classIndex, stop)),
      mode: "lines",
      line: { color: classColour(place), dash: dash(place), width: 2.5 },
      text: thresholds.map(() => label(run.names[classIndex])),
      hovertemplate: HOVER,
      name: legendLabel(run.names[classIndex]),
      meta: `class ${classIndex}`,
    })),
  ];
  const [first, last] = [thresholds[0], thresholds[run.stops - 1]];
  const band = { type: "rect", x0: run.range[0], x1: run.range[1], y0: 0, y1: 1, yref: "paper", layer: "below", line: { width: 0 }, fillcolor: theme.range };
  draw("plot-curves", traces, layout(theme, {
    xaxis: axis(theme, "threshold (distance)", { range: [first, last] }),
    yaxis: axis(theme, "utility", { range: [0, 1.02] }),
    shapes: [band],
    annotations: [{ x: (run.range[0] + run.range[1]) / 2, y: 0, yref: "paper", text: "calibration range", showarrow: false, yanchor: "bottom" }],
  }));
  afterDrawing("plot-curves");
  const all = run.group(state.group).length;
  const ends = Math.floor(DRAWN / 10);
  const thinned = shown.length < all ? `${shown.length} of ${whole(all)} curves are drawn: the ${ends} with the lowest and the ${ends} with the highest mean utility, and an even sample of the others. Search for any other class by name. The mean and the 90% band are computed from all classes.` : `${whole(shown.length)} of ${whole(run.ranked.length)} curves are drawn${GROUPS[state.group](roundPercent(run.settings.epsilon))}.`;
  const without = run.classes - run.ranked.length;
  byId("curves-note").textContent = thinned + (without > 0 ? ` Classes ${isGallery ? "with fewer than two known probes" : "without a positive pair"} have no curve: ${whole(without)}.` : "");
}

const POSITIVE_COLOUR = 2; // colours that no run has, as long as there are at most two runs
const NEGATIVE_COLOUR = 4;

function drawDistances() {
  const theme = themed();
  const run = chosenRun();
  const traces = [];
  for (const other of runs) {
    const { edges, positive, negative } = other.distribution;
    const width = edges[1] - edges[0];
    const middles = positive.map((_, bin) => (edges[bin] + edges[bin + 1]) / 2);
    for (const [kind, shares, place] of [["positive", positive, POSITIVE_COLOUR], ["negative", negative, NEGATIVE_COLOUR]]) {
      const isChosen = other === run;
      traces.push({
        x: middles, y: shares.map((share) => share / width), mode: "lines", name: isChosen ? `${kind} pairs` : `${kind} pairs, ${legendLabel(other.name)}`,
        line: { color: colour(place), width: isChosen ? 2 : 1.2, shape: "hvh", dash: isChosen ? "solid" : dash(other.index || 1) },
        ...(isChosen ? { fill: "tozeroy", fillcolor: `${colour(place)}40` } : {}),
        hovertemplate: "%{x:.3f}<extra></extra>", meta: `${kind} ${other.index}`,
      });
    }
  }
  const classIndex = state.highlighted.at(-1);
  if (classIndex !== undefined) traces.push(...classDistances(run, classIndex));
  draw("plot-distances", traces, layout(theme, {
    xaxis: axis(theme, isGallery ? "distance between a probe and a template" : "distance between two embeddings", { range: [run.distribution.edges[0], run.distribution.edges.at(-1)] }),
    yaxis: axis(theme, "density", { rangemode: "tozero", showticklabels: false }),
  }));
  afterDrawing("plot-distances");
}

/** Places the threshold line now, and again whenever the plot is zoomed or resized. */
function afterDrawing(id) {
  const plot = byId(id);
  if (!plot.dataset.watched) plot.on("plotly_afterplot", () => placeLine(id));
  plot.dataset.watched = "true";
  placeLine(id);
}

/** Densities of the distances of one class, from its pairs between about 40 neighbouring thresholds. */
function classDistances(run, classIndex) {
  const step = Math.max(1, Math.floor(run.stops / 40));
  return [["positive", run.acceptedPositives, run.positiveTotals[classIndex], POSITIVE_COLOUR], ["negative", run.acceptedNegatives, run.negativeTotals[classIndex], NEGATIVE_COLOUR]]
    .filter(([, , total]) => total > 0)
    .map(([kind, counts, total, place]) => {
      const x = [];
      const y = [];
      for (let stop = step; stop < run.stops; stop += step) {
        const width = run.thresholds[stop] - run.thresholds[stop - step];
        x.push((run.thresholds[stop] + run.thresholds[stop - step]) / 2);
        y.push((counts[classIndex * run.stops + stop] - counts[classIndex * run.stops + stop - step]) / total / width);
      }
      return { x, y, mode: "lines", name: `${kind} pairs of ${legendLabel(run.names[classIndex])}`, line: { color: colour(place), width: 2, dash: "dot" }, hoverinfo: "skip", meta: `class ${classIndex}` };
    });
}

const POWERS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1];

function drawRoc() {
  const theme = themed();
  const lowest = Math.min(...runs.map((run) => run.pooledFar.find((far) => far > 0) ?? 1));
  const lines = runs.map((run) => {
    const stops = run.thresholds.map((_, stop) => stop).filter((stop) => run.pooledFar[stop] > 0);
    return {
      x: stops.map((stop) => run.pooledFar[stop]), y: stops.map((stop) => 1 - run.pooledFrr[stop]),
      text: stops.map((stop) => `${label(run.name)}: FAR ${percent(run.pooledFar[stop])}, positive pairs accepted ${percent(1 - run.pooledFrr[stop])}, distance ${fixed(run.thresholds[stop])}`),
      mode: "lines", name: legendLabel(run.name), line: { color: colour(run.index), dash: dash(run.index), width: 2 },
      hoverinfo: "text", meta: `run ${run.index}`,
    };
  });
  draw("plot-roc", [...lines, ...here((run, stop) => [Math.max(run.pooledFar[stop], lowest), 1 - run.pooledFrr[stop]])], layout(theme, {
    xaxis: axis(theme, "FAR", { type: "log", range: [Math.log10(lowest), 0], tickangle: 0, tickvals: POWERS, ticktext: POWERS.map(roundPercent) }),
    yaxis: axis(theme, "positive pairs accepted (1 − FRR)", { range: [0, 1.02], tickformat: ".0%" }),
    showlegend: runs.length > 1,
  }));
}

const TICKS = [1e-5, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99]; // far enough apart to be readable on a phone
const UPRIGHT = [1e-5, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.99]; // upwards there is more room
const bounded = (share) => Math.min(Math.max(share, FLOOR), 1 - FLOOR);

/** One error rate against another on probit axes, each given by its title and by the name of the rates in a run. */
function drawErrors(id, [xTitle, xRates], [yTitle, yRates]) {
  const theme = themed();
  const lines = runs.map((run) => {
    const [across, up] = [run[xRates], run[yRates]];
    const stops = run.thresholds.map((_, stop) => stop).filter((stop) => across[stop] > 0 && up[stop] > 0 && across[stop] < 1 && up[stop] < 1);
    return {
      x: stops.map((stop) => probit(across[stop])), y: stops.map((stop) => probit(up[stop])),
      text: stops.map((stop) => `${label(run.name)}: ${xTitle} ${percent(across[stop])}, ${yTitle} ${percent(up[stop])}, distance ${fixed(run.thresholds[stop])}`),
      mode: "lines", name: legendLabel(run.name), line: { color: colour(run.index), dash: dash(run.index), width: 2 }, hoverinfo: "text", meta: `run ${run.index}`,
    };
  });
  const ends = (values) => {
    const all = values.flat();
    return all.length > 0 ? [all.reduce((a, b) => Math.min(a, b)) - 0.1, all.reduce((a, b) => Math.max(a, b)) + 0.1] : [-3, 3];
  };
  const ticks = (rates) => ({ tickangle: 0, tickvals: rates.map(probit), ticktext: rates.map(roundPercent) });
  draw(id, [...lines, ...here((run, stop) => [probit(bounded(run[xRates][stop])), probit(bounded(run[yRates][stop]))])], layout(theme, {
    xaxis: axis(theme, xTitle, { ...ticks(TICKS), range: ends(lines.map((line) => line.x)) }),
    yaxis: axis(theme, yTitle, { ...ticks(UPRIGHT), range: ends(lines.map((line) => line.y)) }),
    showlegend: runs.length > 1,
  }));
}

/** A marker for every run at its threshold. */
function here(place) {
  return runs.map((run) => {
    const [x, y] = place(run, state.stops[run.index]);
    return { x: [x], y: [y], mode: "markers", opacity: 0.85, marker: { color: colour(run.index), size: run === chosenRun() ? 9 : 14, symbol: run.index % 2 ? "diamond" : "circle", line: { color: themed().ink, width: 1.5 } }, hoverinfo: "skip", showlegend: false, meta: `here ${run.index}` };
  });
}

function drawPareto() {
  if (runs.length < 2) return;
  const theme = themed();
  const points = runs.filter((run) => known(run.scores.recall_at_k["1"])).map((run) => ({ run, x: run.scores.opis, y: 1 - run.scores.recall_at_k["1"] }));
  byId("pareto").hidden = points.length === 0;
  if (points.length === 0) return;
  const front = points.filter((point) => !points.some((other) => other.x <= point.x && other.y <= point.y && (other.x < point.x || other.y < point.y))).sort((a, b) => a.x - b.x);
  const bar = (bounds, value) => (bounds ? [Math.max(bounds[1] - value, 0), Math.max(value - bounds[0], 0)] : null);
  const traces = [
    { x: front.map((point) => point.x), y: front.map((point) => point.y), mode: "lines+markers", line: { color: theme.faint, shape: "hv", dash: "dot", width: 1.5 }, marker: { symbol: "circle-open", size: 22, color: theme.ink }, name: "Pareto front", hoverinfo: "skip", meta: "front" },
    ...points.map((point, place) => {
      const sideways = bar(point.run.intervals.opis, point.x);
      const recall = bar(point.run.intervals["recall@1"], 1 - point.y);
      return {
        x: [point.x], y: [point.y], mode: "markers+text", text: [label(point.run.name)], textposition: place % 2 ? "bottom right" : "top right", name: legendLabel(point.run.name), showlegend: false,
        marker: { color: colour(point.run.index), size: 12, symbol: point.run.index % 2 ? "diamond" : "circle" }, meta: `run ${point.run.index}`,
        hovertemplate: "OPIS %{x:.4g}, recognition error %{y:.2%}<extra></extra>",
        ...(sideways ? { error_x: { type: "data", array: [sideways[0]], arrayminus: [sideways[1]], thickness: 1, color: colour(point.run.index) } } : {}),
        ...(recall ? { error_y: { type: "data", array: [recall[1]], arrayminus: [recall[0]], thickness: 1, color: colour(point.run.index) } } : {}),
      };
    }),
  ];
  draw("plot-pareto", traces, layout(theme, {
    xaxis: axis(theme, "OPIS", { tickformat: ".2g" }),
    yaxis: axis(theme, "recognition error (1 − recall@1)", { tickformat: ".2~%" }),
  }));
}

/** Moves the marks of the threshold without redrawing the curves. */
function moveMarks() {
  placeLine("plot-curves");
  placeLine("plot-distances");
  drawSoon("plot-far", "plot-frr", "plot-identification", "plot-roc", "plot-det");
}

const drawAll = () => drawSoon(...Object.keys(DRAWINGS));

/** Draws pending plots as soon as they scroll into view. */
function watchScrolling() {
  window.addEventListener("scroll", () => undrawn.size > 0 && drawSoon(), { passive: true });
}

/** Lets a click or a drag in a plot over distances move the threshold. */
function followPointer(id, moved) {
  const plot = byId(id);
  let following = false;
  const at = (event) => {
    const { xaxis } = plot._fullLayout;
    const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
    moved(xaxis.p2d(Math.min(Math.max(event.clientX - box.left, 0), box.width)));
  };
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.target.closest?.(".nsewdrag") || plot._fullLayout.dragmode) return;
    following = true;
    at(event);
  }, true);
  window.addEventListener("pointermove", (event) => following && at(event));
  for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => (following = false));
}
