// Playback of a generation at its measured pace: play and pause, speed, and the sparkline as a scrub bar.

const SPEEDS = [[1, "1×"], [4, "4×"], [16, "16×"]];
const PLAY_PATH = "M4 2.5v11l9-5.5z";
const PAUSE_PATH = "M3.5 3h3v10h-3zM9.5 3h3v10h-3z";
const LONGEST_FRAME_MS = 1000; // a page in the background draws none
const CALM_MS = 500; // between two changes where the person asked for reduced motion
const PAGE_TOKENS = 10;

const SCRUB_KEYS = {
  ArrowLeft: (shown) => shown - 1,
  ArrowDown: (shown) => shown - 1,
  ArrowRight: (shown) => shown + 1,
  ArrowUp: (shown) => shown + 1,
  PageDown: (shown) => shown - PAGE_TOKENS,
  PageUp: (shown) => shown + PAGE_TOKENS,
  Home: () => 0,
  End: () => Infinity,
};

/** Hide the tokens from `place` on without moving any, or none where it is null: blocks as a whole, one in part. */
function hideFrom(blocks, place) {
  for (const block of blocks) {
    const [first, last] = [block.firstElementChild.place, block.lastElementChild.place];
    block.classList.toggle("later", place !== null && first >= place);
    const isSplit = place !== null && first < place && last >= place;
    if (!isSplit && !block.isSplit) continue;
    block.isSplit = isSplit;
    for (const span of block.children) span.classList.toggle("later", isSplit && span.place >= place);
  }
}

