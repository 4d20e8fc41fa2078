// Formatting and parsing of numbers, and the few formulas that the page needs.

const DASH = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** A share in percent with three significant digits, for columns: 45.0%. */
function percent(value) {
  if (!known(value)) return DASH;
  const hundred = 100 * value;
  if (hundred === 0) return "0%";
  if (hundred >= 99.95) return hundred === 100 ? "100%" : `${(Math.floor(hundred * 100) / 100).toFixed(2)}%`;
  return Math.abs(hundred) < 1e-4 ? `${Number(hundred.toPrecision(3))}%` : `${hundred.toPrecision(3)}%`;
}

/** A share in percent without trailing zeros, for labels: 1%. */
const roundPercent = (value) => `${Number((100 * value).toPrecision(3))}%`;

/** A number with four significant digits. */
function number(value, digits = 4) {
  if (!known(value)) return DASH;
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(digits)));
}

const fixed = (value) => (known(value) ? value.toFixed(4).replace("-", "−") : DASH);
const thousandths = (value) => (known(value) ? value.toFixed(3) : DASH);
const whole = (value) => (known(value) ? value.toLocaleString("en-US") : DASH);
const signed = (text) => (text.startsWith("-") ? `−${text.slice(1)}` : `+${text}`);
// Equalized similarities may exceed 1; their distance is below 0.
const similarityOf = (distance) => 1 - (distance * Math.abs(distance)) / 2;
const distanceOf = (similarity) => Math.sign(2 - 2 * similarity) * Math.sqrt(Math.abs(2 - 2 * similarity));

/** Parses a number. Rates are in percent, with or without the sign. Returns NaN if the text is not a number. */
function readNumber(text, isRate) {
  const match = /^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(%?)\s*$/i.exec(text.replace(",", ".").replace("−", "-"));
  if (!match || (match[2] && !isRate)) return NaN;
  return Number(match[1]) / (isRate ? 100 : 1);
}

/** Eq. 1 of the paper: a weighted harmonic mean of two rates, 0 if either rate is 0. */
function utilityOf(first, sensitivity, c) {
  if (!(first > 0 && sensitivity > 0)) return Number.isNaN(first) || Number.isNaN(sensitivity) ? NaN : 0;
  const square = c * c;
  return ((1 + square) * first * sensitivity) / (square * first + sensitivity);
}

/** Index of the entry of an ascending list that is nearest to the value. */
function nearest(ascending, value) {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - ascending[low - 1] <= ascending[low] - value ? low - 1 : low;
}

/** Quantile of the normal distribution (Acklam's rational approximation, error below 1.2e-9). */
function probit(share) {
  const a = [-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239];
  const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572];
  const c = [-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
  const tail = (q) =>
    (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) / ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  if (share < 0.02425) return tail(Math.sqrt(-2 * Math.log(share)));
  if (share > 0.97575) return -tail(Math.sqrt(-2 * Math.log(1 - share)));
  const q = share - 0.5;
  const r = q * q;
  return (
    ((((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q) /
    (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1)
  );
}

/** Escapes a name for plotly, which interprets its labels as a kind of HTML. */
function label(name) {
  const points = Array.from(name);
  const short = points.length > 60 ? `${points.slice(0, 59).join("")}…` : name;
  return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** The same for a legend, where plotly would also expand %{...} templates. */
const legendLabel = (name) => label(name).replaceAll("%{", "%\u200b{");

/** Creates an element with text and attributes. Names enter the page only as text, never as markup. */
function element(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const byId = (id) => document.getElementById(id);
