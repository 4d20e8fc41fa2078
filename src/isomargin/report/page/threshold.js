// The threshold control, and the tables that show the effect of the threshold.

const shownThreshold = {
  distance: (run, stop) => fixed(run.thresholds[stop]),
  similarity: (run, stop) => fixed(similarityOf(run.thresholds[stop])),
  far: (run, stop) => percent(run.pooledFar[stop]).replace("%", ""), // the percent sign is shown after the field
  fpir: (run, stop) => percent(run.pooledFpir[stop]).replace("%", ""),
};

const FOLLOWING = {
  distance: " Other runs use the nearest available distance.",
  similarity: " Other runs use the nearest available similarity.",
  far: " Every other run uses its own largest threshold with at most this FAR.",
  fpir: " Every other run uses its own largest threshold with at most this FPIR.",
};

function showControl() {
  const run = chosenRun();
  const slider = byId("threshold");
  slider.max = String(run.stops - 1);
  slider.value = String(chosenStop());
  const shown = shownThreshold[state.unit](run, chosenStop());
  slider.setAttribute("aria-valuetext", `${state.unit} ${shown}${isRate(state.unit) ? "%" : ""}`);
  byId(`unit-${state.unit}`).checked = true;
  byId("threshold-unit").hidden = !isRate(state.unit);
  for (const button of document.querySelectorAll(".preset")) button.setAttribute("aria-pressed", String(Number(button.dataset.stop) === chosenStop()));
  const typed = byId("threshold-value");
  typed.value = shown;
  typed.removeAttribute("aria-invalid");
  const sentence = `Accepts pairs at distance ${fixed(run.thresholds[chosenStop()])} or less`;
  byId("said").textContent = `${sentence} (${run.similarity_name} ${fixed(similarityOf(run.thresholds[chosenStop()]))} or more): FAR ${percent(run.pooledFar[chosenStop()])}, FRR ${percent(run.pooledFrr[chosenStop()])}${identificationWords(run, chosenStop())}.${runs.length > 1 ? FOLLOWING[state.unit] : ""}`;
  byId("asked").textContent = state.asked;
}

/** FPIR, FNIR and misidentified probes of a gallery at a stop, in words. */
function identificationWords(run, stop) {
  if (!run.gallery) return "";
  const accepted = run.gallery.unknown > 0 ? `; FPIR ${percent(run.pooledFpir[stop])}` : "";
  return `${accepted}; FNIR ${percent(run.pooledFnir[stop])}, misidentified ${percent(run.pooledMisidentified[stop])}`;
}

/** Sets the threshold to the typed value; rejects a value that is not a threshold. */
function takeTyped() {
  const typed = byId("threshold-value");
  if (typed.value === shownThreshold[state.unit](chosenRun(), chosenStop())) return showControl();
  const value = readNumber(typed.value, isRate(state.unit));
  const [lowest, highest] = chosenRun().axis;
  const [least, most] = [similarityOf(highest), similarityOf(lowest)];
  const possible = { distance: value >= lowest && value <= highest, similarity: value >= least && value <= most, far: value > 0 && value <= 1, fpir: value > 0 && value <= 1 };
  if (!possible[state.unit]) {
    typed.setAttribute("aria-invalid", "true");
    const limits = (low, high) => `from ${low} to ${high}`.replaceAll("-", "−");
    const needed = { distance: `a distance ${limits(lowest, highest)}`, similarity: `${chosenRun().similarity_name.startsWith("cosine") ? "a" : "an"} ${chosenRun().similarity_name} ${limits(least, most)}`, far: "a FAR in percent, above 0 and at most 100", fpir: "an FPIR in percent, above 0 and at most 100" };
    byId("asked").textContent = `“${typed.value}” is not a threshold: enter ${needed[state.unit]}.`;
    return undefined;
  }
  const wanted = typed.value.trim();
  if (isRate(state.unit)) moveToRate(state.unit, value);
  else moveTo(chosenRun().stopAtDistance(state.unit === "distance" ? value : distanceOf(value)));
  if (Math.abs(reached() - value) > 5e-4 * Math.abs(value)) {
    const what = isRate(state.unit) ? "the largest available threshold that does not exceed it" : "the nearest available threshold";
    state.asked = `You entered ${wanted}: this is ${what}.`;
  }
  return showMoved();
}

/** The current threshold in the selected unit. */
function reached() {
  const run = chosenRun();
  const distance = run.thresholds[chosenStop()];
  return { distance, similarity: similarityOf(distance), far: run.pooledFar[chosenStop()], fpir: run.pooledFpir?.[chosenStop()] }[state.unit];
}

function showPresets() {
  const run = chosenRun();
  const offered = (hasUnknown ? ["fpir", "far"] : ["far"]).flatMap((unit) => run.ratePresets[unit].map(([rate, stop]) => [unit, rate, stop]));
  const buttons = offered.map(([unit, rate, stop]) => {
    const button = element("button", `${unit.toUpperCase()} ${roundPercent(rate)}`, { type: "button", class: "preset", [`data-${unit}`]: rate, "data-stop": stop, title: `distance ${fixed(run.thresholds[stop])}` });
    button.addEventListener("click", () => {
      moveToRate(unit, rate);
      showMoved();
    });
    return button;
  });
  const equal = element("button", contents.scores.eer.title, { type: "button", class: "preset", "data-preset": "eer", "data-stop": run.equal_error, title: "the threshold at which FAR and FRR are about equal" });
  equal.addEventListener("click", () => {
    moveTo(chosenRun().equal_error);
    showMoved();
  });
  byId("presets").replaceChildren(...buttons, equal);
}

