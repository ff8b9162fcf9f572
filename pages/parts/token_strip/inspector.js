// What the model considered at one step: the sentence, the facts, the candidates. For the inspector and the tooltip.

/** Head of the column of log-probabilities, by what a server's are of. */
const LOGPROBS_OF = { "after samplers": "after samplers", unknown: "server" };

/** Candidates to show: the first k, the chosen token even outside them, and what is left over. */
function candidateRows(step, k) {
  const ids = (step.top_id ?? []).slice(0, k);
  const rows = [];
  ids.forEach((id, i) => {
    if (id < 0) return;
    const isChosen = id === step.id;
    rows.push({ id, index: i, isChosen, logprob: step.top_logprob[i] ?? -Infinity, p: step.top_p[i] ?? 0 });
  });
  if (step.logprob !== null && !rows.some((row) => row.isChosen)) {
    rows.push({ id: step.id, isChosen: true, logprob: step.logprob, p: step.p, isOutside: true });
  }
  const left = (value) => Math.max(0, 1 - rows.reduce((sum, row) => sum + value(row), 0));
  const isAllCut = rows.filter((row) => row.p > 0).length >= step.kept;
  return { rows, rest: { mass: left((row) => Math.exp(row.logprob)), p: isAllCut ? 0 : left((row) => row.p ?? 0), isAllCut } };
}

/** What is left over is a difference; below its own rounding it is called nearly nothing. */
function restText(p, unit) {
  return p < 5e-6 ? "≈ 0" : likelihood(Math.log(p), unit);
}

function bar(kind, share) {
  const made = element("span", `bar ${kind}`);
  made.style.setProperty("--share", Math.min(1, share));
  if (share > 0) made.classList.add("some");
  return made;
}

function candidateRow(label, model, before, modelText, beforeText) {
  const row = element("tr");
  const token = element("td", "candidate");
  token.append(label);
  const bars = element("td", "bars");
  bars.append(bar("model", model));
  if (before !== null) bars.append(bar("final", before));
  row.append(token, bars, element("td", "number", modelText), element("td", "number", beforeText));
  return row;
}

/** The table of candidates; isPrompt leaves out the draw, which a prompt token never had. after: head of the column of
    what sampling made of them; asker: the view that takes what a reader asks for at a candidate, if any. */
function candidateTable(trial, step, { k, unit, isPrompt, asker, after = "after sampling" }) {
  const table = element("table", "candidates");
  const hasDraw = !isPrompt && !step.isForced && step.p !== null;
  const body = element("tbody");
  const { rows, rest } = candidateRows(step, k);
  for (const candidate of rows) {
    const { id, isChosen, isOutside, logprob, p } = candidate;
    const barred = hasDraw && !isChosen ? barredBy(trial, step, candidate) : null;
    const after = hasDraw ? (barred?.[0] ?? likelihood(Math.log(p), unit)) : "";
    const row = candidateRow(tokenChip(trial.word(id)), Math.exp(logprob), hasDraw ? p : null, likelihood(logprob, unit), after);
    if (barred?.[1]) row.title = barred[1];
    if (hasDraw && trial.bias.get(id) > -Infinity) row.firstChild.append(element("span", "bias", ` ${biasText(trial.bias.get(id))}`));
    if (asker) row.append(candidateActions(asker, step, id, isChosen));
    row.classList.toggle("chosen", isChosen);
    row.classList.toggle("outside", Boolean(isOutside));
    row.classList.toggle("cut", barred !== null);
    body.append(row);
  }
  const others = trial.numVocabulary - rows.length;
  if (others > 0 || trial.isOfServer) {
    const label = element("span", "rest", trial.isOfServer ? "all others" : `${whole(others)} others`);
    const beforeText = hasDraw ? (rest.isAllCut ? "cut" : restText(rest.p, unit)) : "";
    const last = candidateRow(label, rest.mass, hasDraw ? rest.p : null, restText(rest.mass, unit), beforeText);
    last.className = "remaining";
    if (asker) last.append(element("td"));
    body.append(last);
  }
  const heads = ["candidate", "", `${LOGPROBS_OF[trial.status.logprobs_of] ?? "model"}, ${unit}`, hasDraw ? after : ""];
  table.append(tableHead(asker ? [...heads, ""] : heads), body);
  return table;
}

