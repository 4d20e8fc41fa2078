// Puts the page together and listens.

// What a score is called, means and which direction is better comes from Python's registry of scores.
const scoreTile = (score, value) => ({ score, ...contents.scores[score], value, text: contents.scores[score].rate ? percent : number });

const TILES = [
  scoreTile("recall@1", (run) => run.scores["recall@1"]),
  scoreTile("opis", (run) => run.scores.opis),
  scoreTile("debiased_opis", (run) => run.scores.debiased_opis),
  scoreTile("epsilon_opis", (run) => run.scores.epsilon_opis),
  scoreTile("frr", (run) => run.target.frr),
  { score: "calibration_range", title: "calibration range", meaning: "Distances between which inconsistency is measured" },
  { score: "classes", title: "classes", value: (run) => run.scores.classes, text: whole },
  { score: "items", title: "items", value: (run) => run.scores.items, text: whole },
  { score: "pairs", title: "pairs", meaning: "Positive and negative pairs that were compared", value: (run) => run.scores.positive_pairs + run.scores.negative_pairs, text: whole },
];

function tileRow(tile, run) {
  const row = element("div", "", { class: "of-run" });
  if (runs.length > 1) {
    const name = element("span", run.name, { class: "run-name", title: run.name });
    name.style.setProperty("--run", colour(run.index));
    row.append(name);
  }
  if (tile.score === "calibration_range") {
    const [low, high] = run.range;
    row.append(element("span", `${fixed(low)} to ${fixed(high)}`, { class: "value", "data-run": run.index, "data-low": low, "data-high": high }));
    return row;
  }
  const value = tile.value(run);
  row.append(element("span", tile.text(value), { class: "value", "data-run": run.index, "data-value": value ?? "" }));
  const bounds = run.intervals[tile.score];
  if (bounds) row.append(element("span", `${tile.text(bounds[0])} to ${tile.text(bounds[1])}`, { class: "interval", "data-run": run.index, "data-low": bounds[0], "data-high": bounds[1], title: `${percent(bounds[2])} interval: other classes of the same kind` }));
  if (run.index > 0) row.append(differenceOf(tile, run, value));
  return row;
}

/** How a run differs from the first: a share of it for OPIS and its kin, points for shares, else the number. */
function differenceOf(tile, run, value) {
  const first = tile.value(runs[0]);
  const found = element("span", "", { class: "difference", "data-run": run.index });
  if (!known(value) || !known(first) || (!contents.alike && tile.direction)) return found;
  found.dataset.value = value - first;
  const sameRate = tile.score !== "frr" || (runs[0].intervals.frr && run.intervals.frr);
  const compared = sameRate ? contents.comparison?.[run.index - 1][tile.score] : undefined;
  const share = (each) => signed(`${Number((100 * each).toFixed(1))}%`);
  const points = (each) => signed((100 * each).toFixed(2));
  if (tile.relative && first > 0) {
    found.textContent = share(value / first - 1);
    if (compared?.change) found.textContent += ` (${share(compared.change.low)} to ${share(compared.change.high)})`;
  } else if (tile.rate) {
    found.textContent = `${points(value - first)} points`;
    if (compared) found.textContent += ` (${points(compared.difference.low)} to ${points(compared.difference.high)})`;
  } else if (value !== first) found.textContent = signed(whole(value - first));
  if (compared?.certain) found.classList.add(compared.better ? "better" : "worse");
  if (compared && !compared.certain) found.append(element("span", " not certain", { class: "hint" }));
  return found;
}

function showTiles() {
  const tiles = TILES.filter((tile) => !tile.value || runs.some((run) => known(tile.value(run)))).map((tile) => {
    const made = element("div", "", { class: tile.text === whole ? "tile counted" : "tile", "data-score": tile.score, title: tile.meaning ?? "" });
    const heading = element("h2", tile.title);
    if (tile.direction) heading.append(element("span", `, ${tile.direction}`, { class: "better-is" }));
    made.append(heading, ...runs.map((run) => tileRow(tile, run)));
    return made;
  });
  byId("tiles").replaceChildren(...tiles);
  byId("headline").textContent = contents.headline;
  const several = runs.length > 1;
  const notes = [...contents.notes, ...runs.flatMap((run) => run.notes.map((note) => (several ? `${run.name}: ${note}` : note)))];
  byId("notes").hidden = notes.length === 0;
  byId("notes").open = contents.notes.length > 0;
  byId("notes").querySelector("summary").textContent = notes.length === 1 ? "One note" : `${notes.length} notes`;
  byId("notes").querySelector("ul").replaceChildren(...notes.map((note) => element("li", note)));
  const sampled = runs.filter((run) => run.settings.pairs !== "all");
  const of = sampled.length === 0 ? "all pairs" : sampled.length === runs.length ? "sampled pairs" : `all pairs, of ${sampled.map((run) => run.name).join(", ")} over sampled ones`;
  const stops = [...new Set(runs.map((run) => run.stops))].sort((a, b) => a - b);
  const stopCount = stops.length > 1 ? `${stops[0]} to ${stops.at(-1)}` : stops[0];
  byId("made").textContent = `Made by isomargin ${contents.version}. FAR, FRR and utility at the threshold are counted over ${of}; the slider stops at ${stopCount} thresholds, where no rate is interpolated.`;
}

