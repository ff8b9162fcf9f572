// What another model makes of the same tokens: the mode Change, a token's facts, and the list of the most changed tokens.

const CONTEXT_TOKENS = 8;

/** A change of log-probability with its sign, in the unit; p has none of its own for it. */
function changeText(nats, unit) {
  if (!Number.isFinite(nats)) return nats > 0 ? "+∞" : "−∞";
  const value = unit === "bits" ? nats / Math.LN2 : nats;
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

function changeUnit(unit) {
  return unit === "bits" ? "bits" : "nats";
}

/** A divergence in the unit: two significant digits. */
function divergenceText(nats, unit) {
  return nats === null ? "∞" : significant(unit === "bits" ? nats / Math.LN2 : nats, 2);
}

/** A comparison with another model: figures of the trial's generated tokens, or of a scored prompt from its second on. */
class Changes {
  constructor(view) {
    this.view = view;
    this.data = null;
    this.root = element("section", "changes");
    this.root.hidden = true;
    this.title = element("h3");
    this.title.id = uniqueId("changes-title");
    this.root.setAttribute("aria-labelledby", this.title.id);
    this.flip = element("button", "first-flip");
    this.flip.type = "button";
    this.flip.onclick = () => this.goTo(this.first + this.data.first_flip);
    const head = element("div", "head");
    head.append(this.title, this.flip);
    this.list = element("div", "list");
    this.root.append(head, this.list);
  }

  /** Take the comparison of a rerun, null for none; says whether it is a new one. */
  take(data) {
    const isNew = Boolean(data) && data.key !== this.data?.key;
    this.data = data ?? null;
    this.root.hidden = !this.data?.rows.length;
    return isNew;
  }

  /** Place of the first compared token. */
  get first() {
    return this.data.is_prompt ? 1 : this.view.trial.prompt.length;
  }

  /** {logprob, other, change, kl} of the token at a place, in nats; null where it was not compared. */
  at(place) {
    const index = this.data && this.view.trial ? place - this.first : -1;
    if (index < 0 || index >= (this.data?.logprob.length ?? 0)) return null;
    const logprob = this.data.logprob[index] ?? -Infinity;
    const other = this.data.other_logprob[index] ?? -Infinity;
    return { logprob, other, change: logprob === other ? 0 : other - logprob, kl: this.data.kl[index] };
  }

  /** [name, value, explanation] of a token's figures. */
  factsAt(place, unit) {
    const found = this.at(place);
    if (!found) return [];
    const named = changeUnit(unit);
    return [
      ["change", `${changeText(found.change, unit)} ${named}`, `log-probability by ${this.data.other} minus that by the trial's own model`],
      ["KL", `${divergenceText(found.kl, unit)} ${named}`, `divergence of ${this.data.other} from the trial's own model at this token, over the whole vocabulary`],
      ["other p", percent(Math.exp(found.other)), `probability of this token by ${this.data.other}`],
    ];
  }

  /** Draw the list, and mark tokens that became more or less probable, once they are all there. */
  show(unit) {
    const { tokens, trial } = this.view;
    for (const [place, span] of tokens.spans.entries()) {
      const change = this.at(place)?.change ?? 0;
      span.classList.toggle("rose", change >= PALETTE.change[0]);
      span.classList.toggle("fell", change <= -PALETTE.change[0]);
    }
    if (!this.data || !trial?.end) return;
    this.title.textContent = `Most changed by ${this.data.other}`;
    this.showFlip();
    const named = changeUnit(unit);
    const table = element("table");
    const body = element("tbody");
    body.append(...this.data.rows.map((row) => this.row(row, unit)));
    table.append(tableHead(["token", `change, ${named}`, "p: own → other", `KL, ${named}`, "most probable"]), body);
    this.list.replaceChildren(table);
  }

  /** The button that leads to the first token before which the models have another most probable one. */
  showFlip() {
    const { first_flip: index } = this.data;
    this.flip.hidden = index === null;
    if (index === null) return;
    const chip = tokenChip(this.view.trial.wordAt(this.first + index));
    this.flip.replaceChildren(element("span", "chip-value", `First greedy flip: token ${whole(index + 1)}`), chip);
  }

  row({ index, best, other_best }, unit) {
    const place = this.first + index;
    const { logprob, other, change, kl } = this.at(place);
    const row = element("tr");
    const cell = element("td", "where");
    cell.append(this.jump(place));
    row.append(cell);
    const p = `${percent(Math.exp(logprob))} → ${percent(Math.exp(other))}`;
    const texts = [changeText(change, unit), p, divergenceText(kl, unit)];
    row.append(...texts.map((text) => element("td", "number", text)), this.best(best, other_best));
    row.onclick = () => this.goTo(place);
    return row;
  }

  /** The token in its context, as a button that pins it. */
  jump(place) {
    const { trial } = this.view;
    const button = element("button", "jump");
    button.type = "button";
    const before = element("bdi", "before");
    for (let at = Math.max(0, place - CONTEXT_TOKENS); at < place; at++) before.append(oneLine(trial.wordAt(at).text));
    button.append(before, tokenChip(trial.wordAt(place), "quoted"));
    return button;
  }

  /** The most probable token, or those of both models where they differ. */
  best(own, other) {
    const cell = element("td", "best");
    cell.append(element("bdi", "", oneLine(own)));
    if (own !== other) cell.append(" → ", element("bdi", "", oneLine(other)));
    cell.classList.toggle("flipped", own !== other);
    return cell;
  }

  goTo(place) {
    this.view.pin.goTo(place);
    this.view.tokens.root.scrollIntoView({ block: "nearest" });
  }
}
