// The running text as a row of blocks: a browser lays out one block again when a token comes, never the whole text.

const BLOCK_TOKENS = 60;
const LONG_BLOCK_TOKENS = 240;
const PORTION_TOKENS = 240;

class Flow {
  constructor(root) {
    this.root = root;
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    this.block = null;
    this.fragment = document.createDocumentFragment();
  }

  /** Take a token; it is seen after the next flush. Blocks end with a line, so that no line is broken by them.
      Many that come at once go in by portions, as a block is only ended where it is on the page. */
  add(span, endsLine) {
    this.fragment.append(span);
    const count = (this.block?.childElementCount ?? 0) + this.fragment.childElementCount;
    if (endsLine && count >= BLOCK_TOKENS) this.close();
    else if (this.fragment.childElementCount >= PORTION_TOKENS) this.flush();
  }

  flush() {
    if (!this.fragment.childElementCount) return;
    if (!this.block) {
      this.block = element("div", "block");
      this.block.setAttribute("role", "presentation");
      this.root.append(this.block);
    }
    this.block.append(this.fragment);
    if (this.block.childElementCount >= LONG_BLOCK_TOKENS) this.splitAtRow();
  }

  close() {
    this.flush();
    this.block?.classList.add("closed");
    this.block = null;
  }

  /** A very long line: its last visual row begins a block of its own. */
  splitAtRow() {
    const spans = [...this.block.children];
    const topOf = (span) => span.getClientRects()[0]?.top;
    const lastTop = topOf(spans.at(-1));
    let first = spans.length - 1;
    while (first > 0 && topOf(spans[first - 1]) === lastTop) first--;
    if (first === 0) return;
    this.block.classList.add("closed");
    this.block = null;
    this.fragment.append(...spans.slice(first));
    this.flush();
  }
}

/** What copying should give: the text of the selection as it stands in the page, marks and stop strings left out. */
function selectedText(root) {
  const selection = root.getRootNode().getSelection?.() ?? getSelection();
  if (!selection.rangeCount || selection.isCollapsed) return null;
  const copy = selection.getRangeAt(0).cloneContents();
  for (const stopped of copy.querySelectorAll(".stopped")) stopped.remove();
  return copy.textContent;
}
