// The token strip: tokens are appended as they arrive, never drawn again; colours, pin and tooltip are classes on them.

const STORE = "logitbench.strip";
const PINNED = "logitbench.strip.pinned";
const HOVER_MS = 70;
const FIGURES_MS = 200;
const NUM_CHIPS = 5;

function remembered(key, fallback) {
  try {
    return { ...fallback, ...JSON.parse(sessionStorage.getItem(key) ?? "{}") };
  } catch {
    return fallback;
  }
}

function remember(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // A browser without storage forgets the setting on reload, nothing else.
  }
}

function bandOf(value, limits) {
  let band = 0;
  while (band < limits.length && value > limits[band]) band++;
  return band;
}

const SURPRISE_NATS = PALETTE.surprise.map((p) => -Math.log(p) + 1e-12);
const ENTROPY_NATS = PALETTE.entropy.map((bits) => bits * Math.LN2);

class Strip {
  constructor(parent) {
    this.settings = remembered(STORE, {});
    this.trial = null;
    this.pinned = null;
    this.medianMs = null;
    this.root = element("div", "root");
    this.figures = new Figures();
    this.modes = new Choice("Colour", MODES, (mode) => this.setting("mode", mode));
    this.units = new Choice("Unit", UNITS, (unit) => this.setting("unit", unit));
    this.legend = new Legend();
    this.inspector = new Inspector(this);
    this.text = element("div", "text");
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "listbox");
    this.text.setAttribute("aria-label", "Tokens");
    this.flow = new Flow(this.text);
    this.ending = element("p", "ending");
    this.chips = element("div", "chips");
    this.tooltip = element("div", "tooltip");
    this.tooltip.popover = "manual";
    this.tooltip.setAttribute("role", "tooltip");
    const bar = element("div", "bar-row");
    bar.append(this.modes.root, this.legend.root, this.units.root);
    const main = element("div", "main");
    main.append(this.text, this.ending, this.chips);
    const body = element("div", "body");
    body.append(main, this.inspector.root);
    this.root.append(this.figures.root, bar, body, this.tooltip);
    parent.append(this.root);
    listen(this);
    addEventListener(STORE, this);
    addEventListener(PINNED, this);
  }

  /** Take the data of a rerun; the same trial goes on undisturbed. */
  update({ data, setTriggerValue }) {
    this.trigger = setTriggerValue;
    this.settings = { mode: data.mode, unit: data.unit, k: data.k, ...this.settings };
    this.root.classList.toggle("without-inspector", !data.inspector);
    this.root.classList.toggle("without-controls", data.controls === false);
    this.root.classList.toggle("without-trial", !data.trial);
    this.numShared = data.shared ?? null;
    this.text.style.maxHeight = data.height ? `${data.height}px` : "";
    this.readTheme();
    if (this.trial?.id === data.trial || (!this.trial && !data.trial)) {
      this.markShared();
      return this.showSettings();
    }
    this.close();
    this.reset(data.trial ? new Trial(data.trial) : null);
    if (!this.trial) return;
    this.live = liveAt(data.socket, data.token);
    this.live.follow(this.trial.id, this);
  }

  /** A strip of this page was given another setting: all show it. Or a token was pinned: strips beside it follow. */
  handleEvent({ type, detail }) {
    if (type === PINNED) return this.followPin(detail);
    this.settings = { ...this.settings, ...detail };
    this.showSettings();
  }

  /** Up to where the answers part, the same place holds the same token. */
  followPin({ place, numPrompt, numShared }) {
    if (numShared === null || numShared !== this.numShared || numPrompt !== this.trial?.prompt.length) return;
    const isAlike = place <= numPrompt + numShared && place < this.spans.length;
    if (isAlike && place !== this.pinned) this.suggest(place);
  }

  unmount() {
    this.close();
    removeEventListener(STORE, this);
    removeEventListener(PINNED, this);
    this.root.remove();
  }

  readTheme() {
    this.root.style.backgroundColor = "var(--st-background-color)";
    const [r, g, b] = (getComputedStyle(this.root).backgroundColor.match(/[\d.]+/g) ?? [255, 255, 255]).map(Number);
    this.root.style.backgroundColor = "";
    this.root.dataset.theme = 0.2126 * r + 0.7152 * g + 0.0722 * b < 128 ? "dark" : "light";
  }

  reset(trial) {
    this.trial = trial;
    this.spans = [];
    this.readers = null;
    this.numBytes = 0;
    this.byteStarts = [];
    this.isFollowing = true;
    this.isLive = null;
    this.medianMs = null;
    this.medianAt = 0;
    this.stamps = [];
    this.hideTooltip();
    this.flow.clear();
    this.ending.replaceChildren();
    this.chips.replaceChildren();
    this.markedShared = null;
    this.isSuggested = false;
    this.pinned = null;
    this.wantedPin = trial ? remembered(`${STORE}.pin.${trial.id}`, { place: null }).place : null;
    this.figures.show(trial);
    this.showSettings();
    this.root.setAttribute("aria-busy", String(Boolean(trial)));
  }

  close() {
    if (this.trial && this.live) this.live.leave(this.trial.id, this);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.figuresDue);
    this.frame = this.figuresDue = undefined;
    this.hideTooltip();
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
  }

  receive(message) {
    const { trial } = this;
    if (trial.end) return;
    if (message.prompt) trial.append(trial.prompt, message.prompt);
    if (message.steps) {
      const first = trial.steps.length;
      const count = trial.append(trial.steps, message.steps);
      if (message.at) this.stamps.push({ first, count, at: message.at, decodedAt: message.status?.decoded_at, received: performance.now() });
    }
    if (message.status) trial.status = message.status;
    this.isLive ??= message.live;
    if (message.end) {
      trial.end = message.end;
      if (this.isLive) this.trigger("ended", trial.id);
    }
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  // Drawing: once for each frame, only what is new.

  draw() {
    this.frame = undefined;
    const { trial } = this;
    if (trial.length) this.readers ??= { prompt: new Reader(trial.stripFirstSpace), answer: new Reader(false) };
    if (trial.length > this.spans.length) this.appendTokens();
    if (trial.end && !this.ending.hasChildNodes()) this.finish();
    if (trial.end || trial.steps.length < 2) this.showFigures();
    else this.figuresDue ??= setTimeout(() => this.showFigures(), FIGURES_MS);
    if (this.isFollowing && this.isLive) this.text.scrollTop = this.text.scrollHeight;
    if (this.stamps.length) this.reportLatency(this.stamps.splice(0));
  }

  showFigures() {
    clearTimeout(this.figuresDue);
    this.figuresDue = undefined;
    this.figures.show(this.trial);
  }

  appendTokens() {
    const { trial } = this;
    for (let place = this.spans.length; place < trial.length; place++) {
      const [steps, index] = trial.locate(place);
      const isPrompt = steps === trial.prompt;
      const word = trial.word(steps.id[index]);
      const span = element("span", isPrompt ? "t prompt" : "t answer");
      fillToken(span, word, (isPrompt ? this.readers.prompt : this.readers.answer).read(word));
      if (!isPrompt) {
        this.byteStarts.push(this.numBytes);
        this.numBytes += word.hex.length / 2;
        if (steps.flags[index] & FORCED) span.classList.add("forced");
      }
      this.describe(span, place, word, steps, index);
      this.spans.push(span);
      this.paint(place);
      this.flow.add(span, word.hex.endsWith("0a"));
    }
    this.flow.flush();
    this.refreshMedian();
    this.markShared();
    if (this.wantedPin !== null && this.wantedPin < trial.length) this.pin(this.wantedPin, !this.isLive);
    else if (this.pinned !== null) this.inspector.showTitle(this.pinned);
  }

  describe(span, place, word, steps, index) {
    span.id = `t${place}`;
    span.place = place;
    span.setAttribute("role", "option");
    const chance = steps.logprob[index] === null ? "" : `, ${percent(Math.exp(steps.logprob[index]))}, rank ${steps.rank[index]}`;
    span.setAttribute("aria-label", oneLine(word.text).trim() + chance);
  }

  /** Give a token the class of its band. */
  paint(place) {
    const [steps, index] = this.trial.locate(place);
    let band = 0;
    if (this.settings.mode === "time") {
      if (steps === this.trial.steps && this.medianMs) band = bandOf(steps.ms[index] / this.medianMs, PALETTE.time);
    } else if (steps.logprob[index] !== null) {
      if (this.settings.mode === "surprise") band = bandOf(-steps.logprob[index], SURPRISE_NATS);
      else band = bandOf(steps.entropy[index], ENTROPY_NATS);
    }
    const span = this.spans[place];
    if (span.band === band) return;
    if (span.band) span.classList.remove(`b${span.band}`);
    if (band) span.classList.add(`b${band}`);
    span.band = band;
  }

  /** The median moves while a run lasts; it is taken again each time the tokens have grown by half. */
  refreshMedian() {
    const { length } = this.trial.steps;
    if (length < this.medianAt * 1.5 && !(this.trial.end && length !== this.medianAt)) return;
    this.medianAt = length;
    this.medianMs = this.trial.medianMs();
    if (this.settings.mode === "time") this.showSettings();
  }

  finish() {
    const { trial } = this;
    const { error, sentence } = trial.end;
    this.ending.append(element("span", error ? "error" : "why", error || sentence || ""));
    this.ending.setAttribute("role", error ? "alert" : "note");
    this.root.setAttribute("aria-busy", "false");
    this.figures.lost.hidden = true;
    this.markStop();
    this.refreshMedian();
    this.showChips();
    const [surprising] = trial.greatest((steps, index) => -steps.logprob[index], 1);
    if (!this.isLive && this.pinned === null && surprising !== undefined) this.suggest(surprising);
  }

  /** Mark what the answers beside this one begin with too, and pin the token at which they part. */
  markShared() {
    if (!this.trial || this.numShared === this.markedShared) return;
    const first = this.trial.prompt.length;
    const parting = this.numShared === null ? null : first + this.numShared;
    for (const [place, span] of this.spans.entries()) {
      span.classList.toggle("shared", parting !== null && place >= first && place < parting);
      span.classList.toggle("parting", place === parting);
    }
    if (parting === null || parting < this.spans.length) this.markedShared = this.numShared;
    const isFree = this.isSuggested || (this.wantedPin ?? this.pinned) === null;
    if (parting !== null && parting < this.spans.length && isFree) this.suggest(parting);
  }

  /** Grey what belongs to the stop string, and show what never became a character. */
  markStop() {
    const { trial } = this;
    const limit = trial.end.text_bytes;
    const offset = trial.prompt.length;
    const rest = this.readers ? this.readers.answer.finish() : "";
    const last = this.spans.at(-1);
    if (rest && last && (limit === undefined || limit === null || limit >= this.numBytes)) last.append(rest);
    if (limit === undefined || limit === null) return;
    for (let index = this.byteStarts.length - 1; index >= 0; index--) {
      const { hex } = trial.word(trial.steps.id[index]);
      const start = this.byteStarts[index];
      if (start + hex.length / 2 <= limit) {
        if (hex.length) break;
        continue;
      }
      const span = this.spans[offset + index];
      if (start >= limit) span.classList.add("stopped");
      else this.splitToken(span, hexBytes(hex), limit - start);
    }
  }

  splitToken(span, bytes, numKept) {
    const decode = (part) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(part);
    const stopped = element("span", "stopped");
    span.replaceChildren();
    appendText(span, decode(bytes.subarray(0, numKept)));
    appendText(stopped, decode(bytes.subarray(numKept)));
    span.append(stopped);
  }

  showChips() {
    const { trial } = this;
    const places = trial.greatest((steps, index) => steps.entropy[index], NUM_CHIPS).sort((a, b) => a - b);
    this.chips.replaceChildren();
    if (places.length < 2) return;
    this.chips.append(element("span", "chips-title", "Most uncertain"));
    for (const place of places) {
      const [steps, index] = trial.locate(place);
      const chip = element("button", "chip");
      chip.type = "button";
      const value = element("span", "chip-value", entropyText(steps.entropy[index], this.settings.unit));
      chip.append(tokenChip(trial.word(steps.id[index])), value);
      chip.onclick = () => this.pin(place, true);
      this.chips.append(chip);
    }
  }

  reportLatency(stamps) {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const painted = performance.now();
      const log = (window.__logitbench ??= []);
      for (const stamp of stamps) log.push({ job: this.trial?.id, origin: performance.timeOrigin, ...stamp, painted });
    };
    // A message is delivered after the frame has been painted; the frame's own callback runs before.
    channel.port2.postMessage(null);
  }

  // Settings, pin and walking.

  setting(name, value) {
    remember(STORE, { ...this.settings, [name]: value });
    dispatchEvent(new CustomEvent(STORE, { detail: { [name]: value } }));
  }

  showSettings() {
    const { mode, unit } = this.settings;
    this.root.dataset.mode = mode;
    this.modes.show(mode);
    this.units.show(unit);
    this.legend.show(mode, unit, this.medianMs);
    for (let place = 0; place < this.spans?.length; place++) this.paint(place);
    this.inspector.show(this.pinned);
    if (this.trial?.end) this.showChips();
  }

  tellPin(place) {
    remember(`${STORE}.pin.${this.trial.id}`, { place });
    if (place === null) return;
    const detail = { place, numPrompt: this.trial.prompt.length, numShared: this.numShared };
    dispatchEvent(new CustomEvent(PINNED, { detail }));
  }

  /** Pin a token that is worth a look, until the reader pins one. */
  suggest(place) {
    this.pin(place, true, true);
  }

  /** Pin the token at this place, or none; `scroll` brings it into view. What a reader pins is remembered. */
  pin(place, scroll = false, isSuggested = false) {
    this.wantedPin = null;
    this.isSuggested = isSuggested;
    if (this.pinned !== null) this.spans[this.pinned]?.classList.remove("pinned");
    this.spans[this.pinned]?.removeAttribute("aria-selected");
    this.pinned = place;
    const span = place === null ? undefined : this.spans[place];
    span?.classList.add("pinned");
    span?.setAttribute("aria-selected", "true");
    if (span) this.text.setAttribute("aria-activedescendant", span.id);
    else this.text.removeAttribute("aria-activedescendant");
    if (span && scroll) this.bringIntoView(span);
    if (!isSuggested) this.tellPin(place);
    this.inspector.show(place);
  }

  /** Scrolls the text only, never the page under the reader. */
  bringIntoView(span) {
    const token = span.getBoundingClientRect();
    const pane = this.text.getBoundingClientRect();
    if (token.top < pane.top + 8) this.text.scrollTop -= pane.top + 8 - token.top;
    else if (token.bottom > pane.bottom - 8) this.text.scrollTop += token.bottom - pane.bottom + 8;
  }

  step(by) {
    const from = this.pinned ?? (by > 0 ? this.trial.prompt.length - 1 : this.spans.length);
    this.goTo(from + by);
  }

  goTo(place) {
    if (this.spans.length) this.pin(Math.max(0, Math.min(this.spans.length - 1, place)), true);
  }

  /** Nearest token in the visual row above (-1) or below (1). */
  row(direction) {
    if (this.pinned === null) return this.step(direction);
    const middle = (rect) => rect.left + rect.width / 2;
    const from = this.spans[this.pinned].getClientRects()[0];
    let rowTop = null;
    let best = null;
    for (let place = this.pinned + direction; place >= 0 && place < this.spans.length; place += direction) {
      const rect = this.spans[place].getClientRects()[0];
      if (!rect || Math.abs(rect.top - from.top) < rect.height / 2) continue;
      rowTop ??= rect.top;
      if (Math.abs(rect.top - rowTop) >= rect.height / 2) break;
      const distance = Math.abs(middle(rect) - middle(from));
      if (best === null || distance < best.distance) best = { place, distance };
    }
    if (best !== null) this.goTo(best.place);
  }

  showTooltip(span) {
    this.tooltip.replaceChildren(...tooltipContent(this.trial, span.place, this.settings));
    if (!this.tooltip.matches(":popover-open")) this.tooltip.showPopover();
    const token = span.getClientRects()[0];
    const { width, height } = this.tooltip.getBoundingClientRect();
    const left = Math.max(8, Math.min(token.left, innerWidth - width - 8));
    const fitsBelow = token.bottom + 6 + height < innerHeight || token.top < height + 6;
    this.tooltip.style.left = `${left}px`;
    this.tooltip.style.top = `${fitsBelow ? token.bottom + 6 : token.top - height - 6}px`;
  }

  hideTooltip() {
    clearTimeout(this.hovering);
    if (this.tooltip.matches(":popover-open")) this.tooltip.hidePopover();
  }
}
