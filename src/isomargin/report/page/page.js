// Fills the page and handles its events.

// The title, meaning and better direction of a score come from the registry of scores in Python.
const scoreTile = (score, value) => ({ score, ...contents.scores[score], value, text: contents.scores[score]?.rate ? percent : number });
const scoreTileOf = (score) => scoreTile(score, (run) => run.scores[score]);

/** How many labels the unknown probes have. */
function unknownRemark({ unknown, unknown_labels }) {
  if (unknown === 0) return "so FPIR is not known";
  return unknown_labels > 1 ? `of ${whole(unknown_labels)} classes` : "all with one label";
}

const galleryScores = [scoreTileOf("fnir"), scoreTileOf("misidentified")];

const gallerySizes = [
  { score: "classes", title: "enrolled classes", meaning: "Classes of the gallery, and the items from which their templates are made.", value: (run) => run.scores.classes, text: whole, remark: (run) => `${whole(run.gallery.enrolled)} items` },
  { score: "known", title: "known probes", meaning: "Probes of enrolled classes.", value: (run) => run.gallery.known, text: whole, remark: (run) => `of ${whole(run.gallery.known_classes)} classes` },
  { score: "unknown", title: "unknown probes", meaning: "Probes of classes that are not enrolled.", value: (run) => run.gallery.unknown, text: whole, remark: (run) => unknownRemark(run.gallery) },
];

const itemSizes = [
  { score: "classes", title: "classes", value: (run) => run.scores.classes, text: whole },
  { score: "items", title: "items", value: (run) => run.scores.items, text: whole },
];

const TILES = [
  scoreTile("recall@1", (run) => run.scores["recall@1"]),
  ...(isGallery ? galleryScores : []),
  scoreTile("opis", (run) => run.scores.opis),
  scoreTile("debiased_opis", (run) => run.scores.debiased_opis),
  scoreTile("epsilon_opis", (run) => run.scores.epsilon_opis),
  { ...scoreTile("far_within_two", (run) => run.scores.far_within_two), remark: chanceRemark },
  scoreTile("frr", (run) => run.target.frr),
  { score: "calibration_range", title: "calibration range", meaning: "The range of thresholds (distances) over which OPIS is averaged." },
  ...(isGallery ? gallerySizes : itemSizes),
  { score: "pairs", title: isGallery ? "comparisons" : "pairs", meaning: isGallery ? "Number of positive and negative pairs of a probe and a template that were compared." : "Number of positive and negative pairs that were compared.", value: (run) => run.scores.positive_pairs + run.scores.negative_pairs, text: whole },
];

/** What chance would leave of a share of classes, and how many classes do not count. */
function chanceRemark(run) {
  const { expected, classes, left_out } = run.scores.within_two.far;
  const chance = known(expected) ? `${percent(expected)} if only chance differed` : "";
  const without = left_out > 0 ? `${whole(left_out)} of ${whole(classes + left_out)} classes left out (too few pairs)` : "";
  return [chance, without].filter(Boolean).join("; ");
}

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
  if (bounds) row.append(element("span", `${tile.text(bounds[0])} to ${tile.text(bounds[1])}`, { class: "interval", "data-run": run.index, "data-low": bounds[0], "data-high": bounds[1], title: `${roundPercent(bounds[2])} confidence interval over classes` }));
  if (run.index > 0) row.append(differenceOf(tile, run, value));
  if (tile.remark) row.append(element("span", tile.remark(run), { class: "hint", "data-run": run.index }));
  return row;
}

/** The difference between a run and the first: relative for OPIS and its variants, percentage points for rates, else absolute. */
function differenceOf(tile, run, value) {
  const first = tile.value(runs[0]);
  const difference = element("span", "", { class: "difference", "data-run": run.index });
  if (!known(value) || !known(first) || (!contents.alike && tile.direction)) return difference;
  difference.dataset.value = value - first;
  const sameRate = tile.score !== "frr" || (runs[0].intervals.frr && run.intervals.frr);
  const compared = sameRate ? contents.comparison?.[run.index - 1][tile.score] : undefined;
  const relative = (change) => signed(`${Number((100 * change).toFixed(1))}%`);
  const points = (change) => signed((100 * change).toFixed(2));
  if (tile.relative && first > 0) {
    difference.textContent = relative(value / first - 1);
    if (compared?.change) difference.textContent += ` (${relative(compared.change.low)} to ${relative(compared.change.high)})`;
  } else if (tile.rate) {
    difference.textContent = `${points(value - first)} points`;
    if (compared) difference.textContent += ` (${points(compared.difference.low)} to ${points(compared.difference.high)})`;
  } else if (value !== first) difference.textContent = signed(whole(value - first));
  if (compared?.certain) difference.classList.add(compared.better ? "better" : "worse");
  if (compared && !compared.certain) difference.append(element("span", " not significant", { class: "hint", title: "The 95% confidence interval of the difference contains zero." }));
  return difference;
}