/** How many of the ascending moments lie at or before this one. */
function countUpTo(moments, moment) {
  let [low, high] = [0, moments.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moments[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Scrub {
  constructor(strip) {
    this.strip = strip;
    this.sparkline = new Sparkline();
    this.root = element("div", "scrub");
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Playback");
    this.play = element("button", "icon play");
    this.play.type = "button";
    this.play.onclick = () => this.toggle();
    this.sign = svg("path", { d: PLAY_PATH });
    const icon = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" });
    icon.append(this.sign);
    this.play.append(icon);
    this.moment = element("span", "moment");
    this.speeds = new Choice("Speed of the playback", SPEEDS, (speed) => strip.setting("speed", speed));
    this.root.append(this.play, this.makeBar(), this.moment, this.speeds.root);
    this.reset();
  }

  makeBar() {
    this.bar = element("div", "spark");
    this.head = element("span", "spark-head");
    this.bar.append(this.sparkline.root, this.head);
    this.bar.setAttribute("role", "slider");
    this.bar.setAttribute("aria-label", "Position in the generation");
    this.bar.title = `Surprise of each token, up to ${SPARK_BITS} bits; drag to see the text as it stood there`;
    this.bar.addEventListener("pointerdown", (event) => this.grab(event));
    this.bar.addEventListener("pointermove", (event) => this.pass(event));
    this.bar.addEventListener("pointerleave", () => this.strip.hover.point(null));
    this.bar.addEventListener("keydown", (event) => this.press(event));
    return this.bar;
  }

  /** A trial's beginning: nothing is played back. */
  reset() {
    this.pause();
    this.moments = null;
    this.share = 1; // of the bar, how much the tokens take that have come
    this.shown = null; // tokens that are seen; null for all, which is no playback
    this.draw();
  }

  get total() {
    return this.strip.trial?.steps.length ?? 0;
  }

  get isReady() {
    return this.moments !== null && this.total > 0;
  }

  /** Draw what has come of a running trial, in the room for all it may become. */
  draw() {
    const { trial } = this.strip;
    this.root.hidden = !this.total;
    if (!this.total) return;
    const most = trial.end ? 0 : (trial.status.max_tokens ?? 0);
    this.sparkline.draw(trial.steps.logprob, Math.max(most, this.total));
    this.share = this.total / Math.max(most, this.total);
    this.show();
  }

  /** No token follows: from now on it can be played back. */
  finish() {
    let sum = 0;
    this.moments = this.strip.trial.steps.ms.map((ms) => (sum += ms));
    this.draw();
  }

  show() {
    const { total, shown } = this;
    const position = shown ?? total;
    const ms = this.frame === undefined ? this.momentOf(position) : this.elapsedMs;
    const label = this.frame === undefined ? "Play at the measured pace (space)" : "Pause (space)";
    this.play.disabled = !this.isReady;
    this.play.title = label;
    this.play.setAttribute("aria-label", label);
    this.sign.setAttribute("d", this.frame === undefined ? PLAY_PATH : PAUSE_PATH);
    this.bar.tabIndex = this.isReady ? 0 : -1;
    this.bar.setAttribute("aria-disabled", String(!this.isReady));
    for (const [name, value] of [["min", 0], ["max", total], ["now", position]]) this.bar.setAttribute(`aria-value${name}`, value);
    const time = ms === null ? "" : ` · ${(ms / 1000).toFixed(2)}${THIN}s`;
    this.bar.setAttribute("aria-valuetext", `token ${whole(position)} of ${whole(total)}${time.replace(" ·", ",").replace(THIN, " ")}`);
    this.moment.textContent = this.isReady ? `${whole(position)} of ${whole(total)}${time}` : "";
    this.bar.style.setProperty("--at", (position / Math.max(1, total)) * this.share);
    this.speeds.show(this.strip.settings.speed ?? 1);
    this.root.classList.toggle("playing-back", shown !== null);
  }

  /** Milliseconds from the submission to the last of the first `count` tokens. */
  momentOf(count) {
    if (!this.moments) return null;
    return count ? this.moments[count - 1] : 0;
  }

  // Moving.

  /** Show the text as it stood with the first `count` generated tokens; all of them end the playback. */
  seek(count) {
    const shown = Math.max(0, Math.min(this.total, count));
    this.elapsedMs = this.momentOf(shown);
    this.set(shown);
  }

  set(shown) {
    const { tokens, trial } = this.strip;
    this.shown = shown === this.total && this.frame === undefined ? null : shown;
    const place = trial.prompt.length + shown;
    hideFrom(tokens.flow.root.children, this.shown === null ? null : place);
    if (place > 0) tokens.bringIntoView(place - 1);
    this.show();
  }

  toggle() {
    if (!this.isReady) return;
    if (this.frame !== undefined) this.pause();
    else this.start();
    this.show();
  }

  start() {
    this.strip.hover.leave();
    if (this.shown === null) this.seek(0);
    this.at = this.changedAt = null;
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
  }

  /** Everything is seen again. */
  end() {
    this.pause();
    if (this.shown !== null) this.seek(this.total);
  }

  tick(now) {
    this.elapsedMs += Math.min(LONGEST_FRAME_MS, now - (this.at ?? now)) * (this.strip.settings.speed ?? 1);
    this.at = now;
    const shown = countUpTo(this.moments, this.elapsedMs);
    if (shown === this.total) return this.end();
    this.frame = requestAnimationFrame((next) => this.tick(next));
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (isCalm && this.changedAt !== null && now - this.changedAt < CALM_MS) return;
    this.changedAt = now;
    if (shown === this.shown) this.show();
    else this.set(shown);
  }

  // By hand.

  grab(event) {
    if (!this.isReady || event.button) return;
    this.pause();
    this.bar.setPointerCapture(event.pointerId);
    this.seekTo(event);
  }

  /** The pointer moves over the bar: dragged it seeks, else it points at the token in the text. */
  pass(event) {
    if (this.bar.hasPointerCapture(event.pointerId)) this.seekTo(event);
    else if (this.isReady && event.pointerType !== "touch") this.pointAt(Math.floor(this.countAt(event)));
  }

  seekTo(event) {
    this.seek(Math.round(this.countAt(event)));
    this.pointAt((this.shown ?? this.total) - 1);
  }

  /** Point at a generated token. */
  pointAt(index) {
    const isThere = index >= 0 && index < this.total;
    this.strip.hover.point(isThere ? this.strip.trial.prompt.length + index : null);
  }

  countAt(event) {
    const { left, width } = this.bar.getBoundingClientRect();
    return ((event.clientX - left) / width) * this.total;
  }

  press(event) {
    if (!this.isReady || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.key === "Escape") this.end();
    else if (event.key === " ") this.toggle();
    else if (SCRUB_KEYS[event.key]) {
      this.pause();
      this.seek(SCRUB_KEYS[event.key](this.shown ?? this.total));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
