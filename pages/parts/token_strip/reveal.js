// The page follows an answer that grows below the window, for as long as its end is seen.

class Reveal {
  constructor() {
    this.root = element("span", "end-of-answer");
    this.isWanted = false;
    this.isSeen = false;
    this.observer = new IntersectionObserver(([entry]) => (this.isSeen = entry.isIntersecting));
    this.observer.observe(this.root);
  }

  /** Another trial: its beginning is brought into view too, wherever the page stood. */
  reset(isWanted) {
    this.isWanted = isWanted;
    this.isNew = true;
  }

  /** Something was drawn. */
  follow() {
    if (this.isWanted && (this.isNew || this.isSeen)) this.root.scrollIntoView({ block: "nearest" });
    this.isNew = false;
  }

  unmount() {
    this.observer.disconnect();
  }
}
