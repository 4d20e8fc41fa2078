// What the reader has selected. Everything visible is computed from it.

const contents = JSON.parse(byId("contents").textContent);
const runs = contents.runs.map((values, index) => new Run(values, index));
const isGallery = Boolean(runs[0].gallery); // all runs of a report make the same kind of comparison
const hasUnknown = runs.every((run) => run.gallery?.unknown > 0);
const isRate = (unit) => unit === "far" || unit === "fpir";

const state = {
  run: 0,
  unit: runs.length === 1 ? "distance" : hasUnknown ? "fpir" : "far", // distances of different models are not comparable
  stops: runs.map((run) => openingStop(run)),
  asked: "", // a message about the typed value, if no stop is exactly there
  tolerance: { far: 0, frr: 0 },
  group: "all",
  highlighted: [],
  sort: { column: "mean_utility", descending: false },
  filter: "",
  outsideOnly: false,
  rows: 100,
};

const chosenRun = () => runs[state.run];
const chosenStop = () => state.stops[state.run];

/** The stop at the target FPIR or FAR of the run, or at the equal error rate if the data can resolve neither. */
function openingStop(run) {
  const preset = targetPreset(run, "fpir") ?? targetPreset(run, "far");
  return preset ? preset[1] : run.equal_error;
}

function targetPreset(run, unit) {
  return run.ratePresets[unit].find(([rate]) => rate === run.settings[`target_${unit}`]);
}

/** The rate for which confusions were found: that of the threshold at which the page opens. */
function confusedAt(run) {
  const unit = targetPreset(run, "fpir") ? "fpir" : "far";
  return `${unit.toUpperCase()} ${roundPercent(run.settings[`target_${unit}`])}`;
}

/** Moves the chosen run to a stop; the other runs follow to the same rate if the unit is one, else to the same distance. */
function moveTo(stop) {
  const run = chosenRun();
  state.asked = "";
  state.stops = runs.map((other) => {
    if (other === run) return stop;
    return isRate(state.unit) ? other.stopAtRate(state.unit, run.rates[state.unit][stop]) : other.stopAtDistance(run.thresholds[stop]);
  });
}

/** Moves to the largest threshold with at most this FAR or FPIR: every run to its own if the unit is a rate, else as `moveTo` does. */
function moveToRate(unit, rate) {
  const stopOf = (run) => run.ratePresets[unit].find(([preset]) => preset === rate)?.[1] ?? run.stopAtRate(unit, rate);
  state.asked = "";
  if (isRate(state.unit)) {
    state.unit = unit;
    state.stops = runs.map(stopOf);
  } else moveTo(stopOf(chosenRun()));
}

const exceeds = (run, rate, classIndex, stop) => run[rate](classIndex, stop) > state.tolerance[rate];
const isOutside = (run, classIndex, stop) => exceeds(run, "far", classIndex, stop) || exceeds(run, "frr", classIndex, stop);

/** Counts the classes of a run that are over the limits at a stop: by FAR, by FRR, and by either. */
function outside(run, stop) {
  const counted = { far: 0, frr: 0, all: 0 };
  for (let classIndex = 0; classIndex < run.classes; classIndex++) {
    counted.far += exceeds(run, "far", classIndex, stop);
    counted.frr += exceeds(run, "frr", classIndex, stop);
    counted.all += isOutside(run, classIndex, stop);
  }
  return counted;
}

/** Highlights a class of the chosen run. At most six are highlighted; the oldest is dropped. */
function highlight(classIndex) {
  state.highlighted = [...state.highlighted.filter((highlighted) => highlighted !== classIndex), classIndex].slice(-6);
}
