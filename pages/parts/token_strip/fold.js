// An answer folded to its text: its tokens come when a reader opens it, so that a long conversation stays light.

class Fold {
  /** onOpen is called when the tokens are to be shown, or the text again. */
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.root = element("div", "fold");
    this.text = element("div", "folded-text");
    this.button = element("button", "unfold");
    this.button.type = "button";
    this.button.onclick = () => this.toggle();
    this.root.append(this.text, this.button);
    this.isOpen = false;
    this.trial = null;
    this.set(null);
  }

  /** Take the text of a rerun, null for an answer that is not folded; another trial is folded again. */
  set(text, trial = null) {
    this.isFolding = text !== null;
    this.root.hidden = !this.isFolding;
    if (!this.isFolding) return;
    if (trial !== this.trial || text !== this.text.textContent) this.isOpen = false;
    this.trial = trial;
    this.text.textContent = text;
    this.show();
  }

  /** The trial to follow now: none while only the text is shown. */
  followed(trial) {
    return this.isFolding && !this.isOpen ? null : trial;
  }

  toggle() {
    this.isOpen = !this.isOpen;
    this.show();
    this.onOpen();
  }

  show() {
    const hasTokens = this.trial !== null;
    this.text.hidden = hasTokens && this.isOpen;
    this.text.classList.toggle("whole", this.isOpen);
    const [closed, open] = hasTokens ? ["Tokens", "Text"] : ["Show all", "Show less"];
    this.button.textContent = this.isOpen ? open : closed;
    this.button.title = hasTokens ? "" : "The trial of this answer is not in the history, so only its text is known";
    this.button.setAttribute("aria-expanded", String(this.isOpen));
  }
}
