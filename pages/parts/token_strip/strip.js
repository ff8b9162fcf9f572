// The strip: takes a trial's messages and draws, once for each frame, only what is new.

const STORE = "logitbench.strip";
const FIGURES_MS = 200;
const RECORDED_PORTION = 1000;

class Strip {
  constructor(parent) {
    this.settings = remembered(STORE, {});
    this.trial = null;
    this.figures = new Figures();
    this.modes = new Choice("Colour", MODES, (mode) => this.setting("mode", mode));
    this.units = new Choice("Unit", UNITS, (unit) => this.setting("unit", unit));
    this.legend = new Legend();
    this.tokens = new Tokens();
    this.pin = new Pin(this.tokens, (place, isSuggested) => this.pinned(place, isSuggested));
    this.inspector = new Inspector(this);
    this.place = null; // of the shared inspector, where this strip's stands there
    this.fold = new Fold(() => this.follow());
    this.reveal = new Reveal();
    this.hover = new Hover(this);
    this.scrub = new Scrub(this);
    this.keys = new Keys(this);
    this.ending = element("p", "ending");
    this.chips = new Chips((place) => this.pin.goTo(place));
    this.tree = new Tree((message) => this.trigger("acted", message));
    this.probable = new Tree((message) => this.trigger("chosen", message));
    this.beams = [0, 1].map(() => new Tree((message) => this.trigger("followed", message)));
    this.whatIf = new WhatIf(this);
    this.changes = new Changes(this);
    this.latency = new Latency();
    this.root = element("div", "root");
    this.words = new WatchPanel(this);
    this.layOut();
    parent.append(this.root);
    listen(this);
    addEventListener(STORE, this);
  }

  layOut() {
    const bar = element("div", "bar-row");
    const ends = element("div", "bar-end");
    ends.append(this.whatIf.toggle, this.units.root, this.keys.button);
    bar.append(this.modes.root, this.legend.root, ends);
    const main = element("div", "main");
    main.append(this.fold.root, this.tokens.root, this.scrub.root, this.ending, this.reveal.root, this.chips.root);
    main.append(this.changes.root, this.words.root, ...this.beams.map((one) => one.root));
    main.append(this.probable.root, this.tree.root);
    this.body = element("div", "body");
    this.body.append(main, this.inspector.root);
    this.root.append(this.figures.root, bar, this.whatIf.root, this.body, this.hover.tooltip.root, this.keys.root);
  }

  get trees() {
    return [this.tree, this.probable, ...this.beams];
  }

  /** Take the data of a rerun; the same trial goes on undisturbed. */
  update({ data, setTriggerValue }) {
    this.trigger = setTriggerValue;
    this.data = data;
    this.name = data.name;
    this.settings = { mode: data.mode, unit: data.unit, k: data.k, ...this.settings };
    this.root.classList.toggle("without-inspector", !data.inspector);
    this.root.classList.toggle("without-controls", data.controls === false);
    this.placeInspector(data.inspector === "shared");
    this.tokens.root.style.maxHeight = data.height ? `${data.height}px` : "";
    markTheme(this.root);
    this.tokens.isAnswerOnly = Boolean(data.answer);
    this.fold.set(data.folded ?? null, data.trial);
    this.pin.numShared = data.shared ?? null;
    this.pinsLast = Boolean(data.last);
    this.canAsk = Boolean(data.asks);
    this.tree.show(data.branches);
    this.probable.show(data.probable);
    this.beams.forEach((one, index) => one.show(data.beams?.[index]));
    this.words.update(data.words);
    const isCompared = this.changes.take(data.change);
    if (isCompared) this.settings.mode = "change";
    this.follow(isCompared);
  }

  /** Follow the trial of the data, or none while it is folded. isCompared: its comparison with another model is new. */
  follow(isCompared = false) {
    const id = this.fold.followed(this.data.trial);
    this.root.classList.toggle("without-trial", !id);
    this.root.classList.toggle("folded", this.fold.isFolding && !id);
    this.root.classList.toggle("unfolded", this.fold.isFolding && Boolean(id));
    if ((this.trial?.id ?? null) === id) {
      this.markShared();
      if (isCompared) this.setting("mode", "change");
      return this.showSettings();
    }
    this.close();
    this.reset(id ? new Trial(id) : null);
    if (!this.trial) return;
    this.live = liveAt(this.data.socket);
    this.live.follow(this.trial.id, this);
  }

  /** Put the inspector beside the text, or lend it to the place that the strips of the page share. */
  placeInspector(isShared) {
    if (isShared === Boolean(this.place)) return;
    this.place?.leave(this);
    this.place = isShared ? inspectorPlace() : null;
    this.root.classList.toggle("sharing", isShared);
    if (isShared) {
      this.inspector.root.remove();
      this.place.join(this);
    } else this.body.append(this.inspector.root);
  }

  unmount() {
    this.close();
    this.place?.leave(this);
    this.pin.unmount();
    this.keys.unmount();
    this.reveal.unmount();
    removeEventListener(STORE, this);
    this.root.remove();
  }

  reset(trial) {
    this.trial = trial;
    this.bands = trial && new Bands(trial, this.changes);
    this.isFollowing = true;
    this.isLive = null;
    this.latency.reset();
    this.tokens.reset(trial);
    this.scrub.reset();
    this.ending.replaceChildren();
    this.chips.clear();
    this.pin.reset(trial);
    this.whatIf.reset(trial);
    this.words.reset();
    this.reveal.reset(Boolean(this.data.reveals));
    this.figures.show(trial);
    this.showSettings();
    this.root.dataset.trial = trial?.id ?? "";
    this.root.setAttribute("aria-busy", String(Boolean(trial)));
  }

