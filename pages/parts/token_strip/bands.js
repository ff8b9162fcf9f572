// Which of the seven bands of the palette a token has.

const SURPRISE_NATS = PALETTE.surprise.map((p) => -Math.log(p) + 1e-12);
const ENTROPY_NATS = PALETTE.entropy.map((bits) => bits * Math.LN2);

function bandOf(value, limits) {
  let band = 0;
  while (band < limits.length && value > limits[band]) band++;
  return band;
}

/** The bands of one trial. Time is seen against the median, which moves while a run lasts; changes: what another model
    makes of its tokens. */
class Bands {
  constructor(trial, changes) {
    this.trial = trial;
    this.changes = changes;
    this.medianMs = null;
    this.medianAt = 0;
  }

  at(place, mode) {
    const [steps, index] = this.trial.locate(place);
    if (mode === "time") {
      const isTimed = steps === this.trial.steps && this.medianMs && !(steps.flags[index] & SHARED_MOMENT);
      return isTimed ? bandOf(steps.ms[index] / this.medianMs, PALETTE.time) : 0;
    }
    if (mode === "change") return bandOf(Math.abs(this.changes.at(place)?.change ?? 0), PALETTE.change);
    if (steps.logprob[index] === null) return 0;
    return mode === "surprise" ? bandOf(-steps.logprob[index], SURPRISE_NATS) : bandOf(steps.entropy[index], ENTROPY_NATS);
  }

  /** Take the median again where the tokens have grown by half, or no more will come; says whether it did. */
  refreshMedian() {
    const { length } = this.trial.steps;
    if (length < this.medianAt * 1.5 && !(this.trial.end && length !== this.medianAt)) return false;
    this.medianAt = length;
    this.medianMs = this.trial.medianMs();
    return true;
  }
}
