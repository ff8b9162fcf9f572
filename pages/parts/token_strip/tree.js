// Tree of branches below the text: rows in order, each indented below the one that it follows, opened and marked from here.

const FOLDED = "logitbench.tree.folded";
const MOST_LEVELS = 12;
const FILLED_FIRST = 40; // a list of sequences, whose rows wrap, has no more
const FILLED_AT_ONCE = 100;

/** Keys of a tree, and of one whose rows can be marked: [as they are shown, what they do]. */
const TREE_KEYS = [
  ["↑ ↓", "Row above, below"],
  ["→", "Unfold a row, or the next"],
  ["←", "Fold a row, or the one that it follows"],
  ["Home End", "First, last row"],
  ["Enter", "Open its trial"],
];
const MARK_KEYS = [["S", "Set or remove its star"], ["F2", "Name it"], ["Delete", "Delete it and all below"]];

function foldedKeys() {
  try {
    return new Set(JSON.parse(sessionStorage.getItem(FOLDED) ?? "[]"));
  } catch {
    return new Set();
  }
}

class Tree {
  /** onActed takes what a reader does with a row. */
  constructor(onActed) {
    this.onActed = onActed;
    this.root = element("section", "tree");
    this.title = element("h3");
    this.head = element("div", "row head");
    this.list = element("div", "list");
    this.list.setAttribute("role", "tree");
    this.note = element("p", "note");
    this.root.append(this.title, this.note, this.head, this.list);
    this.folded = foldedKeys();
    this.drawn = null;
    this.list.addEventListener("click", (event) => this.click(event));
    this.list.addEventListener("keydown", (event) => this.press(event));
    for (const near of ["pointerover", "focusin"]) {
      this.list.addEventListener(near, (event) => this.offer(event.target.closest(".row")));
    }
  }

  /** Show the rows of a rerun, or nothing where there are none. */
  show(data) {
    this.root.hidden = !data;
    const asText = JSON.stringify(data);
    if (!data || asText === this.drawn) return;
    const { hasFocus } = this;
    const place = this.placeIn(data.rows);
    this.drawn = asText;
    this.data = data;
    this.root.className = `tree ${data.kind ?? ""}`;
    this.title.textContent = this.list.ariaLabel = data.title;
    this.note.textContent = data.note;
    this.root.title = data.help;
    this.head.replaceChildren(...data.heads.map(([name, text]) => element("span", name, text)));
    this.rows = data.rows.map((row, index) => this.make(row, index));
    this.list.replaceChildren(...this.rows);
    this.showFolds();
    const [folded, shown] = [true, false].map((isHidden) => this.rows.filter((made) => made.hidden === isHidden));
    this.fillInTurn([...shown, ...folded], FILLED_FIRST);
    this.focusable(place, hasFocus);
  }

  get hasFocus() {
    return this.list.contains(this.root.getRootNode().activeElement);
  }

  /** The row of these that the keys begin at: the same as before, or the open one where another one was opened. */
  placeIn(rows) {
    const opened = (all) => all.find((row) => row.is_open)?.key;
    const before = this.data?.rows ?? [];
    const key = opened(before) === opened(rows) ? before[this.current?.index]?.key : opened(rows);
    const found = [key, opened(rows)].map((wanted) => rows.findIndex((row) => row.key === wanted));
    return Math.max(found[0] < 0 ? found[1] : found[0], 0);
  }

  /** Make a row with all that it is to the keyboard and to a screen reader; what is seen in it comes with `fill`. */
  make(row, index) {
    const made = element("div", `row${row.is_open ? " shown" : ""}${row.is_passed ? " passed" : ""}`);
    made.index = index;
    made.tabIndex = -1;
    made.setAttribute("role", "treeitem");
    made.ariaLevel = String(row.depth + 1);
    made.ariaSelected = String(row.is_open);
    made.ariaLabel = this.inWords(row);
    return made;
  }

  /** Fill the first of these rows, and then the others, portion by portion: those in view are painted before that. */
  fillInTurn(rows, num) {
    clearTimeout(this.due);
    const isTouched = !matchMedia("(hover: hover)").matches;
    for (const made of rows.slice(0, num)) {
      this.fill(made);
      if (isTouched) this.offer(made);
    }
    if (num < rows.length) this.due = setTimeout(() => this.fillInTurn(rows.slice(num), FILLED_AT_ONCE));
  }

  /** Write into a row what is seen of it. */
  fill(made) {
    if (made.hasChildNodes()) return;
    const { index } = made;
    const row = this.data.rows[index];
    made.title = made.ariaLabel;
    made.style.setProperty("--level", Math.min(row.depth, MOST_LEVELS));
    const text = element("span", "label");
    text.append(element("span", this.hasBelow(index) ? "fold" : "fold none", "▾"), ...this.marks(row), this.text(row));
    made.append(text, ...row.cells.map((cell, at) => element("span", this.data.heads[at + 1][0], cell)));
  }

  text(row) {
    const text = element("bdi", row.is_forced ? "forced" : "", row.tokens ? "" : row.text);
    for (const token of row.tokens ?? []) {
      const made = element("span", "token", token.text);
      made.title = token.title;
      text.append(made);
    }
    return text;
  }

