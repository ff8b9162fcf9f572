// The panel of watched words: the field, what is asked and answered, one row for each word, and all figures as a table.

const SCALES = [["log", "Log"], ["linear", "Linear"]];

class WatchPanel {
  constructor(strip) {
    this.strip = strip;
    this.typed = [];
    this.lines = new Map();
    this.rows = new Map();
    this.drawn = [];
    this.number = 0; // of the last question
    this.root = element("section", "words");
    this.root.setAttribute("aria-label", "Watched words");
    this.position = element("span", "position");
    this.scales = new Choice("Scale of the probabilities", SCALES, (scale) => strip.setting("wordScale", scale));
    this.notice = element("p", "words-notice");
    this.list = element("div", "word-rows");
    this.odds = this.makeOdds();
    this.table = new WordTable(this);
    this.spoken = element("p", "spoken");
    this.spoken.setAttribute("role", "status");
    this.root.append(this.makeHead(), this.notice, this.makeProgress(), this.list, this.odds.root, this.table.root, this.spoken);
    strip.root.addEventListener(HOVERED, ({ detail }) => this.point(detail.place ?? strip.pin.place));
  }

  makeHead() {
    const form = element("form", "words-head");
    this.field = element("input");
    Object.assign(this.field, { type: "text", placeholder: "Watch a word, such as Yes", spellcheck: false, autocomplete: "off", title: WORD_HINT });
    this.field.setAttribute("aria-label", "Watch a word");
    this.hint = element("span", "words-hint", WORD_HINT);
    form.onsubmit = (event) => {
      event.preventDefault();
      this.add(this.field.value);
    };
    form.append(this.field, this.hint, this.position, this.scales.root);
    return form;
  }

  makeProgress() {
    this.progress = element("div", "words-progress");
    this.bar = element("progress");
    this.bar.max = 1;
    this.doing = element("span", "doing");
    this.progress.append(this.bar, this.doing, textButton("Stop", "stop", "Stop computing; what is there stays", () => this.stop()));
    this.progress.hidden = true;
    return this.progress;
  }

  makeOdds() {
    const root = element("div", "word odds");
    const head = element("div", "word-head");
    const [summary, value] = [element("span", "word-summary"), element("span", "value")];
    head.append(element("span", "odds-title", "Log-odds, nats"), summary, value);
    const line = new Line({ onPoint: (place) => this.pointAt(place), onChoose: (place) => this.goTo(place) });
    root.append(head, line.root);
    return { root, summary, value, line, values: null };
  }

  // What is watched.

  /** The words of a rerun; null where nothing can be watched. One that is older than what was just typed is passed over. */
  update(words) {
    this.root.hidden = !words;
    const isOlder = this.sent && JSON.stringify(words) !== JSON.stringify(this.sent);
    if (!words || isOlder) return;
    this.sent = undefined;
    if (JSON.stringify(words) !== JSON.stringify(this.typed)) this.set(words);
  }

  /** Another trial: its figures are asked for when it has ended. */
  reset() {
    this.lines = new Map();
    this.wanted = new Set();
    this.isLiveAsked = false;
    clearTimeout(this.growDue);
    this.growDue = undefined;
    this.shift = null;
    this.error = "";
    this.isStopped = false;
    this.working = null;
    this.showRows();
  }

  add(text) {
    if (!text) return;
    if (this.typed.includes(text)) return this.say("This word is already watched.");
    const problem = this.problemOf(text);
    if (problem) return this.say(`${problem}: shorten it.`);
    if (this.typed.length >= MOST_WORDS) return this.say(`At most ${MOST_WORDS} words are watched: remove one first.`);
    this.field.value = "";
    this.change([...this.typed, text]);
  }

  remove(text) {
    this.change(this.typed.filter((one) => one !== text));
    this.field.focus();
  }

  replace(text, by) {
    this.change([...new Set(this.typed.map((one) => (one === text ? by : one)))]);
  }

  /** Words as a reader has changed them: they go into the address. */
  change(words) {
    this.sent = words;
    this.set(words);
    this.strip.trigger("watched", words);
  }

  set(words) {
    this.typed = words;
    this.isStopped = false;
    this.say("");
    this.ask();
    this.showRows();
  }

  say(text) {
    this.notice.textContent = text;
    this.notice.setAttribute("role", text ? "alert" : "note");
  }

  // What is asked and answered.

  /** The words that the server reads; more of them or longer ones come from an address that was typed. */
  get askable() {
    return this.typed.filter((text) => !this.problemOf(text)).slice(0, MOST_WORDS);
  }

  /** Why a word cannot be read at all; empty where it can. */
  problemOf(text) {
    const num = [...text].length;
    if (!num) return "This word is empty";
    return num > MOST_CHARACTERS ? `This word has ${whole(num)} characters, at most ${MOST_CHARACTERS} are allowed` : "";
  }

