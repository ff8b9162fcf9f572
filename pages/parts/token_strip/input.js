// Mouse and keyboard over the text of a strip.

const WALKS = {
  ArrowLeft: ({ pin }) => pin.step(-1),
  ArrowRight: ({ pin }) => pin.step(1),
  ArrowUp: ({ pin }) => pin.row(-1),
  ArrowDown: ({ pin }) => pin.row(1),
  Home: ({ pin }) => pin.goTo(0),
  End: ({ pin, tokens }) => pin.goTo(tokens.length - 1),
  Enter: ({ pin, trial }) => pin.goTo(pin.place ?? trial.prompt.length),
  Escape: ({ pin }) => pin.set(null),
};

function listen(strip) {
  const { pin, tooltip } = strip;
  const text = strip.tokens.root;
  let pressed = null;
  const tokenAt = (event) => event.target.closest?.(".t");
  text.addEventListener("pointerover", (event) => tooltip.hover(event.buttons ? null : tokenAt(event)));
  text.addEventListener("pointerleave", () => tooltip.hide());
  text.addEventListener("pointerdown", (event) => {
    pressed = [event.clientX, event.clientY];
    tooltip.hide();
  });
  text.addEventListener("click", (event) => {
    const span = tokenAt(event);
    // A press that moved was a selection.
    const hasMoved = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 4;
    if (span && !hasMoved) pin.toggle(span.place);
  });
  text.addEventListener("scroll", () => {
    strip.isFollowing = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
    tooltip.hide();
  });
  text.addEventListener("copy", (event) => {
    const copied = selectedText(text);
    if (copied === null) return;
    event.clipboardData.setData("text/plain", copied);
    event.preventDefault();
  });
  text.addEventListener("keydown", (event) => {
    const walk = WALKS[event.key];
    if (!walk || !strip.trial || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    tooltip.hide();
    walk(strip);
  });
}
