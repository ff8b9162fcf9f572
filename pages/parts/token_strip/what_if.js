// What if: all tokens sampled again at each move of a slider, from their recorded candidates, without the model.

const MOST_NAMED = 2;
const ADDRESS = "what_if";
const ADDRESS_MS = 300;

/** The parameters in the page's address, by name; null where it has none. */
function addressed() {
  const text = new URLSearchParams(location.search).get(ADDRESS);
  if (text === null) return null;
  const pairs = text.split(",").map((pair) => pair.split(":"));
  return Object.fromEntries(pairs.filter(([name, value]) => value && isFinite(value) && SLIDERS.some((one) => one.name === name)));
}

/** Put parameters into the page's address, which opens the panel there; null takes them out. */
function address(changed) {
  const url = new URL(location);
  if (changed) url.searchParams.set(ADDRESS, Object.entries(changed).map((pair) => pair.join(":")).join(","));
  else url.searchParams.delete(ADDRESS);
  if (url.href !== location.href) history.replaceState(history.state, "", url);
}

class WhatIf {
  constructor(view) {
    this.view = view;
    this.toggle = element("button", "what-if-toggle", "What if");
    this.toggle.type = "button";
    this.toggle.title = "Sample this run again with other parameters";
    this.toggle.onclick = () => this.turn();
    this.sliders = SLIDERS.map((about) => new Slider(about, () => this.changedByReader()));
    this.root = this.layOut();
    this.reset(null);
  }

  layOut() {
    const root = element("section", "what-if");
    root.id = uniqueId("what-if");
    root.setAttribute("aria-label", "What if");
    this.toggle.setAttribute("aria-controls", root.id);
    this.verdict = element("p", "verdict");
    this.verdict.setAttribute("role", "status");
    this.note = element("p", "what-if-note");
    this.grid = element("div", "sliders");
    this.grid.append(...this.sliders.map((slider) => slider.root));
    this.runOn = this.action("Run on from here", () => this.answer.other[0][0]);
    this.askModel = this.action("Ask the model", () => this.answer.open[0]);
    this.restore = element("button", "action", "Reset");
    this.restore.type = "button";
    this.restore.title = "Back to the parameters of this run";
    this.restore.onclick = () => this.resetSliders();
    const actions = element("div", "what-if-actions");
    actions.append(this.runOn, this.askModel, this.restore);
    this.grid.append(actions);
    root.append(this.verdict, this.note, this.grid);
    return root;
  }

  /** A button that starts a run which keeps the tokens before a step and goes on with the sliders' parameters. */
  action(label, stepOf) {
    const button = element("button", "action", label);
    button.type = "button";
    button.onclick = () => {
      this.view.ask({ action: "resample", trial: this.trial.id, step: stepOf(), sampling: this.answer.changed });
    };
    return button;
  }

  /** The page's address belongs to the trial that was shown first; sliders do not move on to the next. */
  reset(trial) {
    clearTimeout(this.addressDue);
    if (this.trial && !this.root.hidden && this.isAddressed) address(null);
    this.begun = trial && this.isAddressed ? addressed() : null;
    this.trial = trial;
    this.own = this.answer = this.answered = this.inFlight = null;
    this.error = "";
    this.root.hidden = this.toggle.hidden = true;
    this.toggle.setAttribute("aria-expanded", "false");
    this.show();
  }

  /** The run has ended, so that its tokens can be sampled again; a server tells too little of its own for that. */
  ready() {
    this.toggle.hidden = !this.trial.steps.length || this.trial.isOfServer;
    if (this.begun) this.turn();
  }

  /** Whether it can be opened: the strip has controls, and its run has ended. */
  get canTry() {
    return this.toggle.checkVisibility();
  }

  /** Whether the page's address has its parameters: of several strips on a page, at most one has. */
  get isAddressed() {
    return Boolean(this.view.data?.addressed);
  }

  /** Open it with one parameter changed, and the others as they were in this run. */
  tryOne(name, value) {
    this.begun = { [name]: value };
    if (this.own) for (const slider of this.sliders) slider.show(this.begun[slider.name] ?? this.own[slider.name]);
    if (this.root.hidden) this.turn();
    this.changedByReader();
    this.root.scrollIntoView({ block: "nearest" });
  }

