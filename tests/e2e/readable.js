// Texts of a page that are hard to read: of too little contrast against what lies behind them, by WCAG 2.2, 1.4.3.
// Gives [{text, ratio, needed, where}]. Left out: what is hidden, what is disabled, what is drawn on a canvas.
() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();

  /** [red, green, blue, alpha] of any colour that CSS can name; alpha from 0 to 1. */
  function rgba(colour) {
    if (!known.has(colour)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  }

  const over = (top, alpha, below) => [0, 1, 2].map((i) => top[i] * alpha + below[i] * (1 - alpha));

  function luminance(rgb) {
    const [r, g, b] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function contrast(one, other) {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  }

  const above = (element) => element.assignedSlot ?? element.parentElement ?? element.getRootNode().host ?? null;

  function* texts(root) {
    for (const element of root.querySelectorAll("*")) {
      if (element.shadowRoot) yield* texts(element.shadowRoot);
      for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE && node.data.trim()) yield [element, node.data.trim()];
    }
  }

  const found = [];
  for (const [element, text] of texts(document)) {
    const { width, height } = element.getBoundingClientRect();
    if (width < 2 || height < 2 || !element.checkVisibility({ visibilityProperty: true })) continue;
    // The value of a slider stands beside its thumb, not on it.
    if (element.closest("style, script, noscript, [disabled], [aria-disabled=true], [data-testid=stSliderThumbValue]")) continue;
    const ancestors = [];
    for (let at = element; at; at = above(at)) ancestors.push(at);
    if (ancestors.some((at) => at.matches(":disabled, [aria-disabled=true]"))) continue;
    let behind = [255, 255, 255];
    let opacity = 1;
    for (const at of ancestors.reverse()) {
      const style = getComputedStyle(at);
      opacity *= Number(style.opacity);
      const layer = rgba(style.backgroundColor);
      behind = over(layer, layer[3] * opacity, behind);
    }
    const style = getComputedStyle(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    if (ink[3] === 0 || opacity < 0.02) continue;
    const size = parseFloat(style.fontSize);
    const isSymbol = element.matches("[data-testid=stIconMaterial], [role=img]");
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const needed = isSymbol || isLarge ? 3 : 4.5;
    const ratio = contrast(over(ink, ink[3] * opacity, behind), behind);
    if (ratio < needed) {
      const where = ancestors.map((at) => at.dataset?.testid ?? "").filter(Boolean).slice(-2).join(" > ");
      found.push({ text: text.slice(0, 60), ratio: Math.round(ratio * 100) / 100, needed, where });
    }
  }
  return found;
}
