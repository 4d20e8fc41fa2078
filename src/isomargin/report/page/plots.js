// The pictures, all plotly. Colours are Okabe and Ito's, which colour-blind people can tell apart; runs differ in dashes too.

const COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"],
  dark: ["#56b4e9", "#f08a3c", "#2fc79a", "#e6a3c8", "#f0e442", "#5b9bff"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"]; // five and six colours: thirty looks
const DRAWN = 300; // curves at most: more would neither be told apart nor stay quick
const POINTS = 30000; // of all curves together, about as many as the screen can show
const BINS = 30;
const FLOOR = 1e-7; // of rates on logarithmic and normal axes

const colour = (index) => COLOURS[document.documentElement.dataset.theme][index % 6];
const classColour = (place) => colour(place + 2); // the first two are those of runs
const dash = (index) => DASHES[index % DASHES.length];

function themed() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(name).trim();
  return { ink: named("--ink"), paper: named("--card"), grid: named("--line"), faint: named("--faint"), mark: named("--mark"), accent: named("--accent"), range: named("--range") };
}

function axis(theme, title, more = {}) {
  return { title: { text: title, standoff: 8 }, gridcolor: theme.grid, zeroline: false, linecolor: theme.grid, automargin: true, fixedrange: false, ...more };
}

function layout(theme, more) {
  return {
    paper_bgcolor: theme.paper,
    plot_bgcolor: theme.paper,
    font: { color: theme.ink, family: "system-ui, sans-serif", size: 12 },
    margin: { l: 48, r: 12, t: 12, b: 40 },
    hovermode: "closest",
    hoverlabel: { bgcolor: theme.paper, bordercolor: theme.grid, font: { color: theme.ink } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    dragmode: false,
    ...more,
  };
}

// Nothing leaves the page: plotly would offer to send what it draws to its maker.
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "pan2d", "zoom2d"] };

const draw = (id, traces, made) => Plotly.react(byId(id), traces, made, CONFIG);

const DRAWINGS = {
  "plot-far": () => drawRates("far"),
  "plot-frr": () => drawRates("frr"),
  "plot-curves": drawCurves,
  "plot-distances": drawDistances,
  "plot-roc": drawRoc,
  "plot-det": drawDet,
  "plot-pareto": drawPareto,
};
const undrawn = new Set();
let pause;

/** Draws pictures that can be seen now, and the others when there is time: moving the slider must not wait for them. */
function drawSoon(...ids) {
  for (const id of ids) undrawn.add(id);
  if (!window.Plotly) return; // whose script comes behind this one
  for (const id of [...undrawn]) if (isInView(byId(id))) drawNow(id);
  clearTimeout(pause);
  if (undrawn.size > 0) pause = setTimeout(drawNext, 120);
  document.documentElement.dataset.busy = String(undrawn.size > 0);
}

function drawNow(id) {
  undrawn.delete(id);
  DRAWINGS[id]();
}

function drawNext() {
  const [id] = undrawn;
  if (id !== undefined) drawNow(id);
  if (undrawn.size > 0) pause = setTimeout(drawNext);
  document.documentElement.dataset.busy = String(undrawn.size > 0);
}

function isInView(part) {
  const box = part.getBoundingClientRect();
  return box.bottom > 0 && box.top < window.innerHeight;
}

/** Puts the line of the threshold over a picture: moving it must not draw hundreds of curves again. */
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

const upright = (x, colour, dash, width = 2) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour, dash, width } });

