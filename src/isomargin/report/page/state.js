// What the reader has selected. Everything visible is computed from it.

const contents = JSON.parse(byId("contents").textContent);
const runs = contents.runs.map((values, index) => new Run(values, index));

const state = {
  run: 0,
  unit: runs.length > 1 ? "far" : "distance", // distances of different models are not comparable, FARs are
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

/** The stop at the target FAR of the run, or at the equal error rate if the data cannot resolve that FAR. */
function openingStop(run) {
  const preset = run.presets.find(([far]) => far === run.settings.target_far);
  return preset ? preset[1] : run.equal_error;
}

/** Moves the chosen run to a stop; the other runs follow to the same FAR in the unit FAR, else to the same distance. */
function moveTo(stop) {
  const run = chosenRun();
  state.asked = "";
  state.stops = runs.map((other) => {
    if (other === run) return stop;
    return state.unit === "far" ? other.stopAtFar(run.pooledFar[stop]) : other.stopAtDistance(run.thresholds[stop]);
  });
}

/** Moves to the largest threshold with at most this FAR: every run to its own in the unit FAR, else as `moveTo` does. */
function moveToFar(far) {
  const stopOf = (run) => run.presets.find(([rate]) => rate === far)?.[1] ?? run.stopAtFar(far);
  state.asked = "";
  if (state.unit === "far") state.stops = runs.map(stopOf);
  else moveTo(stopOf(chosenRun()));
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
