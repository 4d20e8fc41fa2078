// The table of classes, its export as CSV, and the details of the selected class.

const COLUMNS = [
  { key: "class", title: "class", hint: "Label of the class", text: (value) => value },
  { key: "items", title: "items", hint: "Number of items in the class", text: whole },
  { key: "enrolled", title: "enrolled", hint: "Number of items from which the template of the class is made", text: whole },
  { key: "probes", title: "probes", hint: "Number of known probes of the class", text: whole },
  { key: "far", title: "FAR", hint: "Share of the negative pairs of this class that the threshold accepts", text: percent, live: true },
  { key: "frr", title: "FRR", hint: "Share of the positive pairs of this class that the threshold rejects", text: percent, live: true },
  { key: "fnir", title: "FNIR", hint: "Share of the known probes of this class that are not identified: the class is not accepted, or does not come first", text: percent, live: true, shown: (run) => Boolean(run.gallery) },
  { key: "false_positive_share", title: "of false positives", hint: "Of the unknown probes that the threshold accepts, the share for which this class comes first", text: percent, live: true, shown: (run) => run.gallery?.unknown > 0 },
  { key: "utility", title: "utility", hint: "Utility of this class at the threshold", text: thousandths, live: true },
  { key: "own_threshold", title: "own threshold", hint: "The threshold at which this class has this FAR", text: fixed },
  { key: "mean_utility", title: "mean utility", hint: "Mean over the calibration range; does not depend on the threshold", text: thousandths },
  { key: "opis_share", title: "share of OPIS", hint: "Share of OPIS that is due to this class", text: percent },
  { key: "eer", title: "EER", hint: "Equal error rate of the pairs of this class", text: percent },
];

const LIVE = new Set(COLUMNS.filter(({ live }) => live).map(({ key }) => key));

function columnsOf(run) {
  const isShown = ({ key, live, shown }) => (shown ? shown(run) : key === "class" || live || key in run.columns);
  const columns = COLUMNS.filter(isShown).map((column) =>
    column.key === "own_threshold" ? { ...column, title: `threshold for FAR ${roundPercent(run.settings.target_far)}` } : column);
  const recall = Object.keys(run.columns).find((key) => key.startsWith("recall@")); // the smallest k
  return recall ? [...columns, { key: recall, title: recall, hint: isGallery ? "Share of the known probes of this class for which it is among the first" : "Recall of the items of this class", text: percent }] : columns;
}

function valueOf(run, key, classIndex) {
  if (key === "class") return run.names[classIndex];
  if (LIVE.has(key)) return run[key](classIndex, chosenStop());
  return run.columns[key]?.[classIndex] ?? NaN;
}

/** Classes that match the filters, in the order of the table; unknown values come last in both directions. */
function orderedClasses() {
  const run = chosenRun();
  const wanted = state.filter.trim().toLowerCase();
  const kept = [];
  for (let classIndex = 0; classIndex < run.classes; classIndex++) {
    if (wanted !== "" && !run.lowerCaseNames[classIndex].includes(wanted)) continue;
    if (state.outsideOnly && !isOutside(run, classIndex, chosenStop())) continue;
    kept.push(classIndex);
  }
  const { column, descending } = state.sort;
  const sign = descending ? -1 : 1;
  if (column === "class") {
    const collator = new Intl.Collator("en", { numeric: true });
    return kept.sort((a, b) => sign * collator.compare(run.names[a], run.names[b]) || a - b);
  }
  const values = new Map(kept.map((classIndex) => [classIndex, valueOf(run, column, classIndex)]));
  return kept.sort((a, b) => {
    const [left, right] = [values.get(a), values.get(b)];
    if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right) || a - b;
    return sign * (left - right) || a - b;
  });
}

function showHead() {
  if (!columnsOf(chosenRun()).some(({ key }) => key === state.sort.column)) state.sort = { column: "mean_utility", descending: false };
  const cells = columnsOf(chosenRun()).map(({ key, title, hint }) => {
    const head = element("th", "", { scope: "col", "aria-sort": "none" });
    const button = element("button", title, { type: "button", "data-column": key, title: hint });
    button.addEventListener("click", () => {
      const again = state.sort.column === key;
      state.sort = { column: key, descending: again ? !state.sort.descending : !(["class", "utility", "mean_utility", "own_threshold"].includes(key) || key.startsWith("recall@")) };
      showClasses();
    });
    head.append(button);
    return head;
  });
  byId("classes").tHead.rows[0].replaceChildren(...cells);
  byId("classes").classList.toggle("dense", isGallery); // it has more columns
}

function showClasses() {
  const run = chosenRun();
  const order = orderedClasses();
  const columns = columnsOf(run);
  for (const button of byId("classes").tHead.querySelectorAll("button")) {
    const sorted = button.dataset.column === state.sort.column;
    button.parentElement.setAttribute("aria-sort", sorted ? (state.sort.descending ? "descending" : "ascending") : "none");
  }
  const rows = order.slice(0, state.rows).map((classIndex) => {
    const row = chooseableRow(classIndex);
    for (const { key, text } of columns) {
      const value = valueOf(run, key, classIndex);
      if (key === "class") row.append(element("th", value, { scope: "row", class: "name", "data-cell": key, "data-value": value, title: value }));
      else row.append(cell(key, text(value), value, (key === "far" || key === "frr") && value > state.tolerance[key] ? { class: "beyond" } : {}));
    }
    return row;
  });
  replaceRows(byId("classes"), rows);
  byId("rows-note").textContent = `${whole(order.length)} of ${whole(run.classes)} classes${order.length > rows.length ? `, first ${whole(rows.length)} shown` : ""}`;
  byId("more").hidden = order.length <= rows.length;
  byId("more").textContent = `Show ${whole(Math.min(400, order.length - rows.length))} more`;
  byId("no-class").hidden = order.length > 0;
  const limits = ["far", "frr"].filter((rate) => state.tolerance[rate] <= 1).map((rate) => `${rate.toUpperCase()} over ${roundPercent(state.tolerance[rate])}`);
  byId("outside-words").textContent = limits.length > 0 ? `(${limits.join(" or ")})` : "(no limit is set)";
}

