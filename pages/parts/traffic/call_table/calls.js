// Rows of calls in a table, newest first: the socket says which are new, changed or gone.

const BACK_OFF_MS = [250, 500, 1000, 2000, 5000];
const FRESH_MS = 2000;
const STATE = 4, TOKENS = 5;

class Calls {
  constructor(parent) {
    this.root = element("div", "root");
    this.scroll = element("div", "scroll");
    this.table = element("table");
    this.status = element("p", "status");
    this.scroll.append(this.table);
    this.root.append(this.scroll, this.status);
    parent.append(this.root);
    this.rows = new Map();
    this.failures = this.num = 0;
    this.root.addEventListener("click", (event) => this.choose(event.target.closest("tbody tr")));
    this.root.addEventListener("keydown", (event) => this.walk(event));
    this.root.addEventListener("focusin", (event) => this.reach(event.target.closest("tbody tr")));
  }

  update({ data, setTriggerValue }) {
    this.trigger = setTriggerValue;
    const isFirst = !this.data;
    const asked = JSON.stringify(data.wanted);
    this.data = data;
    this.known = new Set(data.clients);
    if (isFirst) this.head();
    this.mark(data.chosen);
    if (isFirst) {
      this.asked = asked;
      this.connect();
    } else if (asked !== this.asked) {
      this.asked = asked;
      if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(asked);
    }
  }

  head() {
    const line = this.table.createTHead().insertRow();
    for (const [label, help, kind, room] of this.data.columns) {
      const cell = element("th", `${kind} ${room}`, label);
      cell.scope = "col";
      if (help) cell.title = help;
      line.append(cell);
    }
    this.body = this.table.createTBody();
    this.table.ariaLabel = "Calls, newest first";
  }

  connect() {
    const socket = new WebSocket(new URL(this.data.socket, location.origin.replace(/^http/, "ws")).href);
    this.socket = socket;
    socket.onopen = () => {
      this.failures = 0;
      socket.send(this.asked);
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.status.textContent = "Connection lost; trying again";
      const wait = BACK_OFF_MS[Math.min(this.failures++, BACK_OFF_MS.length - 1)];
      this.retry = setTimeout(() => this.connect(), wait);
    };
  }

  receive({ num, all, rows, gone }) {
    this.num = num;
    if (all) {
      this.rows.clear();
      this.body.replaceChildren();
    }
    for (const number of gone) this.drop(number);
    for (const row of [...rows].sort((a, b) => a.number - b.number)) this.put(row);
    while (this.rows.size > this.data.most) this.drop(Number(this.body.lastElementChild.dataset.number));
    this.mark(this.data.chosen);
    if (!this.reached?.isConnected) this.reach(this.rows.get(this.data.chosen) ?? this.body.firstElementChild);
    this.showStatus();
    if (all) this.reveal(this.rows.get(this.data.chosen));
    if (rows.some((row) => !this.known.has(row.client))) this.refresh();
  }

  /** A row is made again as a whole: it is short, and its place stays. */
  put(row) {
    const made = this.line(row);
    const old = this.rows.get(row.number);
    if (old) {
      const hadFocus = old.matches(":focus");
      old.replaceWith(made);
      if (this.reached === old) this.reach(made);
      if (hadFocus) made.focus();
    } else {
      let next = this.body.firstElementChild;
      while (next && Number(next.dataset.number) > row.number) next = next.nextElementSibling;
      this.body.insertBefore(made, next);
    }
    this.rows.set(row.number, made);
  }

  line(row) {
    const line = element("tr", row.state);
    line.dataset.number = row.number;
    line.tabIndex = -1;
    const { columns } = this.data;
    const isRefused = row.error && !row.cells[TOKENS];
    for (const [place, text] of row.cells.entries()) {
      if (isRefused && place === TOKENS) break;
      const [, , kind, room] = columns[place];
      const cell = element("td", `${kind} ${room}`, text);
      if (kind !== "number" && text) cell.title = text;
      if (place === STATE) cell.classList.add("state");
      if (place === STATE && row.error) cell.title = row.error;
      line.append(cell);
    }
    if (isRefused) {
      const cell = element("td", "error", row.error);
      cell.colSpan = columns.length - TOKENS;
      cell.title = row.error;
      line.append(cell);
    }
    return line;
  }

  drop(number) {
    this.rows.get(number)?.remove();
    this.rows.delete(number);
  }

  showStatus() {
    const count = (number) => number.toLocaleString("en-US");
    this.table.hidden = !this.rows.size;
    if (!this.rows.size) {
      this.status.textContent = this.data.empty;
      return;
    }
    const isFull = this.rows.size >= this.data.most;
    const shown = isFull ? ` · the latest ${count(this.data.most)} shown` : "";
    const of = this.data.isFiltered && !isFull ? `${count(this.rows.size)} of ` : "";
    this.status.textContent = `${of}${count(this.num)} ${this.num === 1 ? "call" : "calls"} since the start${shown}`;
  }

  mark(number) {
    this.body?.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    this.rows.get(number)?.setAttribute("aria-selected", "true");
  }

  /** Scroll the table, not the page: rows come anew after each lost connection, wherever the page is read then. */
  reveal(row) {
    if (row) this.scroll.scrollTop = row.offsetTop - this.scroll.clientHeight / 2;
  }

  choose(row) {
    if (!row) return;
    const number = Number(row.dataset.number);
    this.data.chosen = number === this.data.chosen ? 0 : number;
    this.mark(this.data.chosen);
    this.trigger("chosen", this.data.chosen);
  }

  /** Tab reaches one row, the last that had the focus; arrow keys lead from it to the others. */
  reach(row) {
    if (!row) return;
    if (this.reached) this.reached.tabIndex = -1;
    row.tabIndex = 0;
    this.reached = row;
  }

  walk(event) {
    const row = event.target.closest("tbody tr");
    if (!row) return;
    if (event.key === "Enter" || event.key === " ") this.choose(row);
    else if (event.key === "ArrowDown") row.nextElementSibling?.focus();
    else if (event.key === "ArrowUp") row.previousElementSibling?.focus();
    else return;
    event.preventDefault();
  }

  /** Have the page run again for a client that its filter does not know, at most every two seconds. */
  refresh() {
    if (this.known.size >= this.data.most || this.freshening) return;
    this.freshening = setTimeout(() => {
      this.freshening = undefined;
      this.trigger("fresh", this.num);
    }, FRESH_MS);
  }

  unmount() {
    clearTimeout(this.retry);
    clearTimeout(this.freshening);
    const { socket } = this;
    this.socket = undefined;
    socket?.close();
    this.root.remove();
  }
}
