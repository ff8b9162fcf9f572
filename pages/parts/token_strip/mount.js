// The way in for Streamlit: called again on each rerun, with a parent element that stays.

const mounted = new WeakMap();

export default function (component) {
  const { parentElement } = component;
  if (!mounted.has(parentElement)) mounted.set(parentElement, new Component(parentElement));
  const view = mounted.get(parentElement);
  view.update(component);
  return () => {
    view.unmount();
    mounted.delete(parentElement);
  };
}