const probesOf = (count) => `${whole(count)} ${count === 1 ? "probe" : "probes"}`;

function cell(column, text, value, attributes = {}) {
  return element("td", text, { "data-cell": column, "data-value": value ?? "", ...attributes });
}

function showOperating() {
  const rows = runs.map((run) => {
    const stop = state.stops[run.index];
    const distance = run.thresholds[stop];
    const row = element("tr", "", { "data-run": run.index });
    const name = element("th", run.name, { scope: "row", class: "run-name" });
    name.style.setProperty("--run", colour(run.index));
    const counted = outside(run, stop);
    row.append(
      name,
      cell("distance", fixed(distance), distance),
      cell("similarity", fixed(similarityOf(distance)), similarityOf(distance)),
      cell("far", percent(run.pooledFar[stop]), run.pooledFar[stop]),
      cell("frr", percent(run.pooledFrr[stop]), run.pooledFrr[stop]),
      ...(run.gallery ? identificationCells(run, stop) : []),
      cell("outside-far", whole(counted.far), counted.far),
      cell("outside-frr", whole(counted.frr), counted.frr),
      cell("outside", `${whole(counted.all)} of ${whole(run.classes)}`, counted.all),
    );
    return row;
  });
  byId("operating").tBodies[0].replaceChildren(...rows);
  byId("outside-run").textContent = runs.length > 1 ? ` in ${chosenRun().name}` : "";
  const counted = outside(chosenRun(), chosenStop());
  for (const [id, value] of [["outside-far", counted.far], ["outside-frr", counted.frr], ["outside", counted.all]]) {
    byId(id).textContent = whole(value);
    byId(id).dataset.value = value;
  }
}

function identificationCells(run, stop) {
  const rates = { fpir: run.pooledFpir[stop], fnir: run.pooledFnir[stop], misidentified: run.pooledMisidentified[stop] };
  return Object.entries(rates).map(([name, rate]) => cell(name, percent(rate), rate));
}

/** The class most often confused with this one, where it is known. */
function worstConfusion(run, classIndex) {
  const [first] = run.examples[classIndex]?.confusions ?? [];
  if (first && run.gallery) return `${first.name} (${probesOf(first.pairs)})`;
  return first ? `${first.name} (${percent(first.share)})` : DASH;
}

function showWorst() {
  const run = chosenRun();
  const withConfusions = Object.keys(run.examples).length > 0;
  byId("worst-confusion").hidden = !withConfusions;
  byId("worst-confusion").textContent = `most often confused with (at ${confusedAt(run)})`;
  const stop = chosenStop();
  const by = byId("worst-by").value;
  const badness = (classIndex) => (by === "utility" ? -run.utility(classIndex, stop) : run[by](classIndex, stop));
  const order = [];
  for (let classIndex = 0; classIndex < run.classes; classIndex++) if (!Number.isNaN(badness(classIndex))) order.push(classIndex);
  order.sort((a, b) => badness(b) - badness(a) || a - b);
  const rows = order.slice(0, 10).map((classIndex) => {
    const row = chooseableRow(classIndex);
    row.append(
      element("th", run.names[classIndex], { scope: "row", "data-cell": "class", class: "name", title: run.names[classIndex] }),
      ...["far", "frr"].map((rate) => cell(rate, percent(run[rate](classIndex, stop)), run[rate](classIndex, stop), run[rate](classIndex, stop) > state.tolerance[rate] ? { class: "beyond" } : {})),
      cell("utility", thousandths(run.utility(classIndex, stop)), run.utility(classIndex, stop)),
      ...(withConfusions ? [element("td", worstConfusion(run, classIndex), { "data-cell": "confusion", class: "name" })] : []),
    );
    return row;
  });
  replaceRows(byId("worst"), rows);
}

/** Replaces the rows of a table. The Tab key reaches one of them; the arrow keys move on from there. */
function replaceRows(table, rows) {
  const body = table.tBodies[0];
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.class : undefined;
  body.replaceChildren(...rows);
  const again = rows.find((row) => row.dataset.class === focused);
  if (rows.length > 0) (again ?? rows[0]).tabIndex = 0;
  again?.focus({ preventScroll: true });
}

/** A row that highlights its class when clicked, or when Enter is pressed on it. */
function chooseableRow(classIndex) {
  const row = element("tr", "", { "data-class": classIndex, tabindex: "-1" });
  row.setAttribute("aria-selected", String(state.highlighted.includes(classIndex)));
  const choose = () => {
    highlight(classIndex);
    showHighlighted();
  };
  row.addEventListener("click", choose);
  row.addEventListener("keydown", (event) => {
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (next === undefined && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    if (next) {
      row.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else if (next === undefined) choose();
  });
  return row;
}
