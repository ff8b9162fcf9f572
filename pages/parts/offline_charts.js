const themes = JSON.parse(document.getElementById("themes").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

function draw() {
  const { colours, text } = themes[dark.matches ? "dark" : "light"];
  const themed = (_, value) => (typeof value === "string" && Object.hasOwn(colours, value) ? colours[value] : value);
  for (const source of document.querySelectorAll("script.figure")) {
    const figure = JSON.parse(source.textContent, themed);
    figure.layout.font = { color: text, family: "system-ui, sans-serif" };
    Plotly.react(source.nextElementSibling, figure.data, figure.layout, { displaylogo: false, modeBarButtons: [["toImage"]], responsive: true });
  }
}

dark.addEventListener("change", draw);
draw();
