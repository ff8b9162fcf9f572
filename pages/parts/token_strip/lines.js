// Lines over the positions of a text: a probability, or log-odds, at each; all of them share the place of the cursor.

const LINE_HEIGHT = 100;
const LEAST_DECADE = -8; // of a logarithmic scale
const MOST_DOTS = 80; // positions up to which each has a dot

// A scale has the height of a log-probability, 0 at its bottom and 1 at its top, and the labels of both.

function linearScale(highest) {
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];
  const top = steps.find((step) => step >= Math.exp(highest)) ?? 1;
  return { height: (logprob) => Math.exp(logprob) / top, top: percent(top), bottom: "0" };
}

function logScale(lowest, highest) {
  const clamp = (decade) => Math.max(LEAST_DECADE, Math.min(0, decade));
  const high = Math.max(clamp(Math.ceil(highest / Math.LN10)), LEAST_DECADE + 1);
  const low = Math.min(clamp(Math.floor(lowest / Math.LN10)), high - 1);
  const height = (logprob) => Math.max(0, (logprob / Math.LN10 - low) / (high - low));
  return { height, top: percent(10 ** high), bottom: `${low === LEAST_DECADE ? "≤ " : ""}${percent(10 ** low)}` };
}

/** A scale around zero, for differences of log-probabilities in nats. */
function oddsScale(odds) {
  const most = Math.max(1, Math.ceil(odds.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0)));
  return { height: (value) => (value / most + 1) / 2, top: `+${most}`, bottom: `−${most}`, zero: 0.5 };
}

/** The path of a line through heights from 0 to 1; null leaves a gap. */
function linePath(heights) {
  let path = "";
  let isDrawn = false;
  heights.forEach((height, place) => {
    if (height !== null) path += `${isDrawn ? "L" : "M"}${place} ${((1 - Math.min(1, height)) * LINE_HEIGHT).toFixed(2)}`;
    if (height !== null && !isDrawn && heights[place + 1] == null) path += "h0.001"; // alone between two gaps
    isDrawn = height !== null;
  });
  return path;
}

/** One chart: its line, the ends of its scale, and a mark at the cursor. */
class Line {
  /** onPoint gets the position under the pointer, null for none, and onChoose the one that was clicked. */
  constructor({ onPoint, onChoose }) {
    this.root = element("div", "line");
    this.plot = element("div", "plot");
    this.plot.setAttribute("role", "img");
    this.picture = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.parting = svg("path", { class: "line-parting" });
    this.zero = svg("path", { class: "line-zero" });
    this.path = svg("path", { class: "line-path" });
    this.picture.append(this.parting, this.zero, this.path);
    this.dots = element("div", "line-dots");
    this.cursor = element("span", "line-cursor");
    this.mark = element("span", "line-mark");
    this.cursor.hidden = this.mark.hidden = true;
    this.plot.append(this.picture, this.dots, this.cursor, this.mark);
    this.top = element("span", "line-top");
    this.bottom = element("span", "line-bottom");
    this.root.append(this.top, this.bottom, this.plot);
    this.values = [];
    this.plot.addEventListener("pointermove", (event) => event.pointerType !== "touch" && onPoint(this.placeAt(event)));
    this.plot.addEventListener("pointerleave", () => onPoint(null));
    this.plot.addEventListener("click", (event) => onChoose(this.placeAt(event)));
  }

  /** Draw values, null where there is none, on a scale; `numPrompt`: where the generated tokens begin; `label`: for screen readers. */
  draw(values, scale, numPrompt, label) {
    this.values = values;
    this.heights = values.map((value) => (value === null ? null : scale.height(value)));
    this.last = Math.max(1, values.length - 1);
    this.picture.setAttribute("viewBox", `0 0 ${this.last} ${LINE_HEIGHT}`);
    this.path.setAttribute("d", linePath(this.heights));
    this.parting.setAttribute("d", numPrompt > 0 && numPrompt < this.last ? `M${numPrompt} 0V${LINE_HEIGHT}` : "");
    this.zero.setAttribute("d", scale.zero ? `M0 ${LINE_HEIGHT * scale.zero}H${this.last}` : "");
    this.top.textContent = scale.top;
    this.bottom.textContent = scale.bottom;
    this.plot.setAttribute("aria-label", label);
    this.drawDots();
  }

  drawDots() {
    const dots = this.heights.length > MOST_DOTS ? [] : this.heights.map((height, place) => [height, place]);
    this.dots.replaceChildren(
      ...dots.filter(([height]) => height !== null).map(([height, place]) => this.put(element("span", "line-dot"), height, place)),
    );
  }

  put(mark, height, place) {
    mark.style.setProperty("--x", place / this.last);
    mark.style.setProperty("--y", 1 - Math.min(1, height));
    return mark;
  }

  /** Move cursor and mark to this position; null for none. */
  point(place) {
    const height = place === null ? null : (this.heights?.[place] ?? null);
    this.cursor.hidden = place === null;
    this.mark.hidden = height === null;
    if (place !== null) this.put(this.cursor, 1, place);
    if (height !== null) this.put(this.mark, height, place);
  }

  placeAt(event) {
    const { left, width } = this.plot.getBoundingClientRect();
    return Math.max(0, Math.min(this.last ?? 0, Math.round(((event.clientX - left) / width) * (this.last ?? 0))));
  }
}