/** Histogram of the classes' rates at the threshold; other runs as steps. */
function drawRates(rate) {
  const theme = themed();
  const chosen = chosenRun();
  const values = runs.map((run) => {
    const found = [];
    for (let which = 0; which < run.classes; which++) {
      const value = run[rate](which, state.stops[run.index]);
      if (!Number.isNaN(value)) found.push(value);
    }
    return found;
  });
  const tolerance = Math.min(state.tolerance[rate], 2); // beyond the picture where there is none
  const pooled = (rate === "far" ? chosen.pooledFar : chosen.pooledFrr)[chosenStop()];
  const most = Math.min(1, Math.max(...values.flatMap((each) => each.reduce((a, b) => Math.max(a, b), 0)), tolerance <= 1 ? tolerance * 1.2 : 0, 1e-6));
  const width = most / BINS;
  const middles = Array.from({ length: BINS }, (_, bin) => 100 * (bin + 0.5) * width);
  const traces = runs.map((run) => {
    const counts = new Array(BINS).fill(0);
    for (const value of values[run.index]) counts[Math.min(Math.floor(value / width), BINS - 1)] += 1;
    const common = { x: middles, y: counts, name: legendLabel(run.name), hovertemplate: "%{y} classes about %{x:.3g}%<extra></extra>" };
    return run === chosen
      ? { ...common, type: "bar", width: 100 * width * 0.92, marker: { color: colour(run.index) } }
      : { ...common, type: "scatter", mode: "lines", line: { shape: "hvh", color: colour(run.index), dash: dash(run.index) } };
  });
  const shapes = [upright(100 * pooled, theme.ink, "solid"), upright(100 * tolerance, theme.mark, "dash")];
  const notes = [
    { x: 100 * pooled, y: 1, yref: "paper", text: "pooled", showarrow: false, xanchor: "left", yanchor: "top", bgcolor: theme.paper },
    { x: 100 * tolerance, y: 0.86, yref: "paper", text: "tolerated", showarrow: false, xanchor: "left", yanchor: "top", bgcolor: theme.paper },
  ].filter((each) => each.x <= 102 * most);
  draw(`plot-${rate}`, traces, layout(theme, {
    xaxis: axis(theme, `${rate.toUpperCase()} of a class, %`, { range: [0, 102 * most] }),
    yaxis: axis(theme, "classes", { rangemode: "tozero" }),
    shapes: shapes.filter((each) => each.x0 <= 102 * most),
    annotations: notes,
    showlegend: runs.length > 1,
    bargap: 0,
  }));
}

const GROUPS = {
  all: () => "",
  none: () => " beside the highlighted ones",
  worst: (share) => `: the ${share} of the classes that are served worst`,
  best: (share) => `: the ${share} of the classes that are served best`,
};

