// Mouse and keyboard of the strip, and the way in for Streamlit.

const WALKS = {
  ArrowLeft: (strip) => strip.step(-1),
  ArrowRight: (strip) => strip.step(1),
  ArrowUp: (strip) => strip.row(-1),
  ArrowDown: (strip) => strip.row(1),
  Home: (strip) => strip.goTo(0),
  End: (strip) => strip.goTo(strip.spans.length - 1),
  Enter: (strip) => strip.goTo(strip.pinned ?? strip.trial.prompt.length),
  Escape: (strip) => strip.pin(null),
};

function listen(strip) {
  const { text } = strip;
  let pressed = null;
  const tokenAt = (event) => event.target.closest?.(".t");
  text.addEventListener("pointerover", (event) => {
    const span = tokenAt(event);
    clearTimeout(strip.hovering);
    if (!span || event.buttons) return strip.hideTooltip();
    if (strip.tooltip.matches(":popover-open")) return strip.showTooltip(span);
    strip.hovering = setTimeout(() => strip.showTooltip(span), HOVER_MS);
  });
  text.addEventListener("pointerleave", () => strip.hideTooltip());
  text.addEventListener("pointerdown", (event) => {
    pressed = [event.clientX, event.clientY];
    strip.hideTooltip();
  });
  text.addEventListener("click", (event) => {
    const span = tokenAt(event);
    // A press that moved was a selection.
    const hasMoved = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 4;
    if (span && !hasMoved) strip.pin(strip.pinned === span.place ? null : span.place);
  });
  text.addEventListener("scroll", () => {
    strip.isFollowing = text.scrollHeight - text.scrollTop - text.clientHeight < 24;
    strip.hideTooltip();
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
    strip.hideTooltip();
    walk(strip);
  });
}

const mounted = new WeakMap();

export default function (component) {
  const { parentElement } = component;
  if (!mounted.has(parentElement)) mounted.set(parentElement, new Strip(parentElement));
  const strip = mounted.get(parentElement);
  strip.update(component);
  return () => {
    strip.unmount();
    mounted.delete(parentElement);
  };
}
