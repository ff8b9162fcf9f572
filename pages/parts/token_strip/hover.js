// The token under the pointer: shown in the inspector where that stands beside the text, else in the tooltip.

/** Sent by a strip's root, and seen at the window, when another token is under the pointer; null for none. */
const HOVERED = "logitbench.strip.hovered";

class Hover {
  constructor(strip) {
    this.strip = strip;
    this.tooltip = new Tooltip((place) => tooltipContent(strip.trial, place, strip.settings));
    this.place = null;
  }

  /** The pointer is over this token of the text. Over none the last one stays until the pointer leaves the text: gaps
      between lines would have the inspector flicker. */
  over(span) {
    if (span && this.place === null) this.visit();
    if (span) this.tell(span.place);
    if (!this.isBeside) this.tooltip.hover(span);
    else if (span) this.draw();
  }

  leave() {
    this.tooltip.hide();
    if (this.place === null) return;
    this.tell(null);
    if (this.isBeside) this.draw();
    this.strip.place?.visit(null);
  }

  /** The pointer comes to this strip: a shared inspector shows its tokens until it leaves. */
  visit() {
    this.strip.place?.visit(this.strip);
    this.isBeside = this.strip.inspector.isBeside;
  }

  /** Point at a token from outside of the text, as from a chart; null for none. */
  point(place) {
    this.pointed?.classList.remove("pointed");
    this.pointed = this.strip.tokens.at(place);
    this.pointed?.classList.add("pointed");
    if (place === null) this.strip.place?.visit(null);
    else this.visit();
    this.tell(place);
    if (this.isBeside) this.draw();
  }

  /** A token is pinned: what the pointer was on before that is not drawn over it. */
  settle() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
  }

  reset() {
    this.settle();
    this.place = null;
    this.tooltip.hide();
  }

  tell(place) {
    if (place === this.place) return;
    this.place = place;
    const detail = { trial: this.strip.trial?.id ?? null, place };
    this.strip.root.dispatchEvent(new CustomEvent(HOVERED, { detail, bubbles: true, composed: true }));
  }

  /** Once for each frame, however many tokens the pointer crosses. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      const { inspector, pin } = this.strip;
      if (this.place !== null && this.place !== pin.place) inspector.preview(this.place);
      else if (inspector.isPreview) inspector.show(pin.place);
    });
  }
}
