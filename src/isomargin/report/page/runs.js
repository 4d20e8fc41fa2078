// The runs: pairs that each threshold accepts, and the rates that follow from them.

/** Reads counts that were packed row by row as increments: LEB128 bytes in base64. */
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
        sum += (byte & 127) * factor; // not shifted: counts may pass 2^31
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
    this.accepted = unpackIncrements(this.positives, this.classes, this.stops);
    this.admitted = unpackIncrements(this.negatives, this.classes, this.stops);
    this.friends = this.columns.positive_pairs;
    this.strangers = this.columns.negative_pairs;
    this.range = this.scores.calibration_range;
    this.pooledFar = this.pooled(this.admitted, this.strangers);
    this.pooledFrr = this.pooled(this.accepted, this.friends).map((each) => 1 - each);
    this.lowered = this.names.map((each) => each.toLowerCase());
    const curved = [];
    for (let which = 0; which < this.classes; which++) if (this.friends[which] > 0) curved.push(which);
    const utility = this.columns.mean_utility;
    /** Classes that have a curve, the worst served first. */
    this.ranked = curved.sort((a, b) => utility[a] - utility[b] || a - b);
    this.utilities = this.allUtilities();
  }

  pooled(counts, totals) {
    const sums = new Float64Array(this.stops);
    for (let which = 0; which < this.classes; which++)
      for (let stop = 0; stop < this.stops; stop++) sums[stop] += counts[which * this.stops + stop];
    const total = totals.reduce((sum, each) => sum + each, 0);
    return sums.map((each) => each / total);
  }

  far(which, stop) {
    return this.strangers[which] > 0 ? this.admitted[which * this.stops + stop] / this.strangers[which] : NaN;
  }

  frr(which, stop) {
    const friends = this.friends[which];
    return friends > 0 ? (friends - this.accepted[which * this.stops + stop]) / friends : NaN;
  }

  utility(which, stop) {
    return this.utilities[which * this.stops + stop];
  }

  allUtilities() {
    const found = new Float64Array(this.classes * this.stops);
    const withPrecision = this.settings.utility === "precision_recall";
    for (let which = 0; which < this.classes; which++) {
      for (let stop = 0; stop < this.stops; stop++) {
        const place = which * this.stops + stop;
        const accepted = this.accepted[place];
        const admitted = this.admitted[place];
        const first = withPrecision ? (accepted > 0 ? accepted / (accepted + admitted) : 0) : 1 - this.far(which, stop);
        found[place] = utilityOf(first, 1 - this.frr(which, stop), this.settings.c);
      }
    }
    return found;
  }

  /** The share of the classes that epsilon-OPIS calls the best or the worst. */
  group(kind) {
    const size = Math.min(Math.max(1, Math.round(this.settings.epsilon * this.ranked.length)), this.ranked.length);
    if (kind === "worst") return this.ranked.slice(0, size);
    if (kind === "best") return this.ranked.slice(-size);
    return kind === "all" ? this.ranked : [];
  }

  /** The stop of the largest threshold whose FAR does not exceed this; the first if there is none. */
  stopAtFar(far) {
    let found = 0;
    for (let stop = 0; stop < this.stops; stop++) if (this.pooledFar[stop] <= far * (1 + 1e-12)) found = stop;
    return found;
  }

  stopAtDistance(distance) {
    return nearest(this.thresholds, distance);
  }
}