/** After the threshold has moved. */
let waiting = false;
function showMoved() {
  showControl();
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    showOperating();
    showWorst();
    showClasses();
    showDetail();
    moveMarks();
  });
}

function showTolerance() {
  for (const rate of ["far", "frr"]) {
    const field = byId(`tolerance-${rate}`);
    const isEmpty = field.value === "" && !field.validity.badInput;
    const possible = field.valueAsNumber >= 0 && field.valueAsNumber <= 100;
    field.toggleAttribute("aria-invalid", false);
    if (isEmpty) state.tolerance[rate] = Infinity;
    else if (possible) state.tolerance[rate] = field.valueAsNumber / 100;
    else field.setAttribute("aria-invalid", "true");
  }
  showOperating();
  showWorst();
  showClasses();
  drawSoon("plot-far", "plot-frr");
}

/** Twice the rates that the opening threshold has, as round numbers. */
function chooseTolerance() {
  const run = runs[0];
  for (const [rate, pooled] of [["far", run.pooledFar[state.stops[0]]], ["frr", run.pooledFrr[state.stops[0]]]]) {
    const value = Number((100 * Math.min(Math.max(2 * pooled, 0.001), 1)).toPrecision(1));
    state.tolerance[rate] = value / 100;
    byId(`tolerance-${rate}`).value = String(value);
  }
}

function showRun() {
  byId("curve-search").value = "";
  showPresets();
  showControl();
  showHead();
  showOperating();
  showWorst();
  showClasses();
  showChips();
  showSuggestions();
  showDetail();
  drawAll();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function listen() {
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    showTiles(); // runs have a colour of their own in each theme
    showOperating();
    showChips();
    drawAll();
  });
  byId("threshold").addEventListener("input", (event) => {
    moveTo(Number(event.target.value));
    showMoved();
  });
  for (const radio of document.querySelectorAll("input[name=unit]"))
    radio.addEventListener("change", () => {
      state.unit = radio.value;
      moveTo(chosenStop());
      showMoved();
    });
  byId("threshold-value").addEventListener("change", takeTyped);
  byId("threshold-value").addEventListener("focus", (event) => event.target.select());
  byId("run").addEventListener("change", (event) => {
    const names = state.highlighted.map((which) => chosenRun().names[which]);
    state.run = Number(event.target.value);
    state.highlighted = names.map((name) => chosenRun().names.indexOf(name)).filter((which) => which >= 0);
    showRun();
  });
  for (const rate of ["far", "frr"]) byId(`tolerance-${rate}`).addEventListener("input", showTolerance);
  byId("worst-by").addEventListener("change", showWorst);
  byId("curve-group").addEventListener("change", (event) => {
    state.group = event.target.value;
    drawSoon("plot-curves");
  });
  byId("curve-search").addEventListener("input", showSuggestions);
  byId("curve-search").addEventListener("keydown", (event) => event.key === "Enter" && byId("suggestions").querySelector("button")?.click());
  byId("clear").addEventListener("click", () => {
    state.highlighted = [];
    showHighlighted();
  });
  byId("filter").addEventListener("input", (event) => {
    state.filter = event.target.value;
    state.rows = 100;
    showClasses();
  });
  byId("outside-only").addEventListener("change", (event) => {
    state.outsideOnly = event.target.checked;
    showClasses();
  });
  byId("more").addEventListener("click", () => {
    state.rows += 400;
    showClasses();
  });
  byId("export").addEventListener("click", exportClasses);
  for (const id of ["plot-curves", "plot-distances"])
    followPointer(id, (distance) => {
      moveTo(chosenRun().stopAtDistance(distance));
      showMoved();
    });
}

function open() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  byId("run").replaceChildren(...runs.map((run) => element("option", run.name, { value: run.index })));
  byId("run-choice").hidden = runs.length < 2;
  byId(`unit-${state.unit}`).checked = true;
  chooseTolerance();
  showTiles();
  byId("pareto").hidden = runs.length < 2;
  showRun();
  listen();
  // Plotly's script stands behind this one: numbers are there before it is read.
  document.addEventListener("DOMContentLoaded", () => {
    drawAll();
    watchPictures();
    document.documentElement.dataset.ready = "true";
  });
}

open();
