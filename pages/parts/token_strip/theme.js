// Light or dark, as the page behind the component is.

/** Mark an element as "light" or "dark", for the style sheet. */
function markTheme(root) {
  root.style.backgroundColor = "var(--st-background-color)";
  const [r, g, b] = (getComputedStyle(root).backgroundColor.match(/[\d.]+/g) ?? [255, 255, 255]).map(Number);
  root.style.backgroundColor = "";
  root.dataset.theme = 0.2126 * r + 0.7152 * g + 0.0722 * b < 128 ? "dark" : "light";
}