/** What would be drawn at a step that was sampled again. */
function sentenceAgain(trial, step, recorded) {
  const paragraph = element("p", "sentence");
  if (step.isOpen) {
    paragraph.append(`At ${step.at} the recorded candidates are too few to tell what is drawn here. The shares are estimates.`);
    return paragraph;
  }
  const how = step.kept === 1 ? " the only one that sampling keeps" : ` at ${percent(step.p)} among ${plural(step.kept, "candidate")}`;
  paragraph.append(`At ${step.at} the draw gives `, tokenChip(trial.word(step.id), "quoted"), `,${how}`);
  if (step.id === recorded.id) paragraph.append(", as in this run.");
  else paragraph.append(", instead of ", tokenChip(trial.word(recorded.id), "quoted"), ".");
  return paragraph;
}

function sentenceOf(trial, step, isPrompt) {
  const paragraph = element("p", "sentence");
  const chip = tokenChip(trial.word(step.id), "quoted");
  paragraph.append(...sentences(step, chip, isPrompt));
  return paragraph;
}

/** The entropy; where the server does not report it, a lower bound from its candidates: the rest counted as one token. */
function entropyFact(trial, step, unit) {
  const name = "entropy";
  if (step.entropy !== null) return [name, entropyText(step.entropy, unit), "of the model's distribution over the whole vocabulary"];
  const shares = trial.isOfServer ? (step.top_logprob ?? []).filter((_, i) => step.top_id[i] >= 0).map(Math.exp) : [];
  if (!shares.length) return [name, trial.missing, "of the model's distribution over the whole vocabulary"];
  const rest = Math.max(0, 1 - shares.reduce((sum, share) => sum + share, 0));
  const least = [...shares, rest].reduce((sum, share) => sum - (share > 0 ? share * Math.log(share) : 0), 0);
  return [name, `≥ ${entropyText(least, unit)}`, "lower bound, from the candidates that the server returned; the whole distribution is not known"];
}

/** [name, value, explanation] of a step's plain facts. */
function factsOf(trial, step, unit, isPrompt) {
  const word = trial.word(step.id);
  const bytes = (word.hex.match(/../g) ?? []).join(" ");
  const hasId = !trial.isOfServer || trial.status.has_ids;
  const facts = [["id", hasId ? whole(step.id) : trial.missing, "number of the token in the vocabulary"]];
  facts.push(["bytes", bytes || "none", "bytes that the token adds to the text, in hexadecimal"]);
  if (step.rank !== null && step.logprob !== null) {
    facts.push(["rank", step.rank ? whole(step.rank) : trial.missing, "1 is the most probable; ties share the better rank"]);
    facts.push(entropyFact(trial, step, unit));
  }
  if (isPrompt) return facts;
  const bias = trial.bias.get(step.id);
  if (bias > -Infinity) facts.push(["bias", biasText(bias), "added to the token's logit before sampling"]);
  const isShared = step.flags & SHARED_MOMENT;
  facts.push(["time", isShared ? "with the token before" : milliseconds(step.ms), step.index ? "since the previous token" : "since the run was submitted"]);
  if (step.draw !== null && step.kept !== 1) facts.push(["draw", step.draw.toFixed(4), "uniform random number used for the draw"]);
  return facts;
}

function factList(facts) {
  const list = element("dl", "facts");
  for (const [name, value, explanation] of facts) {
    const pair = element("div");
    pair.title = explanation;
    pair.append(element("dt", "", name), element("dd", "", value));
    list.append(pair);
  }
  return list;
}

/** Content of the tooltip: the inspector's, shorter. */
function tooltipContent(trial, place, { k, unit }) {
  const [steps, index] = trial.locate(place);
  const step = steps.at(index);
  const isPrompt = steps === trial.prompt;
  const parts = [sentenceOf(trial, step, isPrompt), factList(factsOf(trial, step, unit, isPrompt))];
  if (step.logprob !== null) parts.push(candidateTable(trial, step, { k: Math.min(k, 8), unit, isPrompt }));
  return parts;
}

function iconButton(label, sign, onClick) {
  const button = element("button", "icon", sign);
  button.type = "button";
  button.title = label;
  button.setAttribute("aria-label", label);
  button.onclick = onClick;
  return button;
}

/** The inspector: shows one pinned token, lets people walk and choose how many candidates they see. */
class Inspector {
  constructor(view) {
    this.view = view;
    this.root = element("aside", "inspector");
    this.root.setAttribute("aria-label", "Inspector");
    this.title = element("h3");
    this.walk = element("span", "walk");
    this.walk.append(
      iconButton("Previous token (left arrow)", "‹", () => view.pin.step(-1)),
      iconButton("Next token (right arrow)", "›", () => view.pin.step(1)),
      iconButton("Unpin (Esc)", "×", () => view.pin.set(null)),
    );
    const head = element("div", "inspector-head");
    head.append(this.title, this.walk);
    this.content = element("div", "content");
    this.table = element("div", "table");
    this.branching = new BranchControls(view);
    this.root.append(head, this.content, this.makeStepper(), this.table, this.branching.root);
  }