/** The classes whose curves are drawn: all, or every so many by rank, always with the worst and the best. */
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
  for (const which of shown) {
    const name = label(run.names[which]);
    for (let stop = (run.stops - 1) % step; stop < run.stops; stop += step) {
      x.push(run.thresholds[stop]);
      y.push(run.utility(which, stop));
      text.push(name);
    }
    x.push(null);
    y.push(null);
    text.push("");
  }
  const { mean, low, high } = run.summary;
  const middle = run.settings.mean_curve === "pooled" ? "all pairs together" : "mean of the classes";
  const thresholds = run.thresholds;
  const traces = [
    { x, y, mode: "lines", opacity: 0.6, line: { color: theme.faint, width: 0.8 }, text, hovertemplate: HOVER, name: "a class", meta: "classes" },
    { x: thresholds, y: low, mode: "lines", line: { width: 1.2, color: theme.accent, dash: "dot" }, hoverinfo: "skip", showlegend: false, meta: "low" },
    { x: thresholds, y: high, mode: "lines", line: { width: 1.2, color: theme.accent, dash: "dot" }, hoverinfo: "skip", name: "9 of 10 classes lie between", meta: "high" },
    { x: thresholds, y: mean, mode: "lines", line: { color: theme.ink, width: 2.5 }, text: thresholds.map(() => middle), hovertemplate: HOVER, name: middle, meta: "mean" },
    ...state.highlighted.map((which, place) => ({
      x: thresholds,
      y: thresholds.map((_, stop) => run.utility(which, stop)),
      mode: "lines",
      line: { color: classColour(place), dash: dash(place), width: 2.5 },
      text: thresholds.map(() => label(run.names[which])),
      hovertemplate: HOVER,
      name: legendLabel(run.names[which]),
      meta: `class ${which}`,
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
  const thinned = shown.length < all ? `${shown.length} of ${whole(all)} curves are drawn: every so many by mean utility, the ${Math.floor(DRAWN / 10)} worst and the ${Math.floor(DRAWN / 10)} best; any other by its name. Mean and band are of all classes.` : `${whole(shown.length)} of ${whole(run.ranked.length)} curves are drawn${GROUPS[state.group](roundPercent(run.settings.epsilon))}.`;
  const without = run.classes - run.ranked.length;
  byId("curves-note").textContent = thinned + (without > 0 ? ` ${whole(without)} classes without a pair of friends have no curve.` : "");
}

const FRIENDS = 2; // colours that no run has, as long as there are two
const STRANGERS = 4;

function drawDistances() {
  const theme = themed();
  const run = chosenRun();
  const traces = [];
  for (const other of runs) {
    const { edges, positive, negative } = other.distribution;
    const width = edges[1] - edges[0];
    const middles = positive.map((_, bin) => (edges[bin] + edges[bin + 1]) / 2);
    for (const [kind, shares, place] of [["friends", positive, FRIENDS], ["strangers", negative, STRANGERS]]) {
      const own = other === run;
      traces.push({
        x: middles, y: shares.map((each) => each / width), mode: "lines", name: own ? kind : `${kind}, ${legendLabel(other.name)}`,
        line: { color: colour(place), width: own ? 2 : 1.2, shape: "hvh", dash: own ? "solid" : dash(other.index || 1) },
        ...(own ? { fill: "tozeroy", fillcolor: `${colour(place)}40` } : {}),
        hovertemplate: "%{x:.3f}<extra></extra>", meta: `${kind} ${other.index}`,
      });
    }
  }
  const which = state.highlighted.at(-1);
  if (which !== undefined) traces.push(...classDistances(run, which));
  draw("plot-distances", traces, layout(theme, {
    xaxis: axis(theme, "distance of two embeddings", { range: [0, run.distribution.edges.at(-1)] }),
    yaxis: axis(theme, "density", { rangemode: "tozero", showticklabels: false }),
  }));
  afterDrawing("plot-distances");
}

/** Puts the line where it belongs now and whenever the picture is zoomed or grows. */
function afterDrawing(id) {
  const plot = byId(id);
  if (!plot.dataset.watched) plot.on("plotly_afterplot", () => placeLine(id));
  plot.dataset.watched = "true";
  placeLine(id);
}

/** One class's own densities, from the pairs between neighbouring thresholds, about 40 of them. */
function classDistances(run, which) {
  const step = Math.max(1, Math.floor(run.stops / 40));
  return [["friends", run.accepted, run.friends[which], FRIENDS], ["strangers", run.admitted, run.strangers[which], STRANGERS]]
    .filter(([, , total]) => total > 0)
    .map(([kind, counts, total, place]) => {
      const x = [];
      const y = [];
      for (let stop = step; stop < run.stops; stop += step) {
        const width = run.thresholds[stop] - run.thresholds[stop - step];
        x.push((run.thresholds[stop] + run.thresholds[stop - step]) / 2);
        y.push((counts[which * run.stops + stop] - counts[which * run.stops + stop - step]) / total / width);
      }
      return { x, y, mode: "lines", name: `${kind} of ${legendLabel(run.names[which])}`, line: { color: colour(place), width: 2, dash: "dot" }, hoverinfo: "skip", meta: `class ${which}` };
    });
}

const POWERS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1];

function drawRoc() {
  const theme = themed();
  const lowest = Math.min(...runs.map((run) => run.pooledFar.find((each) => each > 0) ?? 1));
  const lines = runs.map((run) => {
    const some = run.thresholds.map((_, stop) => stop).filter((stop) => run.pooledFar[stop] > 0);
    return {
      x: some.map((stop) => run.pooledFar[stop]), y: some.map((stop) => 1 - run.pooledFrr[stop]), 
      text: some.map((stop) => `${label(run.name)}: FAR ${percent(run.pooledFar[stop])}, friends accepted ${percent(1 - run.pooledFrr[stop])}, distance ${fixed(run.thresholds[stop])}`),
      mode: "lines", name: legendLabel(run.name), line: { color: colour(run.index), dash: dash(run.index), width: 2 },
      hoverinfo: "text", meta: `run ${run.index}`,
    };
  });
  draw("plot-roc", [...lines, ...here((run, stop) => [Math.max(run.pooledFar[stop], lowest), 1 - run.pooledFrr[stop]])], layout(theme, {
    xaxis: axis(theme, "FAR", { type: "log", range: [Math.log10(lowest), 0], tickangle: 0, tickvals: POWERS, ticktext: POWERS.map(roundPercent) }),
    yaxis: axis(theme, "friends accepted (1 − FRR)", { range: [0, 1.02], tickformat: ".0%" }),
    showlegend: runs.length > 1,
  }));
}

const TICKS = [1e-5, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99]; // far enough apart on a phone
const bounded = (share) => Math.min(Math.max(share, FLOOR), 1 - FLOOR);

function drawDet() {
  const theme = themed();
  const lines = runs.map((run) => {
    const some = run.thresholds.map((_, stop) => stop).filter((stop) => run.pooledFar[stop] > 0 && run.pooledFrr[stop] > 0 && run.pooledFar[stop] < 1 && run.pooledFrr[stop] < 1);
    return {
      x: some.map((stop) => probit(run.pooledFar[stop])), y: some.map((stop) => probit(run.pooledFrr[stop])),
      text: some.map((stop) => `${label(run.name)}: FAR ${percent(run.pooledFar[stop])}, FRR ${percent(run.pooledFrr[stop])}, distance ${fixed(run.thresholds[stop])}`),
      mode: "lines", name: legendLabel(run.name), line: { color: colour(run.index), dash: dash(run.index), width: 2 }, hoverinfo: "text", meta: `run ${run.index}`,
    };
  });
  const ends = (values) => {
    const all = values.flat();
    return all.length > 0 ? [all.reduce((a, b) => Math.min(a, b)) - 0.1, all.reduce((a, b) => Math.max(a, b)) + 0.1] : [-3, 3];
  };
  const ticks = { tickangle: 0, tickvals: TICKS.map(probit), ticktext: TICKS.map(roundPercent) };
  draw("plot-det", [...lines, ...here((run, stop) => [probit(bounded(run.pooledFar[stop])), probit(bounded(run.pooledFrr[stop]))])], layout(theme, {
    xaxis: axis(theme, "FAR", { ...ticks, range: ends(lines.map((each) => each.x)) }),
    yaxis: axis(theme, "FRR", { ...ticks, range: ends(lines.map((each) => each.y)) }),
    showlegend: runs.length > 1,
  }));
}

/** Each run's marker at its threshold. */
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
  const front = points.filter((one) => !points.some((other) => other.x <= one.x && other.y <= one.y && (other.x < one.x || other.y < one.y))).sort((a, b) => a.x - b.x);
  const bar = (bounds, value) => (bounds ? [Math.max(bounds[1] - value, 0), Math.max(value - bounds[0], 0)] : null);
  const traces = [
    { x: front.map((each) => each.x), y: front.map((each) => each.y), mode: "lines+markers", line: { color: theme.faint, shape: "hv", dash: "dot", width: 1.5 }, marker: { symbol: "circle-open", size: 22, color: theme.ink }, name: "no run beats these in both", hoverinfo: "skip", meta: "front" },
    ...points.map((each, place) => {
      const sideways = bar(each.run.intervals.opis, each.x);
      const recall = bar(each.run.intervals["recall@1"], 1 - each.y);
      return {
        x: [each.x], y: [each.y], mode: "markers+text", text: [label(each.run.name)], textposition: place % 2 ? "bottom right" : "top right", name: legendLabel(each.run.name), showlegend: false,
        marker: { color: colour(each.run.index), size: 12, symbol: each.run.index % 2 ? "diamond" : "circle" }, meta: `run ${each.run.index}`,
        hovertemplate: "OPIS %{x:.4g}, error %{y:.2%}<extra></extra>",
        ...(sideways ? { error_x: { type: "data", array: [sideways[0]], arrayminus: [sideways[1]], thickness: 1, color: colour(each.run.index) } } : {}),
        ...(recall ? { error_y: { type: "data", array: [recall[1]], arrayminus: [recall[0]], thickness: 1, color: colour(each.run.index) } } : {}),
      };
    }),
  ];
  draw("plot-pareto", traces, layout(theme, {
    xaxis: axis(theme, "OPIS", { tickformat: ".2g" }),
    yaxis: axis(theme, "error (1 − recall@1)", { tickformat: ".2~%" }),
  }));
}

/** Moves what stands for the threshold, without drawing curves again. */
function moveMarks() {
  placeLine("plot-curves");
  placeLine("plot-distances");
  drawSoon("plot-far", "plot-frr", "plot-roc", "plot-det");
}

const drawAll = () => drawSoon(...Object.keys(DRAWINGS));

/** Draws what comes into view before its turn. */
function watchPictures() {
  window.addEventListener("scroll", () => undrawn.size > 0 && drawSoon(), { passive: true });
}

/** Lets a press or a drag in a picture of distances move the threshold. */
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
