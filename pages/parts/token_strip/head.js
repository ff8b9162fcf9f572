// The line of live figures, and the row with colour modes, legend and units.

const MODES = [["surprise", "Surprise"], ["uncertainty", "Uncertainty"], ["time", "Time"], ["change", "Change"]];
const UNITS = [["p", "p"], ["bits", "bits"], ["nats", "nats"]];

/** A row of buttons of which one is pressed. */
class Choice {
  constructor(label, options, onChoose) {
    this.root = element("div", "choice");
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", label);
    this.buttons = new Map();
    for (const [value, text] of options) {
      const button = element("button", "", text);
      button.type = "button";
      button.onclick = () => onChoose(value);
      this.buttons.set(value, button);
      this.root.append(button);
    }
  }

  show(value) {
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(name === value));
  }
}

function legendTexts(mode, unit, medianMs) {
  if (mode === "surprise" && unit === "p") {
    const short = (p) => String(p).replace(/^0/, "");
    return ["p of the token", PALETTE.surprise.map((p) => `≥ ${short(p)}`), `< ${short(PALETTE.surprise.at(-1))}`];
  }
  if (mode === "surprise") {
    const limits = PALETTE.surprise.map((p) => likelihood(Math.log(p), unit));
    const short = limits.map((text) => String(Number(Number(text).toFixed(1))));
    return [`surprise, ${unit}`, short.map((text) => `≤ ${text}`), `> ${short.at(-1)}`];
  }
  if (mode === "uncertainty") {
    const scale = unit === "nats" ? Math.LN2 : 1;
    const short = PALETTE.entropy.map((bits) => String(Number((bits * scale).toFixed(1))));
    return [`entropy, ${unit === "nats" ? "nats" : "bits"}`, short.map((text) => `≤ ${text}`), `> ${short.at(-1)}`];
  }
  if (mode === "change") {
    const scale = unit === "bits" ? Math.LN2 : 1;
    const short = PALETTE.change.map((nats) => String(Number((nats / scale).toPrecision(2))));
    return [`change, ${changeUnit(unit)} · ▔ more probable ▁ less`, short.map((text) => `≤ ${text}`), `> ${short.at(-1)}`];
  }
  const title = medianMs === null ? "time relative to the median" : `time relative to the median of ${milliseconds(medianMs)}`;
  return [title, PALETTE.time.map((ratio) => `≤ ${ratio}×`), `> ${PALETTE.time.at(-1)}×`];
}

class Legend {
  constructor() {
    this.root = element("div", "legend");
    this.title = element("span", "legend-title");
    this.bands = Array.from({ length: 7 }, (_, band) => element("span", `band b${band}`));
    const scale = element("span", "scale");
    scale.append(...this.bands);
    this.root.append(this.title, scale);
  }

  show(mode, unit, medianMs) {
    const [title, limits, last] = legendTexts(mode, unit, medianMs);
    this.title.textContent = title;
    [...limits, last].forEach((text, band) => (this.bands[band].textContent = text));
  }
}

/** What is known of a run's figures, from its status while it lasts and from its ending. */
function figuresOf(trial) {
  const { status } = trial;
  const timings = trial.end?.timings ?? {};
  const first = (...values) => values.find((value) => value !== undefined && value !== null) ?? null;
  return {
    numGenerated: first(status.num_generated, timings.num_generated, trial.steps.length),
    maxTokens: first(status.max_tokens),
    rate: first(status.tok_per_s, timings.decode_per_s),
    ttft: trial.steps.length ? first(status.ttft_ms, timings.ttft_s === undefined ? null : timings.ttft_s * 1000) : null,
    numContext: first(status.num_context),
    numCtx: first(status.n_ctx),
    numCached: first(status.num_cached, timings.num_cached),
    threads: first(timings.threads),
    seed: first(trial.end?.seed, status.seed),
  };
}

/** [text before, value, text behind, explanation] of each figure that is known. */
function figureParts(trial) {
  const figures = figuresOf(trial);
  const parts = [];
  const isRunning = !trial.end;
  const isInspected = trial.steps.logprob.some((value) => value !== null);
  if (trial.steps.length || !trial.prompt.length) {
    const noun = figures.numGenerated === 1 ? " token" : " tokens";
    const count = isRunning && figures.maxTokens ? ` of ${whole(figures.maxTokens)} tokens` : noun;
    parts.push(["", whole(figures.numGenerated), count, "tokens generated, including the end-of-generation token"]);
  } else parts.push(["", whole(trial.prompt.length), " prompt tokens", "nothing was generated"]);
  if (figures.rate) {
    const label = isInspected ? " tok/s with inspection" : " tok/s";
    parts.push(["", significant(figures.rate, 3), label, "tokens after the first, divided by the time since the first"]);
  }
  if (figures.ttft !== null) {
    parts.push(["first token ", milliseconds(figures.ttft), "", "first token decoded − submit: queue and prefill"]);
  }
  if (figures.numContext !== null && figures.numCtx) {
    parts.push(["context ", whole(figures.numContext), ` of ${whole(figures.numCtx)}`, "tokens in the context, out of its capacity"]);
  }
  if (figures.numCached !== null) {
    parts.push(["", whole(figures.numCached), " cached", "prompt tokens reused from an earlier run instead of computed"]);
  }
  if (figures.threads !== null) {
    const noun = figures.threads === 1 ? " thread" : " threads";
    parts.push(["", whole(figures.threads), noun, "threads that computed most of its tokens"]);
  }
  if (figures.seed !== null) parts.push(["seed ", String(figures.seed), "", "sampling seed; the same seed repeats the draws"]);
  return parts;
}

/** What a run waits for, with its progress from 0 to 1 where there is one. */
function waitingText(status) {
  if (status.state === "queued") {
    const place = status.queue_position;
    return { text: place ? `Waiting, ${ordinal(place)} in the queue` : "Waiting for a free sequence" };
  }
  if (status.state === "loading") {
    const share = status.progress;
    return { text: share === undefined ? "Loading the model" : `Loading the model, ${percent(share)}`, share };
  }
  if (status.state === "running" && status.num_prompt && !status.num_generated) {
    const read = status.num_prefilled ?? 0;
    return { text: `Reading the prompt, ${whole(read)} of ${plural(status.num_prompt, "token")}`, share: read / status.num_prompt };
  }
  return null;
}

class Figures {
  constructor() {
    this.root = element("div", "figures");
    this.root.setAttribute("role", "status");
    this.lost = element("span", "lost", "Reconnecting…");
    this.lost.hidden = true;
    this.content = element("span", "figures-content");
    this.root.append(this.content, this.lost);
  }

  show(trial) {
    const waiting = trial && !trial.end && !trial.steps.length ? waitingText(trial.status) : null;
    // Figures change several times a second: a screen reader would speak of nothing else.
    this.root.setAttribute("aria-live", waiting ? "polite" : "off");
    if (waiting) {
      const parts = [element("span", "waiting", waiting.text)];
      if (waiting.share !== undefined) {
        const progress = element("progress");
        progress.max = 1;
        progress.setAttribute("aria-label", waiting.text);
        progress.value = waiting.share;
        parts.push(progress);
      }
      this.content.replaceChildren(...parts);
      return;
    }
    const isKnown = trial && (trial.steps.length || (trial.end && !trial.end.error));
    this.content.replaceChildren(
      ...(isKnown ? figureParts(trial) : []).map(([before, value, behind, explanation]) => {
        const figure = element("span", "figure");
        figure.title = explanation;
        figure.append(before, element("b", "", value), behind);
        return figure;
      }),
    );
  }
}
