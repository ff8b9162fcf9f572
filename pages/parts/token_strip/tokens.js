// A trial's tokens as they stand in the text: each is filled once, when it arrives; then only its classes change.

class Tokens {
  constructor() {
    this.root = element("div", "text");
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "listbox");
    this.root.setAttribute("aria-label", "Tokens");
    this.flow = new Flow(this.root);
    this.id = uniqueId("t");
    this.isAnswerOnly = false; // the prompt's tokens stand elsewhere on the page
    this.reset(null);
  }

  reset(trial) {
    this.trial = trial;
    this.spans = [];
    this.lastForced = null; // place
    this.readers = null;
    this.numBytes = 0;
    this.byteStarts = [];
    this.markedShared = null;
    this.others = new Map();
    this.flow.clear();
  }

  get length() {
    return this.spans.length;
  }

  /** Place of the first token that is on the page. */
  get first() {
    return this.isAnswerOnly && this.trial ? this.trial.prompt.length : 0;
  }

  at(place) {
    return this.spans[place];
  }

  /** Add what has come since the last time, in the colours of the mode. */
  append(bands, mode) {
    const { trial } = this;
    this.readers ??= { prompt: new Reader(trial.stripFirstSpace), answer: new Reader(false) };
    for (let place = this.length; place < trial.length; place++) {
      const span = this.make(place);
      this.spans.push(span);
      this.paint(place, bands.at(place, mode));
      if (place >= this.first) this.flow.add(span, trial.wordAt(place).hex.endsWith("0a"));
    }
    this.flow.flush();
  }

  make(place) {
    const { trial } = this;
    const [steps, index] = trial.locate(place);
    const isPrompt = steps === trial.prompt;
    const word = trial.wordAt(place);
    const span = element("span", isPrompt ? "t prompt" : "t answer");
    fillToken(span, word, (isPrompt ? this.readers.prompt : this.readers.answer).read(word));
    if (!isPrompt) {
      this.byteStarts.push(this.numBytes);
      this.numBytes += word.hex.length / 2;
      if (steps.flags[index] & FORCED) {
        span.classList.add("forced");
        this.lastForced = place;
      }
    }
    span.id = `${this.id}-${place}`;
    span.place = place;
    span.setAttribute("role", "option");
    const chance = steps.logprob[index] === null ? "" : `, ${percent(Math.exp(steps.logprob[index]))}${steps.rank[index] ? `, rank ${steps.rank[index]}` : ""}`;
    const name = oneLine(word.text).trim() || (word.text ? "space" : "no text");
    const origin = isPrompt ? ", of the prompt" : steps.flags[index] & FORCED ? ", forced" : "";
    span.said = name + chance + origin;
    span.setAttribute("aria-label", span.said);
    return span;
  }

  paintAll(bands, mode) {
    for (let place = 0; place < this.length; place++) this.paint(place, bands.at(place, mode));
  }

  paint(place, band) {
    const span = this.spans[place];
    if (span.band === band) return;
    if (span.band) span.classList.remove(`b${span.band}`);
    if (band) span.classList.add(`b${band}`);
    span.band = band;
  }

  /** Mark what the answers beside this one begin with too. Gives the place at which they part, when it is newly marked. */
  markShared(numShared) {
    if (!this.trial || numShared === this.markedShared) return null;
    const first = this.trial.prompt.length;
    const parting = numShared === null ? null : first + numShared;
    for (const [place, span] of this.spans.entries()) {
      span.classList.toggle("shared", parting !== null && place >= first && place < parting);
      span.classList.toggle("parting", place === parting);
    }
    const hasCome = parting === null || parting < this.length;
    if (hasCome) this.markedShared = numShared;
    return hasCome ? parting : null;
  }

  /** Mark the tokens that would be others, given as [index, id], and those of which that is open; null marks none. */
  markOthers(answer) {
    const first = this.trial?.prompt.length;
    const others = new Map((answer?.open ?? []).map((index) => [first + index, null]));
    for (const [index, id] of answer?.other ?? []) others.set(first + index, id);
    const firstOther = answer?.other.length ? first + answer.other[0][0] : null;
    for (const place of new Set([...this.others.keys(), ...others.keys()])) {
      const span = this.spans[place];
      const id = others.get(place);
      const isOther = id !== undefined && id !== null;
      span.classList.toggle("other", isOther);
      span.classList.toggle("open", id === null);
      span.classList.toggle("first-other", place === firstOther);
      const more = isOther ? `, would be ${oneLine(this.trial.word(id).text).trim()}` : id === null ? ", may be another" : "";
      span.setAttribute("aria-label", span.said + more);
    }
    this.others = others;
  }

  /** No token follows: show what never became a character, and grey what belongs to the stop string. */
  finish() {
    this.flow.close();
    const { trial } = this;
    const limit = trial.end.text_bytes ?? Infinity;
    const rest = this.readers ? this.readers.answer.finish() : "";
    if (rest && this.length && limit >= this.numBytes) this.spans.at(-1).append(rest);
    for (let index = this.byteStarts.length - 1; index >= 0; index--) {
      const { hex } = trial.word(trial.steps.id[index]);
      const start = this.byteStarts[index];
      if (start + hex.length / 2 <= limit) {
        if (hex.length) break;
        continue;
      }
      const span = this.spans[trial.prompt.length + index];
      if (start >= limit) span.classList.add("stopped");
      else this.split(span, hexBytes(hex), limit - start);
    }
  }

  split(span, bytes, numKept) {
    const decode = (part) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(part);
    const stopped = element("span", "stopped");
    span.replaceChildren();
    appendText(span, decode(bytes.subarray(0, numKept)));
    appendText(stopped, decode(bytes.subarray(numKept)));
    span.append(stopped);
  }

  /** Scrolls the text only, never the page under the reader. */
  bringIntoView(place) {
    const token = this.spans[place].getBoundingClientRect();
    const pane = this.root.getBoundingClientRect();
    if (token.top < pane.top + 8) this.root.scrollTop -= pane.top + 8 - token.top;
    else if (token.bottom > pane.bottom - 8) this.root.scrollTop += token.bottom - pane.bottom + 8;
  }

  /** Place of the nearest token in the visual row above (-1) or below (1); null where there is no such row. */
  besideRow(from, direction) {
    const middle = (rect) => rect.left + rect.width / 2;
    const start = this.spans[from].getClientRects()[0];
    let rowTop = null;
    let best = null;
    for (let place = from + direction; place >= 0 && place < this.length; place += direction) {
      const rect = this.spans[place].getClientRects()[0];
      if (!rect || Math.abs(rect.top - start.top) < rect.height / 2) continue;
      rowTop ??= rect.top;
      if (Math.abs(rect.top - rowTop) >= rect.height / 2) break;
      const distance = Math.abs(middle(rect) - middle(start));
      if (best === null || distance < best.distance) best = { place, distance };
    }
    return best?.place ?? null;
  }
}
