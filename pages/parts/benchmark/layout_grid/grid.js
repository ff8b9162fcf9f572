// Buttons in a table: rows are processes, columns threads of each. A line below says what the one pointed at means.

function counted(number, noun, plural = `${noun}s`) {
  return `${number} ${number === 1 ? noun : plural}`;
}

class Grid {
  constructor(parent) {
    this.root = element("div", "root");
    parent.append(this.root);
    this.root.addEventListener("click", (event) => this.toggle(event.target.closest("button")));
    this.root.addEventListener("keydown", (event) => this.walk(event));
    for (const kind of ["pointerover", "focusin"]) {
      this.root.addEventListener(kind, (event) => this.explain(event.target.closest("button")));
    }
  }

  update({ data, setTriggerValue }) {
    this.send = (layouts) => setTriggerValue("picked", layouts);
    const seen = JSON.stringify(data);
    if (seen === this.seen) return;
    this.seen = seen;
    this.chosen = new Set(data.chosen);
    this.draw(data);
  }

  draw({ sizes, cores, isSmall }) {
    const table = element("table", isSmall ? "small" : "");
    const head = table.createTHead().insertRow();
    head.append(element("th", "", ""));
    for (const threads of sizes) head.append(element("th", "", threads));
    const body = table.createTBody();
    sizes.forEach((instances, row) => {
      const line = body.insertRow();
      line.append(element("th", "", instances));
      sizes.forEach((threads, column) => {
        const cell = line.insertCell();
        const isWithin = instances * threads <= cores;
        if (!isWithin) cell.classList.add("beyond");
        if (isWithin && instances * (sizes[column + 1] ?? Infinity) > cores) cell.classList.add("right");
        if (isWithin && (sizes[row + 1] ?? Infinity) * threads > cores) cell.classList.add("bottom");
        cell.append(this.button(instances, threads, isWithin));
      });
    });
    const across = element("p", "across", "threads of each →");
    const down = element("span", "down", "processes ↓");
    across.prepend(down);
    const legend = element("p", "legend");
    legend.append(element("i"), `${counted(cores, "core")}: beyond the line threads share cores`);
    this.meaning = element("p", "meaning", "");
    this.root.replaceChildren(across, table, legend, this.meaning);
    this.explain(table.querySelector("[aria-pressed=true]") ?? table.querySelector("button"));
  }

  button(instances, threads, isWithin) {
    const made = element("button", "", `${instances}×${threads}`);
    made.type = "button";
    made.dataset.layout = `${instances}x${threads}`;
    made.title = `${this.words(instances, threads)}${isWithin ? "" : ", more threads than cores"}`;
    made.ariaPressed = String(this.chosen.has(made.dataset.layout));
    return made;
  }

  words(instances, threads) {
    const processes = counted(instances, "process", "processes");
    return `${processes} with ${counted(threads, "thread")}${instances === 1 ? "" : " each"}`;
  }

  explain(button) {
    if (button) this.meaning.textContent = `${button.textContent}: ${button.title}`;
  }

  toggle(button) {
    if (!button) return;
    const { layout } = button.dataset;
    if (!this.chosen.delete(layout)) this.chosen.add(layout);
    button.ariaPressed = String(this.chosen.has(layout));
    this.send([...this.chosen]);
  }

  walk(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    const cell = event.target.closest("td");
    if (!step || !cell) return;
    event.preventDefault();
    const row = cell.parentElement.parentElement.rows[cell.parentElement.sectionRowIndex + step[0]];
    row?.cells[cell.cellIndex + step[1]]?.querySelector("button")?.focus();
  }

  unmount() {
    this.root.remove();
  }
}