  ask() {
    const { trial, live } = this.strip;
    if (!(trial?.end || trial?.watched.length) || !live || this.root.hidden || this.isStopped) return;
    this.asked = this.askable;
    if (!this.asked.length && !this.working) return;
    this.working = this.asked.length && trial.end ? { share: 0, doing: "" } : null;
    this.error = "";
    this.send(this.asked, this.asked.filter((text) => this.wanted.has(text)));
    this.showProgress();
  }

  /** Each question takes the place of the one before; without words it only ends that. */
  send(words, phrases) {
    this.number += 1;
    this.strip.live.askWords({ number: this.number, job: this.strip.trial.id, words, phrases });
  }

  /** The trial is left: nothing more is computed for it. */
  leave() {
    if (this.working) this.send([], []);
    this.working = null;
  }

  /** Tokens have come. A running trial has the figures of words that were watched when it began: their names are asked
      for once, and their lines drawn from time to time. */
  grow() {
    if (this.strip.trial.end || !this.strip.trial.watched.length) return;
    if (!this.isLiveAsked) this.ask();
    this.isLiveAsked = true;
    this.growDue ??= setTimeout(() => {
      this.growDue = undefined;
      this.showRows();
    }, FIGURES_MS);
  }

  compute(text) {
    this.wanted.add(text);
    this.isStopped = false;
    this.ask();
    this.showRows();
  }

  stop() {
    this.isStopped = true;
    this.wanted.clear();
    this.leave();
    this.showRows();
  }

  receive({ number, lines, figures, progress, over, shift, error, vocabulary }) {
    if (number !== this.number) return;
    if (lines) {
      this.vocabulary = vocabulary;
      for (const line of lines) this.lines.set(line.typed, { ...this.lines.get(line.typed), ...line });
    }
    for (const { index, logprob, rank } of figures ?? []) Object.assign(this.lines.get(this.asked[index]), { logprob, rank });
    this.shift = shift ?? this.shift;
    this.error = error ?? this.error;
    this.working = over ? null : (progress ?? this.working);
    if (lines || figures || over) this.showRows();
    else this.showProgress();
  }

  // Drawing.

  lineOf(text) {
    const known = this.lines.get(text);
    if (known) return known.logprob ? known : { ...known, ...liveFigures(this.strip.trial, known) };
    if (this.askable.includes(text)) return { typed: text };
    return { typed: text, error: `${this.problemOf(text) || `More than ${MOST_WORDS} words are watched`}: remove this one.` };
  }

  showRows() {
    const { trial } = this.strip;
    const word = (id) => this.vocabulary?.get(id) ?? trial.word(id);
    this.placeRows();
    for (const [text, row] of this.rows) {
      const line = this.lineOf(text);
      const isComputing = Boolean(this.working) && (!line.passes || this.wanted.has(text));
      row.name(line, word);
      if (trial) row.show(line, wordName(line, word), trial, isComputing);
    }
    this.drawLines();
    this.showProgress();
  }

  /** One row for each word, in order. Rows that stay are not moved: one of them may have the focus. */
  placeRows() {
    const [before, after] = [[...this.rows.keys()], this.typed];
    this.hint.hidden = after.length > 0;
    if (before.length === after.length && before.every((text, index) => text === after[index])) return;
    this.rows = new Map(after.map((text) => [text, this.rows.get(text) ?? new WordRow(this)]));
    const rows = [...this.rows.values()];
    for (const old of [...this.list.children].filter((one) => !rows.some((row) => row.root === one))) old.remove();
    rows.forEach((row, index) => {
      row.root.className = `word w${index % 6}`;
      if (this.list.children[index] !== row.root) this.list.insertBefore(row.root, this.list.children[index] ?? null);
    });
  }

  /** Another scale may have been chosen, here or at another strip. */
  showScale() {
    if (this.scale !== (this.strip.settings.wordScale ?? "log")) this.drawLines();
  }

  /** Draw the words that have figures. */
  drawLines() {
    const word = (id) => this.vocabulary?.get(id) ?? this.strip.trial.word(id);
    const lines = this.typed.map((text) => this.lineOf(text)).filter((line) => line.logprob);
    const drawn = lines.map((line) => ({ line, name: wordName(line, word) }));
    this.drawn = drawn;
    this.scales.root.hidden = this.position.hidden = !drawn.length;
    this.scale = this.strip.settings.wordScale ?? "log";
    this.scales.show(this.scale);
    let [lowest, highest] = [0, -Infinity];
    for (const { line } of drawn) {
      for (const value of line.logprob) {
        if (value === null) continue;
        lowest = Math.min(lowest, value);
        highest = Math.max(highest, value);
      }
    }
    const scale = this.scale === "log" ? logScale(lowest, highest) : linearScale(highest);
    const { trial } = this.strip;
    for (const { line, name } of drawn) this.rows.get(line.typed).draw(line, scale, trial, likeliestText(trial, line, name));
    this.drawOdds(drawn);
    this.table.show(drawn, this.odds.values);
    this.point(this.strip.hover?.place ?? this.strip.pin.place);
  }