  /** Open or close it, where the strip has controls and the run has tokens. */
  turn() {
    if (!this.canTry) return;
    this.root.hidden = !this.root.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.root.hidden));
    if (this.error) this.answered = null; // what failed may work now
    this.show();
    this.view.inspector.draw(this.view.inspector.place);
    this.tellAddress();
  }

  /** Not at each move: browsers allow a page few changes of its address in a second. */
  tellAddress() {
    clearTimeout(this.addressDue);
    if (!this.isAddressed) return;
    this.addressDue = setTimeout(() => address(this.root.hidden ? null : this.changed), ADDRESS_MS);
  }

  /** Values that differ from the run's own, by name. */
  get changed() {
    if (!this.own) return {};
    const moved = this.moved.filter((slider) => slider.value !== null);
    return Object.fromEntries(moved.map((slider) => [slider.name, slider.value]));
  }

  get moved() {
    return this.sliders.filter((slider) => this.own && slider.value !== this.own[slider.name]);
  }

  get problem() {
    return this.sliders.map((slider) => slider.problem).find((problem) => this.own && problem) ?? "";
  }

  changedByReader() {
    this.tellAddress();
    if (this.problem) this.show();
    else this.ask();
  }

  resetSliders() {
    for (const slider of this.sliders) slider.show(this.own[slider.name]);
    this.changedByReader();
  }

  // What is asked of the socket: one question at a time, then the newest.

  get wanted() {
    const { place } = this.view.inspector;
    const shown = place === null ? -1 : place - this.trial.prompt.length;
    return { changed: this.changed, shown: shown >= 0 ? shown : null };
  }

  ask() {
    if (this.root.hidden || this.inFlight || this.problem) return;
    const wanted = JSON.stringify(this.wanted);
    if (wanted === this.answered) return;
    if (this.view.live.request({ resample: { job: this.trial.id, ...this.wanted } })) this.inFlight = wanted;
  }

  /** What was in flight is lost with the socket. */
  connected(isConnected) {
    this.inFlight = null;
    if (isConnected && this.trial) this.ask();
    else if (!this.root.hidden) this.note.textContent = "The workbench does not answer. Move a slider to ask again.";
  }

  receive(message) {
    if (!this.inFlight) return;
    const answered = JSON.stringify({ changed: message.changed, shown: message.shown });
    const isMine = answered === this.inFlight;
    this.inFlight = null;
    if (isMine) this.take(message, answered);
    this.ask();
  }

  take(message, answered) {
    this.answered = answered;
    this.error = message.error ?? "";
    if (!this.error) {
      this.trial.learn(message);
      this.answer = message;
      if (!this.own) this.begin(message);
    }
    this.show();
    this.view.inspector.draw(this.view.inspector.place);
  }

  /** The first answer says what the run's own parameters are. */
  begin({ own, idle }) {
    for (const slider of this.sliders) {
      slider.show(this.begun?.[slider.name] ?? own[slider.name]);
      slider.setIdle(idle.includes(slider.name));
    }
    this.own = own;
  }

  // What is seen.

  show() {
    const { error, problem } = this;
    const answer = this.root.hidden || error || problem ? null : this.answer;
    const first = answer?.other[0]?.[0] ?? Infinity;
    const firstOpen = answer?.open[0] ?? Infinity;
    this.grid.hidden = !this.own;
    this.restore.disabled = !this.moved.length;
    this.runOn.hidden = !this.view.canAsk || first === Infinity;
    this.askModel.hidden = !this.view.canAsk || firstOpen >= first;
    this.runOn.title = `Keep the tokens before it and generate the others at ${this.described()}`;
    this.askModel.title = `Keep the tokens before the ${ordinal(firstOpen + 1)} and generate the others at ${this.described()}`;
    this.verdict.classList.toggle("error", Boolean(error || problem));
    this.verdict.replaceChildren(...(answer ? this.sentence() : [problem || capitalised(error ?? "")]));
    this.note.replaceChildren(...(answer ? this.counts() : []));
    this.view.tokens.markOthers(answer);
  }

  /** The parameters of the answer that is shown: the sliders may be further on. */
  described() {
    const changed = this.answer?.changed ?? {};
    const phrases = this.sliders.filter(({ name }) => name in changed).map((slider) => slider.phrase(changed[slider.name]));
    return phrases.length > MOST_NAMED ? "these values" : phrases.join(" and ") || "the parameters of this run";
  }

  /** What would happen first. */
  sentence() {
    const { changed, other, open, num_candidates: count } = this.answer;
    if (!Object.keys(changed).length && !other.length) {
      return ["Move a slider: each token is drawn again from its recorded candidates, with its own random number."];
    }
    const at = `At ${this.described()}`;
    if (other.length) {
      const [index, id] = other[0];
      const [would, was] = [id, this.trial.steps.id[index]].map((each) => tokenChip(this.trial.word(each), "quoted"));
      const numBefore = open.filter((one) => one < index).length;
      const unless = numBefore ? `, unless one of the ${plural(numBefore, "open token")} before it changes first.` : ".";
      return [`${at} the `, this.tokenLink(index), " would be ", would, " instead of ", was, unless];
    }
    if (!open.length) return [`Nothing changes at ${this.described()}.`];
    const recorded = `the ${whole(count)} recorded candidates are`;
    if (open.length === this.trial.steps.length) return [`${at} ${recorded} too few to tell.`];
    return [`Nothing changes at ${this.described()} where ${recorded} enough to tell.`];
  }

  /** A button in a sentence that pins the token it names. */
  tokenLink(index) {
    const button = element("button", "token-link", `${ordinal(index + 1)} token`);
    button.type = "button";
    button.onclick = () => this.view.pin.goTo(this.trial.prompt.length + index);
    return button;
  }

  counts() {
    const { other, open, num_candidates: count } = this.answer;
    const total = plural(this.trial.steps.length, "token");
    const parts = [];
    if (other.length) {
      parts.push(element("span", "sign other"), `${whole(other.length)} of ${total} would differ, each after the text of this run. `);
    }
    if (open.length) {
      const why = other.length ? `: the ${whole(count)} recorded candidates are too few to tell.` : ".";
      parts.push(element("span", "sign open"), `Of ${total} ${whole(open.length)} are open, first the `, this.tokenLink(open[0]), why);
    }
    return parts;
  }

  /** The step at this index as it would be, for the inspector; null where that is not known, or not asked. */
  stepAt(index) {
    const step = this.root.hidden || this.error || this.problem ? null : this.answer?.step;
    if (step?.index !== index || !Object.keys(this.answer.changed).length) return null;
    const again = { ...this.trial.steps.at(index), ...step, top_cut: null, stage_kept: null, at: this.described() };
    return this.answer.open.includes(index) ? { ...again, isOpen: true, id: -1, logprob: null } : again;
  }
}

function capitalised(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