  close() {
    this.words.leave();
    if (this.trial && this.live) this.live.leave(this.trial.id, this);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.figuresDue);
    this.frame = this.figuresDue = undefined;
    this.hover.reset();
  }

  // What the socket asks and tells.

  next() {
    return this.trial.steps.length;
  }

  isOver() {
    return Boolean(this.trial.end);
  }

  connected(isConnected) {
    this.figures.lost.hidden = isConnected || this.isOver();
    this.whatIf.connected(isConnected);
  }

  receive(message) {
    const { trial } = this;
    if (message.flips) return this.inspector.showFlips(message.flips);
    if (message.resampled) return this.whatIf.receive(message.resampled);
    if (message.watch) return this.words.receive(message.watch);
    if (trial.end) return;
    if (message.bias) trial.setBias(message.bias);
    if (message.prompt) trial.append(trial.prompt, message.prompt);
    if (message.steps) {
      const first = trial.steps.length;
      this.latency.received(message, first, trial.append(trial.steps, message.steps));
    }
    if (message.status) trial.status = message.status;
    this.isLive ??= message.live;
    if (message.end) {
      trial.end = message.end;
      if (this.isLive) this.trigger("ended", trial.id);
    }
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  pinned(place, isSuggested) {
    this.inspector.show(place);
    if (isSuggested) this.place?.show();
    else {
      this.hover.settle();
      this.place?.take(this, place !== null);
    }
    this.words.pinned(place);
  }

  /** Ask the page for something at a token of this trial. */
  ask(message) {
    this.trigger("asked", message);
  }

  /** Colour mode of the tokens: without a comparison there is no change. */
  get mode() {
    const { mode } = this.settings;
    return mode === "change" && !this.changes.data ? MODES[0][0] : mode;
  }

  get modesToChoose() {
    return MODES.filter(([mode]) => mode !== "change" || this.changes.data);
  }

  // Drawing.

  draw() {
    this.frame = undefined;
    const { trial } = this;
    if (this.hasPortion()) this.appendTokens();
    if (trial.end && !this.ending.hasChildNodes()) this.finish();
    if (trial.end || trial.steps.length < 2) this.showFigures();
    else this.figuresDue ??= setTimeout(() => this.showFigures(), FIGURES_MS);
    if (this.isFollowing && this.isLive) this.tokens.root.scrollTop = this.tokens.root.scrollHeight;
    this.reveal.follow();
    this.latency.drawn(trial.id);
  }

  /** Whether to draw what has come: of a trial that had ended before, the first tokens at once, then many at a time. */
  hasPortion() {
    const count = this.trial.length - this.tokens.length;
    return count > 0 && (this.isLive || Boolean(this.trial.end) || !this.tokens.length || count >= RECORDED_PORTION);
  }

  showFigures() {
    clearTimeout(this.figuresDue);
    this.figuresDue = undefined;
    this.figures.show(this.trial);
    if (!this.trial.end) this.scrub.draw();
  }

  appendTokens() {
    this.tokens.append(this.bands, this.mode);
    this.refreshMedian();
    this.words.grow();
    this.markShared();
    const suggested = this.pinsLast ? this.trial.length - 1 : this.tokens.lastForced;
    if (suggested !== null && suggested !== this.pin.place && this.pin.isFree) this.pin.suggest(suggested);
    if (!this.pin.restore(!this.isLive) && this.pin.place !== null) this.inspector.showTitle();
  }

  refreshMedian() {
    if (this.bands.refreshMedian() && this.mode === "time") this.showSettings();
  }

  markShared() {
    const parting = this.tokens.markShared(this.pin.numShared);
    if (parting !== null && this.pin.isFree) this.pin.suggest(parting);
  }

  finish() {
    const { trial } = this;
    const { error, sentence } = trial.end;
    this.ending.append(element("span", error ? "error" : "why", error || sentence || ""));
    this.ending.setAttribute("role", error ? "alert" : "status");
    this.root.setAttribute("aria-busy", "false");
    this.figures.lost.hidden = true;
    this.tokens.finish();
    this.scrub.finish();
    this.words.ask();
    this.refreshMedian();
    this.chips.show(trial, this.settings.unit);
    this.whatIf.ready();
    this.changes.show(this.settings.unit);
    const [surprising] = trial.greatest((steps, index) => -steps.logprob[index], 1);
    if (!this.isLive && this.pin.place === null && surprising !== undefined) this.pin.suggest(surprising);
  }

  // Settings: what is chosen at one strip holds for all of the page.

  setting(name, value) {
    remember(STORE, { ...this.settings, [name]: value });
    dispatchEvent(new CustomEvent(STORE, { detail: { [name]: value } }));
  }

  handleEvent({ detail }) {
    this.settings = { ...this.settings, ...detail };
    this.showSettings();
  }

  showSettings() {
    const { mode } = this;
    const { unit } = this.settings;
    this.root.dataset.mode = mode;
    this.modes.buttons.get("change").hidden = !this.changes.data;
    this.modes.show(mode);
    this.units.show(unit);
    this.legend.show(mode, unit, this.bands?.medianMs ?? null);
    this.tokens.paintAll(this.bands, mode);
    this.inspector.show(this.pin.place);
    this.scrub.show();
    this.words.showScale();
    this.changes.show(unit);
    if (this.trial?.end) this.chips.show(this.trial, unit);
  }
}
