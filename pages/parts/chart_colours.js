// Charts keep up with a switch between light and dark. Streamlit gives a chart the colours of its lines and areas once, as
// it draws it, and later only its words and background: the colours that still belong to the other theme are exchanged.
(() => {
  const themes = JSON.parse(document.getElementById("chart-colours").textContent);
  const exchanges = new Map(
    Object.values(themes).map(({ background, colours }) => {
      const others = Object.values(themes).filter((theme) => theme.background !== background);
      return [background, new Map(others.flatMap((theme) => theme.colours.map((one, place) => [one, colours[place]])))];
    }),
  );

  /** Parts of a figure that hold no colours; a text in them may be written like one. */
  const TEXTS = new Set(
    ["x", "y", "z", "name", "text", "hovertext", "ticktext", "tickvals", "categoryarray", "customdata"],
  );

  /** A value of a figure with its colours exchanged; the value itself where it has none of them. */
  function exchanged(value, colours) {
    if (typeof value === "string") return colours.get(value.toUpperCase()) ?? value;
    if (Array.isArray(value)) {
      const made = value.map((one) => exchanged(one, colours));
      return made.every((one, place) => Object.is(one, value[place])) ? value : made;
    }
    if (value?.constructor !== Object) return value;
    const made = Object.entries(value).map(([name, one]) => [name, TEXTS.has(name) ? one : exchanged(one, colours)]);
    return made.every(([name, one]) => Object.is(one, value[name])) ? value : Object.fromEntries(made);
  }

  /** Exchange the colours of a chart for those of the theme that its background has. */
  function follow(chart) {
    const colours = exchanges.get(chart.layout?.template?.layout?.paper_bgcolor?.toUpperCase());
    if (!colours) return;
    const data = exchanged(chart.data, colours);
    const layout = exchanged(chart.layout, colours);
    if (data === chart.data && layout === chart.layout) return;
    Object.assign(chart, { data, layout });
    chart.emit("plotly_restyle"); // as if a reader had changed it: Streamlit takes the figure over and draws it
  }

  // A chart begins an animation that shows nothing when it is first seen, and each time it is seen again: first_paint.css.
  const followed = new WeakSet();
  document.addEventListener("animationstart", ({ animationName, target: chart }) => {
    if (animationName !== "chart-drawn" || followed.has(chart)) return;
    followed.add(chart);
    chart.on("plotly_afterplot", () => follow(chart));
    follow(chart);
  });
})();
