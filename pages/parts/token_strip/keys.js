// The keys of a strip, and the dialog that lists them.

const SURPRISING_P = PALETTE.surprise[3];

/** Keys of the text: [key, as it is shown, what it does, action]. */
const TEXT_KEYS = [
  ["ArrowLeft", "←", "Previous token", ({ pin }) => pin.step(-1)],
  ["ArrowRight", "→", "Next token", ({ pin }) => pin.step(1)],
  ["ArrowUp", "↑", "Token in the row above", ({ pin }) => pin.row(-1)],
  ["ArrowDown", "↓", "Token in the row below", ({ pin }) => pin.row(1)],
  ["Home", "Home", "First token", ({ pin }) => pin.goTo(0)],
  ["End", "End", "Last token", ({ pin, tokens }) => pin.goTo(tokens.length - 1)],
  ["Enter", "Enter", "Pin a token", ({ pin, trial }) => pin.goTo(pin.place ?? trial.prompt.length)],
  [" ", "Space", "Play or pause", ({ scrub }) => scrub.toggle()],
];

/** Keys that work wherever the focus is in the strip, but in fields. A person can switch them off. */
const LETTER_KEYS = [
  ["n", "N", `Next surprising token (p under ${percent(SURPRISING_P)})`, (strip) => goToSurprise(strip, 1)],
  ["b", "B", "Surprising token before", (strip) => goToSurprise(strip, -1)],
  ["m", "M", "Next colour mode", (strip) => strip.setting("mode", following(strip.modesToChoose, strip.mode))],
  ["u", "U", "Next unit", (strip) => strip.setting("unit", following(UNITS, strip.settings.unit))],
  ["x", "X", "Open or close the sampler X-ray", (strip) => strip.setting("xray", !(strip.settings.xray ?? true))],
  ["w", "W", "Open or close What if", ({ whatIf }) => whatIf.turn()],
];

const ESCAPE = ["Escape", "Esc", "End the playback, then unpin", leaveOne];
const FIELDS = "input:not([type=range], [type=checkbox], [type=radio], [type=button]), textarea, select, [contenteditable]";

function leaveOne({ pin, scrub }) {
  if (scrub.shown !== null) scrub.end();
  else pin.set(null);
}

/** The option behind this one, the first behind the last. */
function following(options, value) {
  const index = options.findIndex(([one]) => one === value);
  return options[(index + 1) % options.length][0];
}

/** Pin the nearest token in this direction at which the model was surprised. */
function goToSurprise({ trial, pin }, direction) {
  const [steps, first] = trial.subject();
  const from = pin.place === null ? (direction > 0 ? -1 : steps.length) : Math.max(-1, pin.place - first);
  for (let index = from + direction; index >= 0 && index < steps.length; index += direction) {
    const logprob = steps.logprob[index];
    const isDrawn = !(steps.flags[index] & FORCED);
    if (logprob !== null && isDrawn && Math.exp(logprob) < SURPRISING_P) return pin.goTo(first + index);
  }
}

/** Whether a person types there, so that a letter is a letter. */
function isField(event) {
  return Boolean(event.composedPath()[0].closest?.(FIELDS));
}

function isPlain(event) {
  return !(event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented);
}

/** [keys, what they do] of the buttons of the page that have a shortcut. */
function pageKeys() {
  const found = [];
  for (const button of document.querySelectorAll("[data-has-shortcut='true']")) {
    const copy = button.cloneNode(true);
    const shortcut = copy.querySelector("[aria-label^='Shortcut']");
    if (!shortcut) continue;
    for (const one of [shortcut, ...copy.querySelectorAll("[data-testid=stIconMaterial]")]) one.remove(); // icons are words of a font
    found.push([shortcut.textContent, copy.textContent.trim()]);
  }
  return found;
}

class Keys {
  constructor(strip) {
    this.strip = strip;
    this.button = element("button", "icon help", "?");
    this.button.type = "button";
    this.button.title = "Keys (?)";
    this.button.setAttribute("aria-label", "Keys");
    this.button.setAttribute("aria-haspopup", "dialog");
    this.button.onclick = () => this.open();
    this.root = element("dialog", "keys");
    this.root.setAttribute("aria-label", "Keys");
    document.addEventListener("keydown", this);
  }

  unmount() {
    document.removeEventListener("keydown", this);
  }

  get hasLetters() {
    return this.strip.settings.letters ?? true;
  }

  /** A key anywhere on the page: only the question mark, and of several strips the first answers. */
  handleEvent(event) {
    if (event.key !== "?" || !this.hasLetters || !isPlain(event) || isField(event) || !this.button.checkVisibility()) return;
    event.preventDefault();
    this.open();
  }

  /** A key within the strip; says whether it meant something. */
  press(event, isText) {
    if (!this.strip.trial || this.root.open || !isPlain(event) || event.shiftKey || isField(event)) return false;
    const keys = [ESCAPE, ...(isText ? TEXT_KEYS : []), ...(this.hasLetters ? LETTER_KEYS : [])];
    const known = keys.find(([key]) => key === event.key);
    known?.[3](this.strip);
    // What was pressed in the inspector is gone where another token is shown there.
    if (!event.target.isConnected) this.strip.tokens.root.focus({ preventScroll: true });
    return Boolean(known);
  }

  open() {
    if (this.root.open) return;
    const close = iconButton("Close (Esc)", "×", () => this.root.close());
    const head = element("div", "inspector-head");
    head.append(element("h3", "", "Keys"), close);
    const said = ([, shown, meaning]) => [shown, meaning];
    const trees = this.strip.trees.map((tree) => tree.keys).sort((one, other) => other.length - one.length);
    const groups = [
      ["In the text", [...TEXT_KEYS, ESCAPE].map(said)],
      ["On the playback bar", [["← →", "One token"], ["PgUp PgDn", "Ten tokens"], ["Home End", "Start, end"], ["Space", "Play or pause"]]],
      ["Anywhere in the tokens", LETTER_KEYS.map(said)],
      ["On the page", [...pageKeys(), ["?", "This list"]]],
      ["In a tree", trees[0]],
    ].filter(([, keys]) => keys.length);
    this.root.replaceChildren(head, ...groups.map(([title, keys]) => this.group(title, keys)), this.choice());
    // The browser returns the focus to where it was, but not to a row that was drawn again meanwhile.
    const tree = this.strip.trees.find((one) => one.hasFocus);
    const row = tree?.current;
    this.root.onclose = () => row && !row.isConnected && tree.current.focus();
    this.root.showModal();
  }

  group(title, keys) {
    const list = element("dl");
    for (const [shown, meaning] of keys) {
      const pair = element("div");
      const term = element("dt");
      term.append(element("kbd", "", shown));
      pair.append(term, element("dd", "", meaning));
      list.append(pair);
    }
    const section = element("section");
    section.append(element("h4", "", title), list);
    return section;
  }

  choice() {
    const label = element("label", "letters");
    const box = element("input");
    Object.assign(box, { type: "checkbox", checked: this.hasLetters });
    box.onchange = () => this.strip.setting("letters", box.checked);
    label.append(box, "Single letters and ? are keys");
    return label;
  }
}