/** A field of a CSV file, by the rules of core/csv_files.py: text that a spreadsheet would run gets an apostrophe. */
function csvField(value) {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  const isNumber = /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$/.test(value);
  const isFormula = /^'*([\s\0]*[=+\-@＝＋－＠]|[\t\r\n\0])/.test(value);
  const safe = isFormula && !isNumber ? `'${value}` : value;
  return `"${safe.replace(/"/g, '""')}"`;
}

function csv() {
  const run = chosenRun();
  const columns = columnsOf(run);
  const lines = [columns.map(({ key }) => csvField(key)).join(",")];
  for (const classIndex of orderedClasses())
    lines.push(columns.map(({ key }) => csvField(key === "class" ? run.labels[classIndex] ?? run.names[classIndex] : valueOf(run, key, classIndex))).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

function exportClasses() {
  byId("exported").textContent = `${whole(orderedClasses().length)} classes of ${chosenRun().name}, at threshold ${fixed(chosenRun().thresholds[chosenStop()])}, exported to classes.csv.`;
  // The byte order mark tells spreadsheets that the file is UTF-8.
  const link = element("a", "", { href: URL.createObjectURL(new Blob(["\ufeff", csv()], { type: "text/csv;charset=utf-8" })), download: "classes.csv" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function showChips() {
  const run = chosenRun();
  const chips = state.highlighted.map((classIndex, place) => {
    const chip = element("button", run.names[classIndex], { type: "button", class: "chip", "data-class": classIndex, title: "Remove" });
    chip.style.setProperty("--run", classColour(place));
    chip.addEventListener("click", () => {
      state.highlighted = state.highlighted.filter((highlighted) => highlighted !== classIndex);
      showHighlighted();
      (byId("highlighted").querySelector("button") ?? byId("curve-search")).focus();
    });
    return chip;
  });
  byId("highlighted").replaceChildren(...chips);
  byId("clear").hidden = chips.length === 0;
}

function showSuggestions() {
  const run = chosenRun();
  const wanted = byId("curve-search").value.trim().toLowerCase();
  const matches = [];
  if (wanted !== "") for (let classIndex = 0; classIndex < run.classes && matches.length < 8; classIndex++) if (run.lowerCaseNames[classIndex].includes(wanted)) matches.push(classIndex);
  const buttons = matches.map((classIndex) => {
    const button = element("button", run.names[classIndex], { type: "button", class: "suggestion", "data-class": classIndex });
    button.addEventListener("click", () => {
      byId("curve-search").value = "";
      highlight(classIndex);
      showHighlighted();
      byId("curve-search").focus();
    });
    return button;
  });
  byId("suggestions").replaceChildren(...(wanted !== "" && matches.length === 0 ? [element("span", "no class name contains this text", { class: "hint" })] : buttons));
}

/** Shows the details of the class that was highlighted last. */
function showDetail() {
  const run = chosenRun();
  const classIndex = state.highlighted.at(-1);
  const detail = byId("detail");
  if (classIndex === undefined) {
    detail.replaceChildren(element("p", "Select a class in the table to see its details here and its curve above.", { class: "hint" }));
    return;
  }
  const parts = [element("h3", run.names[classIndex], { id: "detail-name" })];
  const list = element("dl");
  for (const { key, title, text } of columnsOf(run)) {
    if (key === "class") continue;
    list.append(element("dt", title), element("dd", text(valueOf(run, key, classIndex)), { "data-cell": key }));
  }
  parts.push(list);
  const examples = run.examples[classIndex];
  if (examples?.thumbnails.length) parts.push(pictures(examples.thumbnails, `Image of ${run.names[classIndex]}`));
  if (examples) parts.push(...confusionParts(run, classIndex, examples.confusions));
  else if (Object.keys(run.examples).length) parts.push(element("p", `Confusions are listed only for the ${whole(Object.keys(run.examples).length)} worst classes.`, { class: "hint" }));
  detail.replaceChildren(...parts);
}

function pictures(sources, alternative) {
  const strip = element("div", "", { class: "strip" });
  for (const source of sources) strip.append(element("img", "", { src: source, alt: alternative }));
  return strip;
}

function confusionParts(run, classIndex, confusions) {
  if (confusions.length === 0) return [];
  const list = element("ol", "", { class: "confusions" });
  for (const confusion of confusions) {
    const item = element("li", "", { class: "confusion" });
    const accepted = run.gallery ? `${probesOf(confusion.pairs)} of one identified as the other` : `${percent(confusion.share)} of pairs accepted`;
    item.append(element("b", confusion.name), element("span", ` ${accepted}, nearest at distance ${number(confusion.nearest, 3)}`));
    if (confusion.thumbnails) item.append(pictures(confusion.thumbnails, `Nearest pair of ${run.names[classIndex]} and ${confusion.name}`));
    list.append(item);
  }
  return [element("h4", `Most often confused with (at ${confusedAt(run)})`), list];
}

function showHighlighted() {
  showChips();
  showSuggestions();
  showDetail();
  for (const row of document.querySelectorAll("tr[data-class]")) row.setAttribute("aria-selected", String(state.highlighted.includes(Number(row.dataset.class))));
  drawSoon("plot-curves", "plot-distances");
}
