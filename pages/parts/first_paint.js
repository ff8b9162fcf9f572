// The sidebar as this browser left it, read where Streamlit keeps it.
(() => {
  try {
    const root = document.documentElement;
    if (localStorage.getItem("stSidebarCollapsed-") === "true") root.dataset.sidebar = "closed";
    const width = Number.parseInt(localStorage.getItem("sidebarWidth"), 10);
    if (width >= 200 && width <= 600) root.style.setProperty("--sidebar-width", `${width}px`);
  } catch {
    // A browser that keeps nothing opens it.
  }
})();