  inWords(row) {
    const figures = row.cells.map((cell, at) => (cell ? `${this.data.heads[at + 1][1]} ${cell}` : ""));
    return [row.name, row.text, ...figures].filter(Boolean).join(", ");
  }

  hasBelow(index) {
    return this.data.rows[index + 1]?.parent === index;
  }

  marks(row) {
    const marks = [];
    if (row.is_starred) marks.push(element("span", "star", "★"));
    if (row.is_running) marks.push(element("span", "running", "●"));
    if (row.name) marks.push(element("b", "name", row.name));
    return marks;
  }

  /** Give a row its buttons, once a pointer or the focus is there: a large tree has thousands. */
  offer(made) {
    if (!made || !this.data.can_mark || made.querySelector(".actions")) return;
    this.fill(made);
    const cell = element("span", "actions");
    const { index } = made;
    const row = this.data.rows[index];
    if (row.ends) {
      cell.append(
        iconButton(row.is_starred ? "Remove the star (s)" : "Star (s)", row.is_starred ? "★" : "☆", () => this.star(index)),
        iconButton("Name (F2)", "✎", () => this.rename(index)),
      );
    }
    const what = row.num_trials > 1 ? `Delete ${row.num_trials} trials (Delete)` : "Delete (Delete)";
    cell.append(iconButton(what, "×", () => this.remove(index)));
    for (const each of cell.children) each.tabIndex = -1;
    made.append(cell);
  }

  // What a reader does.

  ask(message) {
    this.onActed(message);
  }

  click({ target }) {
    const row = target.closest(".row");
    if (!row || target.closest("button")) return;
    if (target.closest(".fold:not(.none)")) this.toggle(row.index);
    else this.open(row);
  }

  open(row) {
    this.ask({ action: "open", key: this.data.rows[row.index].key });
  }

  star(index) {
    const { key, is_starred: isStarred } = this.data.rows[index];
    if (this.data.rows[index].ends) this.ask({ action: "star", key, is_starred: !isStarred });
  }

  remove(index) {
    this.ask({ action: "delete", key: this.data.rows[index].key });
  }

  rename(index) {
    const row = this.data.rows[index];
    if (!row.ends) return;
    const field = element("input", "rename");
    Object.assign(field, { type: "text", maxLength: 100, value: row.name });
    field.ariaLabel = "Name of this branch";
    const made = this.rows[index];
    this.fill(made);
    const finish = (isKept) => {
      field.onblur = null;
      field.remove();
      made.focus();
      if (isKept && field.value !== row.name) this.ask({ action: "name", key: row.key, name: field.value });
    };
    field.onblur = () => finish(true);
    field.onclick = (event) => event.stopPropagation();
    field.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
    };
    made.querySelector(".label").append(field);
    field.focus();
    field.select();
  }

  toggle(index, isFolded = !this.folded.has(this.data.rows[index].key)) {
    const { key } = this.data.rows[index];
    if (isFolded) this.folded.add(key);
    else this.folded.delete(key);
    try {
      sessionStorage.setItem(FOLDED, JSON.stringify([...this.folded].slice(-1000)));
    } catch {
      // without storage the folds are forgotten on reload
    }
    this.showFolds();
  }

  /** Hide what lies below a folded row; rows come after their parents. */
  showFolds() {
    const isHidden = [];
    this.data.rows.forEach((row, index) => {
      const isFolded = this.folded.has(row.key);
      isHidden[index] = row.parent !== null && (isHidden[row.parent] || this.folded.has(this.data.rows[row.parent].key));
      const made = this.rows[index];
      const has = this.hasBelow(index);
      made.hidden = isHidden[index];
      made.classList.toggle("folded", has && isFolded);
      if (has) made.ariaExpanded = String(!isFolded);
    });
  }

  /** Keys that work here at present. */
  get keys() {
    if (!this.data || this.root.hidden) return [];
    return [...TREE_KEYS, ...(this.data.can_mark ? MARK_KEYS : [])];
  }

  // Keyboard: one row has the focus.

  focusable(index, isFocused = true) {
    if (this.current) this.current.tabIndex = -1;
    this.current = this.rows[index];
    if (!this.current) return;
    this.fill(this.current);
    this.current.tabIndex = 0;
    if (isFocused) this.current.focus();
  }

  walk(from, by) {
    let at = from + by;
    while (this.rows[at]?.hidden) at += by;
    if (this.rows[at]) this.focusable(at);
  }

  press(event) {
    const made = event.target.closest?.(".row");
    if (!made || event.ctrlKey || event.metaKey || event.altKey) return;
    const { index } = made;
    const row = this.data.rows[index];
    const isOpen = made.ariaExpanded === "true";
    const keys = {
      ArrowDown: () => this.walk(index, 1),
      ArrowUp: () => this.walk(index, -1),
      ArrowRight: () => (made.ariaExpanded === "false" ? this.toggle(index, false) : this.walk(index, 1)),
      ArrowLeft: () => (isOpen ? this.toggle(index, true) : row.parent !== null && this.focusable(row.parent)),
      Home: () => this.focusable(0),
      End: () => this.walk(this.rows.length, -1),
      Enter: () => this.open(made),
      s: () => this.data.can_mark && this.star(index),
      F2: () => this.data.can_mark && this.rename(index),
      Delete: () => this.data.can_mark && this.remove(index),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  }
}
