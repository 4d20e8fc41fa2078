// The table of classes, the file made of it, and the class looked at.

const COLUMNS = [
  { key: "class", title: "class", hint: "Its label", text: (value) => value },
  { key: "items", title: "items", hint: "Number of items in the class", text: whole },
  { key: "far", title: "FAR", hint: "Share of strangers accepted at the threshold above", text: percent, live: true },
  { key: "frr", title: "FRR", hint: "Share of friends rejected at the threshold above", text: percent, live: true },
  { key: "utility", title: "utility", hint: "At the threshold above", text: thousandths, live: true },
  { key: "own_threshold", title: "own threshold", hint: "The threshold that this class itself would need for that FAR", text: fixed },
  { key: "mean_utility", title: "mean utility", hint: "Over the calibration range, whatever the threshold above", text: thousandths },
  { key: "opis_share", title: "of OPIS", hint: "Share of OPIS that this class makes", text: percent },
  { key: "eer", title: "EER", hint: "Equal error rate of this class's pairs", text: percent },
];

function columnsOf(run) {
  const columns = COLUMNS.filter(({ key, live }) => key === "class" || live || key in run.columns).map((column) =>
    column.key === "own_threshold" ? { ...column, title: `d for FAR ${roundPercent(run.settings.target_far)}` } : column);
  const recall = Object.keys(run.columns).find((key) => key.startsWith("recall@")); // of the fewest neighbours
  return recall ? [...columns, { key: recall, title: recall, hint: "Of this class's items", text: percent }] : columns;
}

function valueOf(run, key, which) {
  if (key === "class") return run.names[which];
  if (key === "far" || key === "frr" || key === "utility") return run[key](which, chosenStop());
  return run.columns[key]?.[which] ?? NaN;
}

