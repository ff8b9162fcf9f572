// What a reader asks the page for at a token: another candidate, a ban, typed text, samples.

const BRANCH_NUM = 8;
const BRANCH_MOST = 64;

/** The buttons of a candidate: go on with it in place of the token at this step, never draw it, or watch it. */
function candidateActions(view, step, id, isChosen) {
  const cell = element("td", "actions");
  const text = oneLine(view.trial.word(id).text);
  const ask = (action, label, sign) => {
    const message = { action, trial: view.trial.id, step: step.index, id };
    const button = iconButton(`${label} “${text}”`, sign, () => view.ask(message));
    cell.append(button);
  };
  if (!isChosen) ask("continue", "Continue with", "↳");
  ask("ban", "Ban", "⊘");
  if (!view.words.root.hidden) cell.append(iconButton(`Watch “${text}” at every position`, "∿", () => view.words.add(`#${id}`)));
  return cell;
}

/** The controls below the candidates: text to type in place of the token, and samples from there. */
class BranchControls {
  constructor(view) {
    this.view = view;
    this.root = element("details", "branching");
    const summary = element("summary", "", "Branch from here");
    summary.onclick = (event) => {
      event.preventDefault(); // the setting opens and closes it, at every strip
      view.setting("branching", !this.root.open);
    };
    this.root.append(summary, this.textForm(), this.sampleForm());
  }

  textForm() {
    this.text = element("input");
    Object.assign(this.text, { type: "text", maxLength: 10_000, placeholder: "Text in place of this token" });
    this.text.setAttribute("aria-label", "Text in place of this token");
    return this.form("Continue", [this.text], () => {
      if (this.text.value.trim()) this.ask({ action: "text", text: this.text.value });
    });
  }

  sampleForm() {
    const num = element("input");
    Object.assign(num, { type: "number", min: 1, max: BRANCH_MOST, step: 1, value: BRANCH_NUM });
    num.setAttribute("aria-label", "Number of samples");
    const probable = element("button", "", "Most probable");
    probable.type = "button";
    probable.title = "Find the most probable continuations from here, with their exact probabilities";
    probable.onclick = () => this.ask({ action: "probable" });
    const form = this.form("Samples", [num], () => this.ask({ action: "sample", num: Number(num.value) }));
    form.append(probable);
    return form;
  }

  form(label, fields, onSubmit) {
    const form = element("form");
    form.append(...fields, element("button", "", label));
    form.onsubmit = (event) => {
      event.preventDefault();
      onSubmit();
    };
    return form;
  }

  ask(message) {
    this.view.ask({ ...message, trial: this.view.trial.id, step: this.step });
  }

  /** A space where the token at this step begins with one, so that what is typed begins a word as it did. */
  beginning(step) {
    const { trial } = this.view;
    return step !== null && trial.word(trial.steps.id[step]).text.startsWith(" ") ? " " : "";
  }

  /** For the token at this step; null where there is none that could be another. */
  show(step) {
    if (step !== this.step && !this.text.value.trim()) this.text.value = this.beginning(step);
    this.step = step;
    this.root.hidden = step === null || !this.view.canAsk;
    this.root.open = this.view.settings.branching ?? false;
  }
}
