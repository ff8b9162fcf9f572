// One inspector for several strips of a page, beside them: that of the strip at which a reader is. Where there is no room
// beside the strips it stands below the text of the strip in which a reader pinned a token.

class InspectorPlace {
  constructor() {
    this.strips = new Set();
    this.host = null; // root of the component beside the strips; it may come after them
    this.owner = null; // the strip in which a reader pinned a token last
    this.visited = null; // the strip under the pointer
    this.shown = null; // the strip whose inspector is shown, and where
    this.spot = null;
    this.name = element("p", "of"); // of the strip, where there are several
    this.resized = new ResizeObserver(() => this.show());
  }

  join(strip) {
    this.strips.add(strip);
    this.show();
  }

  leave(strip) {
    if (!this.strips.delete(strip)) return;
    if (this.owner === strip) this.owner = null;
    if (this.visited === strip) this.visited = null;
    this.show();
  }

  /** Draw into this component from now on, or into none. */
  lend(host) {
    this.resized.disconnect();
    this.host = host;
    if (host) this.resized.observe(host);
    this.show();
  }

  /** A reader pinned a token in this strip, or unpinned it. */
  take(strip, isPinned) {
    if (isPinned) this.owner = strip;
    else if (this.owner === strip) this.owner = null;
    this.show();
  }

  /** The pointer came to this strip, or left all of them. */
  visit(strip) {
    this.visited = strip;
    this.show();
  }

  show() {
    const isBeside = this.isBeside();
    const strip = isBeside ? this.chosen() : this.owner;
    const spot = strip && (isBeside ? this.host : strip.body);
    this.name.textContent = strip && this.strips.size > 1 ? strip.name : "";
    if (strip === this.shown && spot === this.spot) return;
    this.shown?.inspector.root.remove();
    this.host?.replaceChildren();
    [this.shown, this.spot] = [strip, spot];
    if (!strip) return;
    if (isBeside) spot.append(this.name);
    spot.append(strip.inspector.root);
  }

  /** The strip under the pointer, else that of the last pin, else the first for which a pin was suggested. */
  chosen() {
    const strips = [...this.strips];
    return this.visited ?? this.owner ?? strips.find((one) => one.pin.place !== null) ?? strips[0] ?? null;
  }

  isBeside() {
    const [strip] = this.strips;
    return Boolean(this.host && strip && this.host.getBoundingClientRect().left >= strip.root.getBoundingClientRect().right);
  }
}

/** The page's place; a component's script may be read several times, the place is made once. */
function inspectorPlace() {
  return (globalThis[Symbol.for("logitbench.inspector")] ??= new InspectorPlace());
}

/** The component that shows the shared inspector. */
class SharedInspector {
  constructor(parent) {
    this.root = element("div", "root shared");
    parent.append(this.root);
    inspectorPlace().lend(this.root);
  }

  update() {
    markTheme(this.root);
  }

  unmount() {
    if (inspectorPlace().host === this.root) inspectorPlace().lend(null);
    this.root.remove();
  }
}
