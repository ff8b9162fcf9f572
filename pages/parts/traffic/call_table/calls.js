// Rows of calls in a table, newest first: the socket says which are new, changed or gone.

const BACK_OFF_MS = [250, 500, 1000, 2000, 5000];
const FRESH_MS = 2000;
const CLICK_PX = 4;
const STATE = 4, TOKENS = 5;

/** Set what differs only: to set the text of an element again ends a selection in it. */
function assign(node, values) {
  for (const [name, value] of Object.entries(values)) if (node[name] !== value) node[name] = value;
}

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
    this.failures = this.num = this.searched = 0;
    this.root.addEventListener("pointerdown", (event) => this.press(event));
    this.root.addEventListener("click", (event) => this.choose(this.clicked(event)));
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
      if (help) cell.title = cell.ariaDescription = help;
      line.append(cell);
    }
    this.body = this.table.createTBody();
    this.table.role = "grid";
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

  receive({ num, searched, all, rows, gone }) {
    this.num = num;
    this.searched = searched;
    if (all) {
      this.rows.clear();
      this.body.replaceChildren();
    }
    for (const number of gone) this.drop(number);
    for (const row of [...rows].sort((a, b) => a.number - b.number)) this.put(row);
    this.mark(this.data.chosen);
    if (!this.reached?.isConnected) this.reach(this.rows.get(this.data.chosen) ?? this.body.firstElementChild);
    this.showStatus();
    if (all) this.reveal(this.rows.get(this.data.chosen));
    if (rows.some((row) => !this.known.has(row.client))) this.refresh();
  }

  put(row) {
    let line = this.rows.get(row.number);
    if (!line) {
      line = this.line(row.number);
      this.rows.set(row.number, line);
    }
    this.write(line, row);
  }

  /** An empty row in its place. */
  line(number) {
    const line = element("tr");
    line.dataset.number = number;
    line.tabIndex = -1;
    line.ariaSelected = "false";
    let next = this.body.firstElementChild;
    while (next && Number(next.dataset.number) > number) next = next.nextElementSibling;
    this.body.insertBefore(line, next);
    return line;
  }

  /** Row and cells stay and take what has changed: a click, a selection or the focus is lost with its element. */
  write(line, row) {
    const { columns } = this.data;
    const isRefused = row.error && !row.cells[TOKENS];
    const texts = isRefused ? [...row.cells.slice(0, TOKENS), row.error] : row.cells;
    assign(line, { className: row.state });
    while (line.cells.length > texts.length) line.lastElementChild.remove();
    for (const [place, text] of texts.entries()) {
      const cell = line.cells[place] ?? line.insertCell();
      const [, , kind, room] = columns[place];
      if (isRefused && place === TOKENS) {
        assign(cell, { textContent: text, title: text, className: "error", colSpan: columns.length - TOKENS });
      } else if (place === STATE) {
        assign(cell, { textContent: text, title: row.error || text, className: `${kind} ${room} state` });
      } else {
        assign(cell, { textContent: text, title: kind === "number" ? "" : text, className: `${kind} ${room}` });
      }
    }
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
    const calls = (number) => `${count(number)} ${number === 1 ? "call" : "calls"}`;
    const all = `${calls(this.num)} since the start`;
    const isFull = this.rows.size >= this.data.most;
    if (this.data.isFiltered) {
      const found = isFull ? `The latest ${count(this.rows.size)} that match,` : count(this.rows.size);
      const among = this.searched < this.num ? `the latest ${calls(this.searched)}` : all;
      this.status.textContent = `${found} of ${among}`;
    } else {
      this.status.textContent = isFull ? `${all} · the latest ${count(this.rows.size)} shown` : all;
    }
  }

  mark(number) {
    for (const [other, row] of this.rows) assign(row, { ariaSelected: String(other === number) });
  }

  /** Scroll the table, not the page: rows come anew after each lost connection, wherever the page is read then. */
  reveal(row) {
    if (row) this.scroll.scrollTop = row.offsetTop - this.scroll.clientHeight / 2;
  }

  press({ target, clientX, clientY }) {
    this.pressed = { row: target.closest("tbody tr"), clientX, clientY };
  }

  /** The row that was pressed, though new calls may have moved another below the pointer before it was released. */
  clicked({ target, clientX, clientY }) {
    const { pressed } = this;
    this.pressed = undefined;
    const isStill = pressed && Math.hypot(clientX - pressed.clientX, clientY - pressed.clientY) < CLICK_PX;
    return isStill ? pressed.row : target.closest("tbody tr");
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
