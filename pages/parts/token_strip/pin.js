// The token that is looked at: by a click, by the keys, or suggested until the reader has pinned one.

const PINNED = "logitbench.strip.pinned";

class Pin {
  /** onMove gets the place of the pinned token, null for none, and whether it was only suggested. */
  constructor(tokens, onMove) {
    this.tokens = tokens;
    this.onMove = onMove;
    this.numShared = null; // generated tokens that the answers beside this one begin with too
    this.reset(null);
    addEventListener(PINNED, this);
  }

  /** A trial opens with the token that was pinned when it was last seen, as soon as that has come. */
  reset(trial) {
    this.trial = trial;
    this.place = null;
    this.isSuggested = false;
    this.wanted = trial ? remembered(this.memory, { place: null }).place : null;
  }

  unmount() {
    removeEventListener(PINNED, this);
  }

  get memory() {
    return `logitbench.strip.pin.${this.trial.id}`;
  }

  /** Whether the reader has pinned none, here or at an earlier visit. */
  get isFree() {
    return this.isSuggested || (this.wanted ?? this.place) === null;
  }

  /** Pin the token at this place, or none; `scroll` brings it into view. What a reader pins is remembered. */
  set(place, { scroll = false, isSuggested = false } = {}) {
    const old = this.tokens.at(this.place);
    old?.classList.remove("pinned");
    old?.removeAttribute("aria-selected");
    this.wanted = null;
    this.isSuggested = isSuggested;
    this.place = place;
    const span = this.tokens.at(place);
    span?.classList.add("pinned");
    span?.setAttribute("aria-selected", "true");
    if (span) this.tokens.root.setAttribute("aria-activedescendant", span.id);
    else this.tokens.root.removeAttribute("aria-activedescendant");
    if (span && scroll) this.tokens.bringIntoView(place);
    if (!isSuggested) this.tell();
    this.onMove(place, isSuggested);
  }

  /** Pin a token that is worth a look, until the reader pins one. */
  suggest(place) {
    this.set(place, { scroll: true, isSuggested: true });
  }

  toggle(place) {
    this.set(this.place === place && !this.isSuggested ? null : place);
  }

  /** Pin what an earlier visit left pinned, when it has come. Says whether it did. */
  restore(scroll) {
    if (this.wanted === null || this.wanted >= this.tokens.length) return false;
    if (this.wanted < this.tokens.first) {
      this.wanted = null;
      return false;
    }
    this.set(this.wanted, { scroll });
    return true;
  }

  tell() {
    remember(this.memory, { place: this.place });
    if (this.place === null) return;
    const detail = { place: this.place, numPrompt: this.trial.prompt.length, numShared: this.numShared };
    dispatchEvent(new CustomEvent(PINNED, { detail }));
  }

  /** A token was pinned in a strip beside this one: up to where the answers part, the same place holds the same token. */
  handleEvent({ detail: { place, numPrompt, numShared } }) {
    if (numShared === null || numShared !== this.numShared || numPrompt !== this.trial?.prompt.length) return;
    const isAlike = place <= numPrompt + numShared && place < this.tokens.length;
    if (isAlike && place !== this.place) this.suggest(place);
  }

  // Walking.

  step(by) {
    const from = this.place ?? (by > 0 ? this.trial.prompt.length - 1 : this.tokens.length);
    this.goTo(from + by);
  }

  goTo(place) {
    const last = this.tokens.length - 1;
    if (last >= this.tokens.first) this.set(Math.max(this.tokens.first, Math.min(last, place)), { scroll: true });
  }

  /** To the row above (-1) or below (1). */
  row(direction) {
    if (this.place === null) return this.step(direction);
    const place = this.tokens.besideRow(this.place, direction);
    if (place !== null) this.goTo(place);
  }
}
