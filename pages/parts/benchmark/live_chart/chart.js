// Rows of samples along one axis: those that are there stay in place, new ones are added.

/** About five steps of 1, 2 or 5 times a power of ten, from 0 to beyond `largest`. */
function ticks(largest) {
  if (!(largest > 0)) return [0];
  const power = 10 ** Math.floor(Math.log10(largest / 4));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => largest / one <= 5);
  return Array.from({ length: Math.ceil(largest / step) + 1 }, (_, index) => index * step);
}

class Chart {
  constructor(parent) {
    this.root = element("figure", "root");
    this.head = element("figcaption", "head", "Samples so far");
    this.rows = element("div", "rows");
    this.axis = element("div", "axis");
    this.unit = element("div", "unit");
    this.legend = element("div", "legend");
    this.root.append(this.head, this.rows, this.axis, this.unit, this.legend);
    parent.append(this.root);
    this.drawn = [];
  }

  update({ data: { rows, unit, baseline, role, words } }) {
    const values = rows.flatMap((row) => row.samples.map((sample) => sample.value));
    const marks = ticks(Math.max(0, ...values));
    const place = (value) => `${(100 * value) / (marks.at(-1) || 1)}%`;
    while (this.drawn.length > rows.length) this.drawn.pop().line.remove();
    rows.forEach((row, index) => this.row(index, row, place));
    this.axis.style.setProperty("--height", `${this.rows.offsetHeight}px`);
    this.axis.replaceChildren(...marks.map((mark) => this.tick(mark, place)));
    if (values.length && baseline !== null) this.axis.append(this.line(baseline, role, place));
    this.unit.textContent = values.length ? unit : "The first sample appears once the model is loaded and warmed up.";
    const seen = new Set(rows.flatMap((row) => row.samples.map((sample) => sample.kind)));
    this.legend.replaceChildren(...Object.keys(words).filter((kind) => seen.has(kind)).map((kind) => {
      const entry = element("span", "entry", words[kind]);
      entry.prepend(element("i", `dot ${kind}`));
      return entry;
    }));
  }

  row(index, row, place) {
    if (!this.drawn[index]) {
      const line = element("div", "row");
      const label = element("span", "label"), track = element("span", "track"), figure = element("span", "figure");
      line.append(label, track, figure);
      this.rows.append(line);
      this.drawn[index] = { line, label, track, figure, dots: [], median: element("i", "median") };
      track.append(this.drawn[index].median);
    }
    const { line, label, track, figure, dots, median } = this.drawn[index];
    line.classList.toggle("now", row.isNow);
    label.textContent = row.label;
    figure.textContent = row.figure;
    median.hidden = row.median === null;
    median.style.left = place(row.median ?? 0);
    while (dots.length > row.samples.length) dots.pop().remove();
    row.samples.forEach(({ value, kind }, number) => {
      if (!dots[number]) track.append((dots[number] = element("i")));
      dots[number].className = `dot ${kind}`;
      dots[number].style.left = place(value);
    });
  }

  tick(mark, place) {
    const made = element("span", "tick", mark.toLocaleString("en"));
    made.style.left = place(mark);
    return made;
  }

  line(value, role, place) {
    const made = element("span", "baseline");
    made.append(element("span", "role", role));
    made.style.left = place(value);
    return made;
  }

  unmount() {
    this.root.remove();
  }
}
