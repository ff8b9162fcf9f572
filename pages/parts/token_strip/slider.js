// One sampling parameter of the What if panel: a slider over its usual values, and a field for any value.

const SLIDERS = [
  { name: "temperature", label: "Temperature", low: 0, high: 2, step: 0.05, least: 0, most: 100 },
  { name: "top_k", label: "Top-k", low: 1, high: 200, step: 1, least: 0, most: 2 ** 30, off: 0, isWhole: true },
  { name: "top_p", label: "Top-p", low: 0, high: 1, step: 0.01, least: 0, most: 1, off: 1 },
  { name: "min_p", label: "Min-p", low: 0, high: 0.5, step: 0.01, least: 0, most: 1, off: 0 },
  { name: "repeat_penalty", label: "Repeat penalty", low: 0.8, high: 2, step: 0.01, least: 0.01, most: 100, off: 1 },
  { name: "frequency_penalty", label: "Frequency penalty", low: -2, high: 2, step: 0.05, least: -100, most: 100, off: 0 },
  { name: "presence_penalty", label: "Presence penalty", low: -2, high: 2, step: 0.05, least: -100, most: 100, off: 0 },
];

class Slider {
  /** about: one of SLIDERS; onChange is called where the reader has changed the value. */
  constructor(about, onChange) {
    Object.assign(this, about);
    // Top-k is off at 0, where it keeps all: on the slider that stands behind the largest k.
    this.offAt = this.off < this.low ? this.high + this.step : this.off;
    this.root = element("div", "slider");
    this.range = element("input");
    Object.assign(this.range, { type: "range", min: this.low, max: Math.max(this.high, this.offAt ?? 0), step: this.step });
    this.range.setAttribute("aria-label", `${this.label}, slider`);
    this.field = element("input");
    Object.assign(this.field, { type: "number", min: this.least, max: this.most, step: this.isWhole ? 1 : "any" });
    const label = element("label");
    label.append(element("span", "", this.label), this.field);
    this.root.append(label, this.range);
    this.range.oninput = () => {
      const at = Number(this.range.value);
      this.field.value = at === this.offAt ? this.off : at;
      this.follow();
      onChange();
    };
    this.field.oninput = () => {
      this.follow();
      onChange();
    };
  }

  /** The number in the field, null where it is none or out of range. */
  get value() {
    return this.field.validity.valid && this.field.value !== "" ? Number(this.field.value) : null;
  }

  /** What is wrong with the number in the field; empty where nothing is. */
  get problem() {
    if (this.value !== null) return "";
    const number = this.isWhole ? "a whole number" : "a number";
    return `${this.label} takes ${number} from ${significant(this.least, 1)} to ${whole(this.most)}.`;
  }

  show(value) {
    this.field.value = value;
    this.follow();
  }

  /** Move the slider to the number in the field. */
  follow() {
    const { value } = this;
    this.field.setAttribute("aria-invalid", String(value === null));
    if (value === null) return;
    const isOff = value === this.off;
    this.range.value = isOff ? this.offAt : value;
    this.range.setAttribute("aria-valuetext", isOff ? `${value}, off` : String(value));
  }

  /** A parameter that does nothing in this run cannot be moved. */
  setIdle(isIdle) {
    this.range.disabled = this.field.disabled = isIdle;
    this.root.title = isIdle ? "Not a stage of this run's sampler chain" : "";
  }

  /** The parameter with a value, as part of a sentence. */
  phrase(value) {
    return `${this.label.toLowerCase()} ${value === this.off ? "off" : value}`;
  }
}