  makeStepper() {
    this.stepper = element("label", "stepper");
    this.slider = element("input");
    Object.assign(this.slider, { type: "range", min: 1, max: 50, step: 1 });
    this.count = element("output");
    this.slider.oninput = () => this.view.setting("k", Number(this.slider.value));
    this.stepper.append(element("span", "", "Candidates"), this.slider, this.count);
    return this.stepper;
  }

  /** Which token of how many: more may have come since it was pinned. */
  showTitle() {
    const { trial } = this.view;
    const [steps, index] = trial.locate(this.place);
    const name = steps === trial.prompt ? "Prompt token" : "Token";
    const title = `${name} ${whole(index + 1)} of ${whole(steps.length)}`;
    this.title.textContent = this.isPreview ? `Preview · ${title}` : title;
  }

  /** Whether it stands beside the text; the style sheet decides by the width. */
  get isBeside() {
    const style = getComputedStyle(this.root);
    return style.display !== "none" && style.getPropertyValue("--beside").trim() === "1";
  }

  /** Show the token at this place, or the invitation where it is null. */
  show(place) {
    this.isPreview = false;
    this.root.classList.remove("preview");
    this.root.style.height = "";
    this.draw(place);
  }

  /** Show a token for as long as the pointer is on it: in the room that is there, so that nothing on the page moves. */
  preview(place) {
    if (!this.isPreview) {
      this.root.style.height = `${this.root.parentElement.getBoundingClientRect().height}px`;
      this.root.classList.add("preview");
      this.root.scrollTop = 0;
      this.isPreview = true;
    }
    this.draw(place);
  }

  draw(place) {
    const { trial, settings, pin } = this.view;
    const isEmpty = place === null || !trial || place >= trial.length;
    this.place = isEmpty ? null : place;
    this.view.whatIf.ask();
    this.root.classList.toggle("empty", isEmpty);
    this.walk.hidden = pin.place === null;
    this.stepper.hidden = isEmpty;
    this.content.setAttribute("aria-live", this.isPreview ? "off" : "polite");
    this.content.replaceChildren();
    this.table.replaceChildren();
    if (!this.isPreview) this.branching.show(null);
    if (isEmpty) {
      this.title.textContent = "Inspector";
      this.content.append(element("p", "hint", "Hover over a token to see what else the model considered; click to pin it here."));
      return;
    }
    const [steps, index] = trial.locate(place);
    const step = steps.at(index);
    const isPrompt = steps === trial.prompt;
    const again = isPrompt ? null : this.view.whatIf.stepAt(index);
    const sentence = again ? sentenceAgain(trial, again, step) : sentenceOf(trial, step, isPrompt);
    this.showTitle();
    const facts = [...factsOf(trial, step, settings.unit, isPrompt), ...this.view.changes.factsAt(place, settings.unit)];
    this.content.append(sentence, factList(facts));
    this.slider.value = settings.k;
    this.count.textContent = String(settings.k);
    this.stepper.hidden = step.logprob === null;
    const asker = this.view.canAsk && !isPrompt ? this.view : null;
    const options = { ...settings, isPrompt, asker, after: again?.isOpen ? "what if, about" : again ? "what if" : undefined };
    if (step.logprob !== null) this.table.append(candidateTable(trial, again ?? step, options));
    if (!isPrompt && !this.isPreview) this.branching.show(index);
    if (again) this.content.append(drawBar(trial, again) ?? "");
    else if (!this.isPreview) this.showXray(trial, step); // at a glance the candidates come first
  }

  /** The stages below the sentence; open or closed as the person left it. */
  showXray(trial, step) {
    const section = xray(trial, step);
    if (!section) return;
    const isOpen = this.view.settings.xray ?? true;
    section.open = isOpen;
    section.ontoggle = () => section.open !== isOpen && this.toggleXray(section.open);
    this.content.append(section);
    this.flips = { step: step.index, section };
    if (isOpen) this.view.live?.request({ flips: { job: trial.id, step: step.index } });
  }

  /** Open or close it at every strip, which draws it anew; the focus stays. */
  toggleXray(isOpen) {
    this.view.setting("xray", isOpen);
    this.content.querySelector(".xray summary")?.focus();
  }

  /** Say at which sampling parameters another token is drawn, where the answer is for the token that is shown. */
  showFlips({ step, found }) {
    if (this.flips?.step === step && this.flips.section.isConnected) showFlips(this.flips.section, found, this.view.whatIf);
  }
}
