// Tokens of a text field of the page while a person types: how many, and each with its edges.

const TYPED_STORE = "logitbench.typed";
const REDRAWN_MS = 300; // after a rerun, until the field has the text that it was given

/** Lengths of what two lists have in common at their start and, behind that, at their end. */
function commonEnds(before, now) {
  const most = Math.min(before.length, now.length);
  let start = 0;
  while (start < most && before[start] === now[start]) start++;
  let end = 0;
  while (end < most - start && before[before.length - 1 - end] === now[now.length - 1 - end]) end++;
  return [start, end];
}

class TypedTokens {
  constructor(parent) {
    this.root = element("div", "root");
    this.details = element("details", "typed");
    this.count = element("span", "count");
    this.chips = element("div", "typed-text");
    this.chips.setAttribute("role", "group");
    this.chips.setAttribute("aria-label", "Tokens of the text");
    this.more = element("p", "more");
    const summary = element("summary");
    summary.append(this.count);
    this.details.append(summary, this.chips, this.more);
    this.details.ontoggle = () => remember(TYPED_STORE, { ...remembered(TYPED_STORE, {}), [this.data.field]: this.details.open });
    this.root.append(this.details);
    this.keys = []; // of the chips that stand there: tokens that look alike have the same
    this.number = this.shown = 0;
    parent.append(this.root);
    document.addEventListener("input", this);
  }

  /** Take the data of a rerun: what is typed since then stays, unless the field itself was given another text. */
  update({ data }) {
    const before = this.data;
    this.data = data;
    markTheme(this.root);
    if (!before) {
      this.details.open = remembered(TYPED_STORE, { [data.field]: data.isOpen })[data.field];
      this.live = liveAt(data.socket);
      this.live.attend(data.field, (answer) => this.hear(answer));
    }
    const isOther = ["model", "loaded", "special"].some((name) => before?.[name] !== data[name]);
    const text = this.textNow(before);
    if (isOther || text !== this.text) this.ask(text);
    clearTimeout(this.redrawn);
    this.redrawn = setTimeout(() => this.compare(), REDRAWN_MS);
  }

  /** Ask for what the field has, where a rerun has put back the text of the rerun before. */
  compare() {
    const typed = this.element?.value ?? this.text;
    if (typed !== this.text) this.ask(typed);
  }

  /** What stands in the field: it may have been typed before this was here, and is not sent while it has the focus. */
  textNow(before) {
    if (!before) return this.element?.value ?? this.data.text;
    return before.text === this.data.text && this.element?.matches(":focus") ? this.text : this.data.text;
  }

  get element() {
    return document.querySelector(`${this.field} textarea`);
  }

  /** Selector of the field: Streamlit gives the key of a widget as a class. */
  get field() {
    return `.st-key-${CSS.escape(this.data.field)}`;
  }

  unmount() {
    document.removeEventListener("input", this);
    clearTimeout(this.redrawn);
    this.live.dismiss(this.data.field);
    this.root.remove();
  }

  /** Something was typed or pasted, here or in another field. */
  handleEvent({ target }) {
    if (target.closest?.(this.field)) this.ask(target.value);
  }

  ask(text) {
    this.text = text;
    this.number++;
    if (!this.data.model && !this.data.loaded) return this.refuse("Tokens");
    if (text.length > this.data.most) return this.refuse(`Tokens are shown while typing up to ${whole(this.data.most)} characters`);
    const { field, model, special } = this.data;
    this.live.askText({ field, number: this.number, text: text.toWellFormed(), model, special });
  }

  refuse(reason) {
    this.shown = this.number;
    this.count.textContent = reason;
    this.keys = [];
    this.chips.replaceChildren();
    this.more.textContent = "";
  }

  hear(answer) {
    if (answer.number <= this.shown) return;
    if (answer.error) {
      if (answer.number === this.number) this.refuse(answer.error);
      return;
    }
    this.shown = answer.number;
    this.count.textContent = this.sentence(answer);
    this.count.classList.toggle("over", answer.count > (this.data.context ?? Infinity));
    this.draw(answer);
    const rest = answer.count - answer.id.length;
    this.more.textContent = rest ? `and ${plural(rest, "token")} more` : "";
  }

  sentence({ count, characters }) {
    const { context } = this.data;
    if (context !== null) return count > context ? `${plural(count, "token")}; the context holds ${whole(context)}` : `${whole(count)} of ${plural(context, "token")}`;
    const each = count && characters ? `, ${significant(characters / count, 3)} characters per token` : "";
    return `${plural(count, "token")} for ${plural(characters, "character")}${each}`;
  }

  /** Make only the chips that differ from those that stand there. */
  draw({ id: ids, vocabulary, add_space_prefix: hasSpacePrefix }) {
    const reader = new Reader(hasSpacePrefix);
    const readings = ids.map((id) => reader.read(vocabulary.get(id)));
    const keys = readings.map(({ text, before, behind }, index) => `${ids[index]} ${before} ${behind} ${text}`);
    const [start, end] = commonEnds(this.keys, keys);
    const made = document.createDocumentFragment();
    for (let index = start; index < keys.length - end; index++) {
      const chip = element("span", "piece");
      chip.title = `id ${ids[index]}`;
      fillToken(chip, vocabulary.get(ids[index]), readings[index]);
      made.append(chip);
    }
    const old = [...this.chips.children];
    for (const chip of old.slice(start, old.length - end)) chip.remove();
    this.chips.insertBefore(made, old[old.length - end] ?? null);
    this.keys = keys;
  }
}
