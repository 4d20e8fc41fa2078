// What the reader has chosen. Everything that can be seen follows from it.

const contents = JSON.parse(byId("contents").textContent);
const runs = contents.runs.map((values, index) => new Run(values, index));

const state = {
  run: 0,
  unit: runs.length > 1 ? "far" : "distance", // models have distances of their own: a FAR is what they share
  stops: runs.map((run) => openingStop(run)),
  asked: "", // what was typed, where no stop is exactly there
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

/** At the target that the run was evaluated for; where the data cannot tell that FAR, at equal errors. */
function openingStop(run) {
  const preset = run.presets.find(([far]) => far === run.settings.target_far);
  return preset ? preset[1] : run.equal_error;
}

/** Moves the chosen run's threshold, and the other runs' to the same FAR in that unit, else to the same distance. */
function moveTo(stop) {
  const run = chosenRun();
  state.asked = "";
  state.stops = runs.map((other) => {
    if (other === run) return stop;
    return state.unit === "far" ? other.stopAtFar(run.pooledFar[stop]) : other.stopAtDistance(run.thresholds[stop]);
  });
}

/** Moves to the largest threshold of a FAR: every run to its own in that unit, else as `moveTo` does. */
function moveToFar(far) {
  const stopOf = (run) => run.presets.find(([rate]) => rate === far)?.[1] ?? run.stopAtFar(far);
  state.asked = "";
  if (state.unit === "far") state.stops = runs.map(stopOf);
  else moveTo(stopOf(chosenRun()));
}

const exceeds = (run, rate, which, stop) => run[rate](which, stop) > state.tolerance[rate];
const isOutside = (run, which, stop) => exceeds(run, "far", which, stop) || exceeds(run, "frr", which, stop);

/** How many classes a run's threshold leaves outside the tolerance: by FAR, by FRR, in all. */
function outside(run, stop) {
  const counted = { far: 0, frr: 0, all: 0 };
  for (let which = 0; which < run.classes; which++) {
    counted.far += exceeds(run, "far", which, stop);
    counted.frr += exceeds(run, "frr", which, stop);
    counted.all += isOutside(run, which, stop);
  }
  return counted;
}

/** Highlights a class of the chosen run; at most six, the oldest goes. */
function highlight(which) {
  state.highlighted = [...state.highlighted.filter((each) => each !== which), which].slice(-6);
}
