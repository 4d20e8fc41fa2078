// The runs: how many pairs each threshold accepts, and the rates computed from these counts.

/** Unpacks counts that were stored row by row as increments: LEB128 bytes in base64. */
function unpackIncrements(text, rows, columns) {
  const bytes = atob(text);
  const counts = new Float64Array(rows * columns);
  let place = 0;
  for (let row = 0; row < rows; row++) {
    let sum = 0;
    for (let column = 0; column < columns; column++) {
      let factor = 1;
      let byte;
      do {
        byte = bytes.charCodeAt(place++);
        sum += (byte & 127) * factor; // multiplied, not shifted: counts can exceed 2^31
        factor *= 128;
      } while (byte & 128);
      counts[row * columns + column] = sum;
    }
  }
  return counts;
}

class Run {
  constructor(values, index) {
    Object.assign(this, values);
    this.index = index;
    this.classes = this.names.length;
    this.stops = this.thresholds.length;
    this.acceptedPositives = unpackIncrements(this.positives, this.classes, this.stops);
    this.acceptedNegatives = unpackIncrements(this.negatives, this.classes, this.stops);
    this.positiveTotals = this.columns.positive_pairs;
    this.negativeTotals = this.columns.negative_pairs;
    this.range = this.scores.calibration_range;
    this.pooledFar = this.pooled(this.acceptedNegatives, this.negativeTotals);
    this.pooledFrr = this.pooled(this.acceptedPositives, this.positiveTotals).map((accepted) => 1 - accepted);
    /** Rates by which a threshold can be chosen, at every stop. */
    this.rates = { far: this.pooledFar };
    this.ratePresets = { far: this.presets, fpir: [] };
    if (this.gallery) this.unpackGallery();
    this.lowerCaseNames = this.names.map((name) => name.toLowerCase());
    const withCurve = [];
    const utility = this.columns.mean_utility;
    for (let classIndex = 0; classIndex < this.classes; classIndex++) if (known(utility[classIndex])) withCurve.push(classIndex);
    /** Classes that have a utility curve, lowest mean utility first. */
    this.ranked = withCurve.sort((a, b) => utility[a] - utility[b] || a - b);
    this.utilities = this.allUtilities();
  }

  /** Identification at every stop, from the numbers of probes that are identified or accepted. */
  unpackGallery() {
    const gallery = this.gallery;
    this.identified = unpackIncrements(gallery.identified, this.classes, this.stops);
    this.falsePositives = unpackIncrements(gallery.false_positives, this.classes, this.stops);
    this.acceptedUnknown = this.sums(this.falsePositives);
    this.pooledFnir = this.sums(this.identified).map((identified) => (gallery.known - identified) / gallery.known);
    this.pooledMisidentified = unpackIncrements(gallery.misidentified, 1, this.stops).map((wrong) => wrong / gallery.known);
    this.pooledFpir = this.acceptedUnknown.map((accepted) => (gallery.unknown > 0 ? accepted / gallery.unknown : NaN));
    this.rates.fpir = this.pooledFpir;
    this.ratePresets.fpir = gallery.presets;
  }

  /** Sums over classes at every stop. */
  sums(counts) {
    const sums = new Float64Array(this.stops);
    for (let classIndex = 0; classIndex < this.classes; classIndex++)
      for (let stop = 0; stop < this.stops; stop++) sums[stop] += counts[classIndex * this.stops + stop];
    return sums;
  }

  pooled(counts, totals) {
    const total = totals.reduce((sum, pairs) => sum + pairs, 0);
    return this.sums(counts).map((accepted) => accepted / total);
  }

  far(classIndex, stop) {
    return this.negativeTotals[classIndex] > 0 ? this.acceptedNegatives[classIndex * this.stops + stop] / this.negativeTotals[classIndex] : NaN;
  }

  frr(classIndex, stop) {
    const total = this.positiveTotals[classIndex];
    return total > 0 ? (total - this.acceptedPositives[classIndex * this.stops + stop]) / total : NaN;
  }

  /** Share of the known probes of a class that are not identified. */
  fnir(classIndex, stop) {
    const probes = this.columns.probes[classIndex];
    return probes > 0 ? (probes - this.identified[classIndex * this.stops + stop]) / probes : NaN;
  }

  /** Of the accepted unknown probes, the share for which the class comes first. */
  false_positive_share(classIndex, stop) {
    return this.falsePositives[classIndex * this.stops + stop] / Math.max(this.acceptedUnknown[stop], 1);
  }

  utility(classIndex, stop) {
    return this.utilities[classIndex * this.stops + stop];
  }

  allUtilities() {
    const utilities = new Float64Array(this.classes * this.stops);
    const withPrecision = this.settings.utility === "precision_recall";
    for (let classIndex = 0; classIndex < this.classes; classIndex++) {
      for (let stop = 0; stop < this.stops; stop++) {
        const place = classIndex * this.stops + stop;
        const positives = this.acceptedPositives[place];
        const precision = positives > 0 ? positives / (positives + this.acceptedNegatives[place]) : 0;
        const first = withPrecision ? precision : 1 - this.far(classIndex, stop);
        utilities[place] = utilityOf(first, 1 - this.frr(classIndex, stop), this.settings.c);
      }
    }
    return utilities;
  }

  /** All ranked classes, or the share of them that ε-OPIS counts as the best or the worst. */
  group(kind) {
    const size = Math.min(Math.max(1, Math.round(this.settings.epsilon * this.ranked.length)), this.ranked.length);
    if (kind === "worst") return this.ranked.slice(0, size);
    if (kind === "best") return this.ranked.slice(-size);
    return kind === "all" ? this.ranked : [];
  }

  /** The stop with the largest threshold whose FAR or FPIR does not exceed `rate`; the first stop if there is none. */
  stopAtRate(unit, rate) {
    let last = 0;
    for (let stop = 0; stop < this.stops; stop++) if (this.rates[unit][stop] <= rate * (1 + 1e-12)) last = stop;
    return last;
  }

  stopAtDistance(distance) {
    return nearest(this.thresholds, distance);
  }
}
