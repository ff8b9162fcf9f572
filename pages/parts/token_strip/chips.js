// Doors to the tokens at which the model was most uncertain.

const NUM_CHIPS = 5;

class Chips {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.root = element("div", "chips");
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Most uncertain tokens");
  }

  clear() {
    this.root.replaceChildren();
  }

  show(trial, unit) {
    this.clear();
    const places = trial.greatest((steps, index) => steps.entropy[index], NUM_CHIPS).sort((a, b) => a - b);
    if (places.length < 2) return;
    this.root.append(element("span", "chips-title", "Most uncertain"), ...places.map((place) => this.chip(trial, place, unit)));
  }

  chip(trial, place, unit) {
    const [steps, index] = trial.locate(place);
    const made = element("button", "chip");
    made.type = "button";
    made.append(tokenChip(trial.wordAt(place)), element("span", "chip-value", entropyText(steps.entropy[index], unit)));
    made.onclick = () => this.onChoose(place);
    return made;
  }
}
