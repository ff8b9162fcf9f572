// Command palette: a dialog with a field and the entries that match it, which Ctrl+K opens on any page.

const WAIT_MS = 60; // after a key, before the server is asked

class Palette {
  constructor(parent) {
    this.root = element("div", "root");
    this.button = element("button", "open");
    this.button.type = "button";
    this.button.append(element("span", "", "Search"), element("kbd", "", "Ctrl K"));
    this.button.setAttribute("aria-keyshortcuts", "Control+K");
    this.button.onclick = () => this.open();
    this.root.append(this.button, this.makeDialog());
    parent.append(this.root);
    this.number = 0;
    this.listener = (event) => this.shortcut(event);
    document.addEventListener("keydown", this.listener, true);
  }

  makeDialog() {
    this.dialog = element("dialog", "palette");
    this.dialog.setAttribute("aria-label", "Search");
    this.field = element("input");
    Object.assign(this.field, { type: "text", placeholder: "Page, trial, run, model, or “does mistral 7b q4 fit”" });
    this.field.setAttribute("role", "combobox");
    this.field.setAttribute("aria-expanded", "true");
    this.field.setAttribute("aria-controls", "entries");
    this.field.setAttribute("aria-label", "Search");
    this.field.setAttribute("autocomplete", "off");
    this.field.oninput = () => this.ask(WAIT_MS);
    this.field.onkeydown = (event) => this.press(event);
    this.list = element("div", "entries");
    this.list.id = "entries";
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "Found");
    this.note = element("p", "note");
    this.note.setAttribute("role", "status");
    this.dialog.append(this.field, this.list, this.note);
    this.dialog.onkeydown = (event) => event.stopPropagation(); // the page has shortcuts of its own
    this.dialog.onclick = (event) => event.target === this.dialog && this.dialog.close();
    return this.dialog;
  }

  update({ data, setTriggerValue }) {
    this.data = data;
    this.trigger = setTriggerValue;
    this.field.maxLength = data.most;
    markTheme(this.root);
  }

  unmount() {
    document.removeEventListener("keydown", this.listener, true);
    clearTimeout(this.due);
    this.root.remove();
  }

  shortcut(event) {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (this.dialog.open) this.dialog.close();
    else this.open();
  }

  open() {
    markTheme(this.root);
    this.field.value = "";
    this.show([]);
    this.note.textContent = "";
    this.dialog.showModal();
    this.ask(0);
  }

  ask(wait) {
    clearTimeout(this.due);
    const number = ++this.number;
    this.due = setTimeout(() => this.fetch(number), wait);
  }

  async fetch(number) {
    const url = new URL(this.data.path, location.origin);
    url.searchParams.set("text", this.field.value);
    let [found, note] = [[], ""];
    try {
      const response = await fetch(url);
      if (response.ok) found = await response.json();
      else note = await response.text();
      if (response.ok && !found.length) note = "Nothing found.";
    } catch {
      note = "The workbench does not answer.";
    }
    if (number !== this.number) return; // another question was asked meanwhile
    this.show(found);
    this.note.textContent = note;
  }

  show(found) {
    this.found = found;
    this.list.replaceChildren(...found.map((entry, index) => this.row(entry, index, found[index - 1]?.kind)));
    this.at(0);
  }

  row({ kind, title, detail }, index, kindBefore) {
    const row = element("div", kind === kindBefore ? "entry" : "entry first");
    row.id = `entry${index}`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-label", [title, detail, kind].filter(Boolean).join(", "));
    row.append(element("span", "kind", kind === kindBefore ? "" : kind), element("span", "title", title), element("span", "detail", detail));
    row.onpointermove = () => this.chosen !== index && this.at(index);
    row.onclick = () => this.choose(index);
    return row;
  }

  at(index) {
    const rows = [...this.list.children];
    this.chosen = rows.length ? (index + rows.length) % rows.length : -1;
    rows.forEach((row, number) => row.setAttribute("aria-selected", String(number === this.chosen)));
    this.field.setAttribute("aria-activedescendant", rows.length ? `entry${this.chosen}` : "");
    rows[this.chosen]?.scrollIntoView({ block: "nearest" });
  }

  press(event) {
    if (event.isComposing) return;
    if (event.key === "ArrowDown") this.at(this.chosen + 1);
    else if (event.key === "ArrowUp") this.at(this.chosen - 1);
    else if (event.key === "Enter") this.choose(this.chosen);
    else return;
    event.preventDefault();
  }

  choose(index) {
    const entry = this.found[index];
    if (!entry) return;
    this.dialog.close();
    this.trigger("chosen", { page: entry.page, query: entry.query });
  }
}