/** Classes that pass the filters, in the table's order; unknown values come last either way. */
function orderedClasses() {
  const run = chosenRun();
  const wanted = state.filter.trim().toLowerCase();
  const kept = [];
  for (let which = 0; which < run.classes; which++) {
    if (wanted !== "" && !run.lowered[which].includes(wanted)) continue;
    if (state.outsideOnly && !isOutside(run, which, chosenStop())) continue;
    kept.push(which);
  }
  const { column, descending } = state.sort;
  const sign = descending ? -1 : 1;
  if (column === "class") {
    const collator = new Intl.Collator("en", { numeric: true });
    return kept.sort((a, b) => sign * collator.compare(run.names[a], run.names[b]) || a - b);
  }
  const values = new Map(kept.map((which) => [which, valueOf(run, column, which)]));
  return kept.sort((a, b) => {
    const [one, other] = [values.get(a), values.get(b)];
    if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) - Number.isNaN(other) || a - b;
    return sign * (one - other) || a - b;
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
}

function showClasses() {
  const run = chosenRun();
  const order = orderedClasses();
  const columns = columnsOf(run);
  for (const button of byId("classes").tHead.querySelectorAll("button")) {
    const sorted = button.dataset.column === state.sort.column;
    button.parentElement.setAttribute("aria-sort", sorted ? (state.sort.descending ? "descending" : "ascending") : "none");
  }
  const rows = order.slice(0, state.rows).map((which) => {
    const row = chooseableRow(which);
    for (const { key, text } of columns) {
      const value = valueOf(run, key, which);
      if (key === "class") row.append(element("th", value, { scope: "row", class: "name", "data-cell": key, "data-value": value, title: value }));
      else row.append(cell(key, text(value), value, (key === "far" || key === "frr") && value > state.tolerance[key] ? { class: "beyond" } : {}));
    }
    return row;
  });
  replaceRows(byId("classes"), rows);
  byId("rows-note").textContent = `${whole(order.length)} of ${whole(run.classes)} classes${order.length > rows.length ? `, the first ${whole(rows.length)} shown` : ""}`;
  byId("more").hidden = order.length <= rows.length;
  byId("more").textContent = `Show ${whole(Math.min(400, order.length - rows.length))} more`;
  byId("no-class").hidden = order.length > 0;
  const limits = ["far", "frr"].filter((rate) => state.tolerance[rate] <= 1).map((rate) => `${rate.toUpperCase()} over ${roundPercent(state.tolerance[rate])}`);
  byId("outside-words").textContent = limits.length > 0 ? `(${limits.join(" or ")})` : "(nothing is)";
}

/** A field of a CSV file, by the rules of core/csv_files.py: what a spreadsheet would run as a formula is made text. */
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
  for (const which of orderedClasses())
    lines.push(columns.map(({ key }) => csvField(key === "class" ? run.labels[which] ?? run.names[which] : valueOf(run, key, which))).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

function exportClasses() {
  byId("exported").textContent = `${whole(orderedClasses().length)} classes of ${chosenRun().name} at distance ${fixed(chosenRun().thresholds[chosenStop()])} were exported as classes.csv.`;
  // The mark in front tells spreadsheets that it is UTF-8.
  const link = element("a", "", { href: URL.createObjectURL(new Blob(["\ufeff", csv()], { type: "text/csv;charset=utf-8" })), download: "classes.csv" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function showChips() {
  const run = chosenRun();
  const chips = state.highlighted.map((which, place) => {
    const chip = element("button", run.names[which], { type: "button", class: "chip", "data-class": which, title: "Remove" });
    chip.style.setProperty("--run", classColour(place));
    chip.addEventListener("click", () => {
      state.highlighted = state.highlighted.filter((each) => each !== which);
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
  const found = [];
  if (wanted !== "") for (let which = 0; which < run.classes && found.length < 8; which++) if (run.lowered[which].includes(wanted)) found.push(which);
  const buttons = found.map((which) => {
    const button = element("button", run.names[which], { type: "button", class: "suggestion", "data-class": which });
    button.addEventListener("click", () => {
      byId("curve-search").value = "";
      highlight(which);
      showHighlighted();
      byId("curve-search").focus();
    });
    return button;
  });
  byId("suggestions").replaceChildren(...(wanted !== "" && found.length === 0 ? [element("span", "no class has this in its name", { class: "hint" })] : buttons));
}

/** What there is to know of the class highlighted last. */
function showDetail() {
  const run = chosenRun();
  const which = state.highlighted.at(-1);
  const detail = byId("detail");
  if (which === undefined) {
    detail.replaceChildren(element("p", "Choose a class in the table to see it here and in the curves.", { class: "hint" }));
    return;
  }
  const parts = [element("h3", run.names[which], { id: "detail-name" })];
  const list = element("dl");
  for (const { key, title, text } of columnsOf(run)) {
    if (key === "class") continue;
    list.append(element("dt", title), element("dd", text(valueOf(run, key, which)), { "data-cell": key }));
  }
  parts.push(list);
  const examples = run.examples[which];
  if (examples?.thumbnails.length) parts.push(pictures(examples.thumbnails, `An image of ${run.names[which]}`));
  if (examples) parts.push(...confusionParts(run, which, examples.confusions));
  else if (Object.keys(run.examples).length) parts.push(element("p", `Confusions are kept for the ${whole(Object.keys(run.examples).length)} worst classes, and this is none of them.`, { class: "hint" }));
  detail.replaceChildren(...parts);
}

function pictures(sources, alternative) {
  const strip = element("div", "", { class: "strip" });
  for (const source of sources) strip.append(element("img", "", { src: source, alt: alternative }));
  return strip;
}

function confusionParts(run, which, confusions) {
  if (confusions.length === 0) return [];
  const list = element("ol", "", { class: "confusions" });
  for (const each of confusions) {
    const item = element("li", "", { class: "confusion" });
    item.append(element("b", each.name), element("span", ` ${percent(each.share)} of pairs, the nearest at ${number(each.nearest, 3)}`));
    if (each.thumbnails) item.append(pictures(each.thumbnails, `The nearest pair of ${run.names[which]} and ${each.name}`));
    list.append(item);
  }
  return [element("h4", `Most often taken for it at FAR ${roundPercent(run.settings.target_far)}`), list];
}

function showHighlighted() {
  showChips();
  showSuggestions();
  showDetail();
  for (const row of document.querySelectorAll("tr[data-class]")) row.setAttribute("aria-selected", String(state.highlighted.includes(Number(row.dataset.class))));
  drawSoon("plot-curves", "plot-distances");
}
