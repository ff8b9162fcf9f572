// The way in for Streamlit: called again on each rerun, with a parent element that stays.

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
