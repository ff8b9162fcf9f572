// Notes every layout shift of the page with what moved, from the first paint on: window.layoutShifts.
window.layoutShifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const moved = entry.sources.map(({ node, previousRect, currentRect }) => {
      const element = node?.nodeType === Node.ELEMENT_NODE ? node : node?.parentElement;
      const name = element?.closest("[data-testid]")?.dataset.testid ?? element?.tagName ?? "?";
      const from = [previousRect.x, previousRect.y, previousRect.width, previousRect.height].map(Math.round);
      const to = [currentRect.x, currentRect.y, currentRect.width, currentRect.height].map(Math.round);
      return `${name} ${from} → ${to} ${(element?.innerText ?? "").slice(0, 40)}`;
    });
    window.layoutShifts.push({ score: entry.value, at_ms: Math.round(entry.startTime), moved });
  }
}).observe({ type: "layout-shift", buffered: true });
