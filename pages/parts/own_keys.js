// Ctrl+Enter in a field of a popover or a dialog applies what was typed there, as the field says, and nothing more: the
// shortcuts of the page's buttons, which Streamlit listens for at the document, are for the fields of the page itself.
document.documentElement.addEventListener("keydown", (event) => {
  const isEnter = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (isEnter && event.target.closest("[data-testid=stPopoverBody], [role=dialog]")) event.stopPropagation();
});
