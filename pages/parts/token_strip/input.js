// Mouse and keyboard over the text of a strip.

function listen(strip) {
  const { pin, hover } = strip;
  const text = strip.tokens.root;
  let pressed = null;
  const tokenAt = (event) => event.target.closest?.(".t");
  text.addEventListener("pointerover", (event) => {
    const isHover = event.pointerType !== "touch" && !event.buttons;
    hover.over(isHover ? tokenAt(event) : null);
  });
  text.addEventListener("pointerleave", () => hover.leave());
  text.addEventListener("pointerdown", (event) => {
    pressed = [event.clientX, event.clientY];
    hover.tooltip.hide();
  });
  text.addEventListener("click", (event) => {
    const span = tokenAt(event);
    // A press that moved was a selection.
    const hasMoved = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 4;
    if (span && !hasMoved) pin.toggle(span.place);
  });
  text.addEventListener("scroll", () => {
    strip.isFollowing = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
    hover.tooltip.hide();
  });
  text.addEventListener("copy", (event) => {
    const copied = selectedText(text);
    if (copied === null) return;
    event.clipboardData.setData("text/plain", copied);
    event.preventDefault();
  });
  strip.root.addEventListener("keydown", (event) => {
    if (!strip.keys.press(event, event.target === text)) return;
    event.preventDefault();
    event.stopPropagation();
    hover.tooltip.hide();
  });
}
