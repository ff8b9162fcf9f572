// Watched words below the text: how probable each is at every position, as lines; two words give their log-odds.

const MOST_WORDS = 16;
const MOST_CHARACTERS = 200;
const TABLE_ROWS = 200;
const WORD_HINT = "Its probability and rank at every position. Yes stands for it with and without a space before, \"Yes\" in quotes for just that; Yes|yes adds up both; #123 is the token of that id.";

/** What a word is called: as it was typed, or the text of its token where it was typed as a number. */
function wordName(line, word) {
  const [one] = line.watched ?? [];
  return /^#\d+$/.test(line.typed) && one ? oneLine(word(one.ids[0]).text) : oneLine(line.typed);
}

/** "at token 12", as the inspector counts tokens; the last position is behind all of them. */
function positionText(trial, place) {
  if (place >= trial.length) return "after the last token";
  const [steps, index] = trial.locate(place);
  return `at ${steps === trial.prompt && trial.steps.length ? "prompt token" : "token"} ${whole(index + 1)}`;
}

/** Where a word is most likely, as a sentence. */
function likeliestText(trial, line, name) {
  let best = null;
  line.logprob.forEach((value, place) => {
    if (value !== null && (best === null || value > line.logprob[best])) best = place;
  });
  if (best === null) return `“${name}” has no probability at any token.`;
  const rank = `${line.passes ? "its first token ranks" : "rank"} ${whole(line.rank[best])}`;
  return `“${name}” is most likely ${positionText(trial, best)}: ${percent(Math.exp(line.logprob[best]))}, ${rank}`;
}

/** Which of two words leads, and by how much at most. */
function oddsText(trial, odds, [one, other]) {
  const known = odds.filter((value) => value !== null);
  if (!known.length) return "No position has a probability of both words.";
  const numLed = known.filter((value) => value > 0).length;
  const best = odds.reduce((best, value, place) => (value !== null && (best === null || Math.abs(value) > Math.abs(odds[best])) ? place : best), null);
  const [leader, count] = numLed * 2 >= known.length ? [one, numLed] : [other, known.filter((value) => value < 0).length];
  const by = `${Math.abs(odds[best]).toFixed(2)} nats for “${odds[best] >= 0 ? one : other}” ${positionText(trial, best)}`;
  return `“${leader}” is the likelier at ${whole(count)} of ${plural(known.length, "position")}; the largest log-odds are ${by}`;
}

/** Figures of a word as they came with the tokens of the trial itself; nothing where it was not watched then. */
function liveFigures(trial, { watched = [], passes }) {
  const ids = watched.map((variant) => variant.ids[0]).sort().join();
  const at = passes ? -1 : trial.watched.findIndex((one) => [...one].sort().join() === ids);
  if (at < 0) return {};
  const of = (name, missing) => [trial.prompt, trial.steps].flatMap((steps) => steps[name].map((row) => row?.[at] ?? missing));
  return { logprob: of("watched_logprob", null), rank: of("watched_rank", 0) };
}

function textButton(text, className, title, onClick) {
  const button = element("button", className, text);
  button.type = "button";
  button.title = title;
  button.onclick = onClick;
  return button;
}

/** One word: its tokens, what is known of it as a sentence, its line. */
class WordRow {
  constructor(panel) {
    this.panel = panel;
    this.states = {};
    this.root = element("div", "word");
    this.head = element("div", "word-head");
    this.variants = element("span", "variants");
    this.summary = element("span", "word-summary");
    this.value = element("span", "value");
    this.actions = element("span", "word-actions");
    this.head.append(this.variants, this.summary, this.value, this.actions);
    this.line = new Line({ onPoint: (place) => panel.pointAt(place), onChoose: (place) => panel.goTo(place) });
    this.root.append(this.head, this.line.root);
  }

  /** The tokens that are watched together, those that may be added, and a way to remove the word. */
  name(line, word) {
    if (!this.isNew("name", [line.typed, line.watched, line.offered])) return;
    const { panel } = this;
    const typed = (variants) => variants.map((variant) => variant.typed).join("|");
    const chips = (variant) => variant.ids.map((id) => tokenChip(word(id)));
    const { watched = [], offered = [] } = line;
    const parts = watched.map((variant) => {
      if (watched.length < 2) {
        const alone = element("span", "variant");
        alone.append(...chips(variant));
        return alone;
      }
      const others = watched.filter((one) => one !== variant);
      const button = textButton("", "variant", "Leave this out", () => panel.replace(line.typed, typed(others)));
      button.append(...chips(variant));
      button.setAttribute("aria-label", `Leave out ${variant.typed}`);
      return button;
    });
    for (const variant of offered) {
      const title = `Add this too: ${plural(variant.ids.length, "token")}, so it takes forward passes at every position`;
      const button = textButton("+ ", "variant offered", title, () => panel.replace(line.typed, typed([...watched, variant])));
      button.append(...chips(variant));
      button.setAttribute("aria-label", `Add ${variant.typed}`);
      parts.push(button);
    }
    if (!watched.length) parts.push(element("span", "quoted", oneLine(line.typed.slice(0, 80))));
    this.variants.replaceChildren(...parts);
    const remove = iconButton(`Stop watching ${oneLine(line.typed.slice(0, 80))}`, "×", () => panel.remove(line.typed));
    this.actions.replaceChildren(remove);
  }

  /** Whether something differs from what was drawn last; what is the same is left alone, as it may have the focus. */
  isNew(part, state) {
    const asText = JSON.stringify(state);
    const isNew = this.states[part] !== asText;
    this.states[part] = asText;
    return isNew;
  }

  /** Say what is known so far; the line is drawn once there are figures. */
  show(line, name, trial, isComputing) {
    this.root.classList.toggle("failed", Boolean(line.error));
    this.line.root.hidden = !line.logprob;
    const known = line.error || (line.logprob ? likeliestText(trial, line, name) : isComputing ? "Computing…" : "");
    const isOffered = !known && Boolean(line.watched && trial.end);
    if (!this.isNew("summary", [known, isOffered, line.error, trial.length])) return;
    this.summary.setAttribute("role", line.error ? "alert" : "note");
    this.summary.replaceChildren(...(isOffered ? this.offer(line, trial) : [known]));
  }

  /** What computing the word costs, and the button that starts it. */
  offer(line, trial) {
    const passes = line.passes * trial.length;
    const rate = figuresOf(trial).rate;
    const seconds = rate ? passes / rate : 0;
    const about = seconds ? `, up to about ${seconds < 1 ? "a second" : `${significant(seconds, 2)}${THIN}s`}` : "";
    const cost = element("span", "cost", passes ? `${whole(passes)} forward passes${about}` : "one pass over the text");
    cost.title = passes ? "Later tokens of a phrase follow text that the trial does not have, so each position takes passes of its own" : "";
    const name = `Compute ${oneLine(line.typed)}`;
    const button = textButton("Compute", "compute", name, () => this.panel.compute(line.typed));
    button.setAttribute("aria-label", name);
    return [button, cost];
  }

  draw(line, scale, trial, label) {
    this.line.draw(line.logprob, scale, trial.prompt.length, label);
  }

  point(line, place) {
    this.line.point(place);
    const logprob = place === null ? null : (line.logprob?.[place] ?? null);
    const rank = logprob === null || line.passes ? "" : ` · rank ${whole(line.rank[place])}`;
    this.value.textContent = logprob === null ? "" : `${percent(Math.exp(logprob))}${rank}`;
    return this.value.textContent;
  }
}