  drawOdds(drawn) {
    const { odds } = this;
    const isPair = drawn.length === 2;
    odds.root.hidden = !isPair;
    odds.values = null;
    if (!isPair) return;
    const [one, other] = drawn.map(({ line }) => line.logprob);
    odds.values = one.map((value, place) => (value === null || other[place] === null ? null : value - other[place]));
    const text = oddsText(this.strip.trial, odds.values, drawn.map(({ name }) => name));
    odds.summary.textContent = text;
    odds.line.draw(odds.values, oddsScale(odds.values), this.strip.trial.prompt.length, text);
  }

  showProgress() {
    const { working, shift } = this;
    this.progress.hidden = !working;
    if (working) {
      this.bar.value = working.share;
      this.bar.setAttribute("aria-label", "Computing the watched words");
      const left = working.left_s ? `, ${whole(Math.ceil(working.left_s))}${THIN}s left` : "";
      this.doing.textContent = `${working.doing || "Computing"}${left}`;
    }
    if (this.error) this.say(this.error);
    this.table.note.textContent = shift === null || shift === undefined ? "" : this.shiftText(shift);
  }

  shiftText(shift) {
    if (shift < 5e-6) return "Computed in one pass over the tokens, with the probabilities that were recorded.";
    return `Computed in one pass over the tokens. Batches of another shape move logits a little: the recorded log-probabilities of the text's own tokens differ from these by up to ${significant(shift, 2)} nats.`;
  }

  // The cursor.

  /** Show the figures at a position, null for none: that of the token under the pointer, else the pinned one. */
  point(place) {
    this.place = place;
    this.frame ??= requestAnimationFrame(() => this.drawCursor());
  }

  /** A token was pinned, or none: announced by screen readers too. */
  pinned(place) {
    this.isSpoken = true;
    this.point(place);
  }

  /** Once for each frame, however many tokens the pointer crosses. */
  drawCursor() {
    this.frame = undefined;
    const { drawn, odds, place } = this;
    const isThere = place !== null && drawn.length > 0;
    const values = drawn.map(({ line, name }) => `${name} ${this.rows.get(line.typed).point(line, place) || "unknown"}`);
    const odd = isThere ? (odds.values?.[place] ?? null) : null;
    odds.line.point(place);
    odds.value.textContent = odd === null ? "" : `${odd >= 0 ? "+" : "−"}${Math.abs(odd).toFixed(2)}`;
    this.position.textContent = isThere ? positionText(this.strip.trial, place) : "";
    if (this.isSpoken) this.spoken.textContent = isThere ? `${this.position.textContent}: ${values.join("; ")}` : "";
    this.isSpoken = false;
  }

  pointAt(place) {
    const isToken = place !== null && place < this.strip.trial.length;
    this.strip.hover.point(isToken ? place : null);
    this.point(place ?? this.strip.pin.place);
  }

  goTo(place) {
    if (place < this.strip.trial.length) this.strip.pin.goTo(place);
  }
}

/** All figures as a table, made when it is opened, some rows at a time. */
class WordTable {
  constructor(panel) {
    this.panel = panel;
    this.root = element("div", "words-foot");
    this.details = element("details", "words-table");
    this.body = element("tbody");
    this.box = element("table");
    this.more = textButton("", "more", "", () => this.grow());
    this.details.append(element("summary", "", "Figures as a table"), this.box, this.more);
    this.details.ontoggle = () => this.fill();
    this.note = element("p", "note");
    this.root.append(this.note, this.details);
  }

  show(drawn, odds) {
    this.drawn = drawn;
    this.odds = odds;
    this.root.hidden = !drawn.length;
    this.fill();
  }

  fill() {
    if (!this.details.open || !this.drawn?.length) return;
    const heads = this.drawn.flatMap(({ name }) => [`${name}, p`, "rank"]);
    this.body = element("tbody");
    this.box.replaceChildren(tableHead(["position", "token", ...heads, ...(this.odds ? ["log-odds, nats"] : [])]), this.body);
    this.num = 0;
    this.grow();
  }

  grow() {
    const { trial } = this.panel.strip;
    const total = this.drawn[0].line.logprob.length;
    const last = Math.min(total, this.num + TABLE_ROWS);
    for (; this.num < last; this.num++) this.body.append(this.row(trial, this.num));
    const left = total - this.num;
    this.more.hidden = !left;
    this.more.textContent = `Show ${plural(Math.min(left, TABLE_ROWS), "more row")}`;
  }

  row(trial, place) {
    const row = element("tr");
    const head = element("th", "", positionText(trial, place).replace("at ", ""));
    head.scope = "row";
    const token = element("td", "candidate");
    if (place < trial.length) token.append(tokenChip(trial.wordAt(place)));
    row.append(head, token);
    for (const { line } of this.drawn) {
      const logprob = line.logprob[place];
      row.append(element("td", "number", logprob === null ? "–" : percent(Math.exp(logprob))));
      row.append(element("td", "number", logprob === null || !line.rank[place] ? "–" : whole(line.rank[place])));
    }
    const odd = this.odds?.[place] ?? null;
    if (this.odds) row.append(element("td", "number", odd === null ? "–" : odd.toFixed(2)));
    return row;
  }
}