function showTiles() {
  const tiles = TILES.filter((tile) => !tile.value || runs.some((run) => known(tile.value(run)))).map((tile) => {
    const box = element("div", "", { class: tile.text === whole ? "tile counted" : "tile", "data-score": tile.score, title: tile.meaning ?? "" });
    const heading = element("h2", tile.title);
    if (tile.direction) heading.append(element("span", `, ${tile.direction}`, { class: "better-is" }));
    box.append(heading, ...runs.map((run) => tileRow(tile, run)));
    return box;
  });
  byId("tiles").replaceChildren(...tiles);
  byId("headline").textContent = contents.headline;
  const several = runs.length > 1;
  showTilesNote(several);
  const notes = [...contents.notes, ...runs.flatMap((run) => run.notes.map((note) => (several ? `${run.name}: ${note}` : note)))];
  byId("notes").hidden = notes.length === 0;
  byId("notes").open = contents.notes.length > 0;
  byId("notes").querySelector("summary").textContent = notes.length === 1 ? "One note" : `${notes.length} notes`;
  byId("notes").querySelector("ul").replaceChildren(...notes.map((note) => element("li", note)));
  const sampled = runs.filter((run) => run.settings.pairs !== "all");
  const sampledNames = sampled.map((run) => run.name).join(", ");
  const countedPairs = sampled.length === 0 ? "all pairs" : sampled.length === runs.length ? "a sample of the pairs" : `all pairs (a sample for ${sampledNames})`;
  const stops = [...new Set(runs.map((run) => run.stops))].sort((a, b) => a - b);
  const stopCount = stops.length > 1 ? `${stops[0]} to ${stops.at(-1)}` : stops[0];
  const counted = isGallery ? "all pairs of a probe and a template, FPIR and FNIR from all probes" : countedPairs;
  byId("made").textContent = `Made with isomargin ${contents.version}. FAR, FRR and utility are counted from ${counted}. The slider stops at ${stopCount} thresholds; the rates are exact there, not interpolated${runs.some((run) => run.gallery?.between_edges) ? ", except for FAR and FRR at the FPIR presets, which lie within a bin of distances" : ""}.`;
}

/** Says what a probe is compared with, and when its first class is accepted. */
function showGallery() {
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = (part.dataset.for === "gallery") !== isGallery;
  for (const part of document.querySelectorAll(".needs-unknown")) part.hidden = !hasUnknown;
  if (!isGallery) return;
  const words = runs.map((run) => {
    const rule = run.gallery.margin > 0 ? `; identification also needs a similarity at least ${number(run.gallery.margin)} above that of the second class` : "";
    return `${runs.length > 1 ? `${run.name}: ` : ""}probes are compared with templates (${run.gallery.template})${rule}.`;
  });
  byId("gallery").textContent = runs.length > 1 ? words.join(" ") : words[0].replace(/^p/, "P");
}

/** Explains the intervals and differences on the tiles. */
function showTilesNote(several) {
  const hasIntervals = runs.some((run) => Object.keys(run.intervals).length > 0);
  const intervals = hasIntervals ? "Ranges are 95% confidence intervals over classes." : "";
  const differences = several && contents.alike ? `Signed values are differences from ${runs[0].name}.` : "";
  byId("tiles-note").textContent = `${intervals} ${differences}`.trim();
  byId("tiles-note").hidden = byId("tiles-note").textContent === "";
}

/** Updates the page after the threshold has moved, at most once per frame. */
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

/** Sets the initial limits: twice the pooled rates at the initial threshold, rounded. */
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
    showTiles(); // the colours of runs depend on the theme
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
    const names = state.highlighted.map((classIndex) => chosenRun().names[classIndex]);
    state.run = Number(event.target.value);
    state.highlighted = names.map((name) => chosenRun().names.indexOf(name)).filter((classIndex) => classIndex >= 0);
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
  const names = new Set(runs.map((run) => run.similarity_name));
  for (const shown of document.querySelectorAll(".similarity-name")) shown.textContent = names.size > 1 ? "similarity" : runs[0].similarity_name;
  chooseTolerance();
  showGallery();
  showTiles();
  byId("pareto").hidden = runs.length < 2;
  showRun();
  listen();
  // Plotly's script comes after this one, so that the numbers appear before it has loaded.
  document.addEventListener("DOMContentLoaded", () => {
    drawAll();
    watchScrolling();
    document.documentElement.dataset.ready = "true";
  });
}

open();
