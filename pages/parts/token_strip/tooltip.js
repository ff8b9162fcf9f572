// The one tooltip of a strip: what the model considered, beside the token under the pointer.

const HOVER_MS = 70;

class Tooltip {
  /** contentAt gives the elements to show for a token's place. */
  constructor(contentAt) {
    this.contentAt = contentAt;
    this.root = element("div", "tooltip");
    this.root.popover = "manual";
    this.root.setAttribute("role", "tooltip");
  }

  get isOpen() {
    return this.root.matches(":popover-open");
  }

  /** The pointer is over this token, or over none: wait a moment, but follow it where the tooltip is open already. */
  hover(span) {
    clearTimeout(this.waiting);
    if (!span) this.hide();
    else if (this.isOpen) this.show(span);
    else this.waiting = setTimeout(() => this.show(span), HOVER_MS);
  }

  show(span) {
    this.root.replaceChildren(...this.contentAt(span.place));
    if (!this.isOpen) this.root.showPopover();
    const rows = span.getClientRects();
    const { top, left } = rows[0];
    const { bottom } = rows[rows.length - 1];
    const { width, height } = this.root.getBoundingClientRect();
    const fitsBelow = bottom + 6 + height < innerHeight || top < height + 6;
    this.root.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    this.root.style.top = `${fitsBelow ? bottom + 6 : top - height - 6}px`;
  }

  hide() {
    clearTimeout(this.waiting);
    if (this.isOpen) this.root.hidePopover();
  }
}
