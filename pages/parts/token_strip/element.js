// DOM elements, whose text is set as text and never as HTML.

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

let numIds = 0;

/** An id that no other element of the document has: a file may show several strips. */
function uniqueId(name) {
  return `${name}-${numIds++}`;
}
