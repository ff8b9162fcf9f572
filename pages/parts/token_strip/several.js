// The way in for an offline file with several strips, such as a report: each shows the trial that its place names.

const several = [...document.querySelectorAll(".held-strip")].map((place) => {
  const strip = new Strip(place);
  const data = { trial: place.dataset.trial, k: 10, mode: "surprise", unit: "p", inspector: true, branches: null };
  strip.update({ data, setTriggerValue: () => {} });
  return strip;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => several.forEach(({ root }) => markTheme(root)));
