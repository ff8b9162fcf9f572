// A trial's tokens as they have arrived: columns that only grow.

const FORCED = 1;
const SHARED_MOMENT = 16;
const RESAMPLED = 2;
const ALWAYS = ["id", "ms", "flags", "kept"];
const INSPECTED = ["rank", "logprob", "entropy", "p", "draw", "top_id", "top_logprob", "top_p", "stage_kept", "stage_mass", "top_cut", "top_forbidden", "watched_logprob", "watched_rank"];

class Steps {
  constructor() {
    for (const name of [...ALWAYS, ...INSPECTED]) this[name] = [];
  }

  get length() {
    return this.id.length;
  }

  /** Append what is new in a batch; what is known already is passed over. Gives how many were new. */
  append(batch) {
    const known = this.length - batch.first;
    const count = batch.id.length;
    if (known < 0) throw new Error(`steps ${this.length} to ${batch.first} are missing`);
    for (let i = known; i < count; i++) {
      for (const name of ALWAYS) this[name].push(batch[name][i]);
      for (const name of INSPECTED) this[name].push(batch[name]?.[i] ?? null);
    }
    return Math.max(0, count - known);
  }

  /** One step with its candidates as an object, for the inspector. */
  at(index) {
    const step = { index };
    for (const name of [...ALWAYS, ...INSPECTED]) step[name] = this[name][index];
    step.isForced = (step.flags & FORCED) !== 0;
    step.isResampled = (step.flags & RESAMPLED) !== 0;
    return step;
  }
}

class Trial {
  constructor(id) {
    this.id = id;
    this.prompt = new Steps();
    this.steps = new Steps();
    this.status = {};
    this.words = new Map();
    this.numVocabulary = 0;
    this.stages = [];
    this.watched = []; // sets of token ids whose probabilities come with the steps
    this.bias = new Map();
    this.stripFirstSpace = false;
  }

  /** Take in what was added to the logits of tokens: [id, nats] of each, "-inf" for a banned one. */
  setBias(pairs) {
    this.bias = new Map(pairs.map(([id, nats]) => [id, nats === "-inf" ? -Infinity : nats]));
  }

  /** Take in the texts of a message's tokens. */
  learn({ vocabulary }) {
    if (this.words === vocabulary) return;
    for (const [id, word] of this.words) vocabulary.set(id, word);
    this.words = vocabulary;
  }

  /** Take in a batch of a message. */
  append(steps, batch) {
    this.learn(batch);
    this.numVocabulary = batch.num_vocabulary;
    this.stages = batch.stages ?? this.stages;
    this.watched = batch.watched ?? this.watched;
    this.stripFirstSpace = batch.add_space_prefix;
    return steps.append(batch);
  }

  get length() {
    return this.prompt.length + this.steps.length;
  }

  /** Whether an external engine answered, which does not report all figures. */
  get isOfServer() {
    return this.status.missing !== undefined;
  }

  /** What stands in the place of a figure that is not there. */
  get missing() {
    return this.status.missing ?? "not recorded";
  }

  /** Prompt tokens come first, generated ones behind them: [columns, index in them]. */
  locate(place) {
    return place < this.prompt.length ? [this.prompt, place] : [this.steps, place - this.prompt.length];
  }

  word(id) {
    return this.words.get(id) ?? { text: `#${id}`, hex: "", kind: 0 };
  }

  wordAt(place) {
    const [steps, index] = this.locate(place);
    return this.word(steps.id[index]);
  }

  /** Median of the milliseconds a token took; the first waits for the prompt and does not count. */
  medianMs() {
    const { ms, flags } = this.steps;
    const times = ms.filter((_, index) => index > 0 && !(flags[index] & SHARED_MOMENT)).sort((a, b) => a - b);
    return times.length ? times[times.length >> 1] : null;
  }

  /** The tokens of interest, with the place of their first: generated ones, or the prompt's where it was only scored. */
  subject() {
    return this.steps.length ? [this.steps, this.prompt.length] : [this.prompt, 0];
  }

  /** Places of the `count` tokens of interest with the greatest figure; given ones do not compete. */
  greatest(figure, count) {
    const [steps, offset] = this.subject();
    const places = [];
    for (let index = 0; index < steps.length; index++) {
      const isKnown = steps.logprob[index] !== null && figure(steps, index) !== null;
      if (isKnown && !(steps.flags[index] & FORCED)) places.push(index);
    }
    places.sort((a, b) => figure(steps, b) - figure(steps, a));
    return places.slice(0, count).map((index) => index + offset);
  }
}
