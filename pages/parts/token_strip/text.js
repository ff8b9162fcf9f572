// From token bytes to what is seen. Model text enters the page here, and only as textContent or as an attribute.
//
// A mark (newline arrow, byte chip, name of a special token) is generated content from an attribute, so selecting and
// copying passes over it; the true characters stand in the text, even where they are invisible.

const CONTROL = 1;
const END = 2;

const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|\n|\p{Cn}|\p{Co}/u;
// Joiners and variation selectors belong to the character beside them; alone in a token nobody would see them.
const BARE = /^[\u034f\u200c\u200d\ufe00-\ufe0f]+$/;
const SPACE = /[ \u00a0\u2000-\u200a\u202f\u205f\u3000]/;
const ESCAPES = { "\n": "↵", "\t": "⇥", "\r": "␍" };

function hexBytes(hex) {
  const bytes = new Uint8Array(hex.length / 2);
  for (let i = 0; i < bytes.length; i++) bytes[i] = parseInt(hex.slice(2 * i, 2 * i + 2), 16);
  return bytes;
}

function escapeOf(character) {
  if (ESCAPES[character]) return ESCAPES[character];
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** How many bytes at the end begin a character that is not complete yet. */
function unfinished(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    const needed = byte >= 0xf0 && byte < 0xf5 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
    return byte < 0xf5 && needed > back ? back : 0;
  }
  return 0;
}

/** Reads the tokens of one text in order; a character split over several comes with the token that completes it. */
class Reader {
  constructor(stripFirstSpace) {
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.pending = new Uint8Array(0);
    this.stripFirstSpace = stripFirstSpace;
  }

  /** Text that this token adds, and its bytes that are no whole character: before the text and behind it. */
  read(word) {
    let bytes = hexBytes(word.hex);
    if (this.stripFirstSpace && bytes.length) {
      this.stripFirstSpace = false;
      if (bytes[0] === 0x20) bytes = bytes.subarray(1);
    }
    const text = this.decoder.decode(bytes, { stream: true });
    const joined = new Uint8Array([...this.pending, ...bytes]);
    const behind = Math.min(unfinished(joined), bytes.length);
    let before = 0;
    if (this.pending.length && behind < bytes.length) {
      while (before < bytes.length - behind && (bytes[before] & 0xc0) === 0x80) before++;
    }
    this.pending = joined.slice(joined.length - unfinished(joined));
    return { text, before: [...bytes.slice(0, before)], behind: [...bytes.slice(bytes.length - behind)] };
  }

  /** What is left when no token follows. */
  finish() {
    return this.decoder.decode();
  }
}

/** The head of a table with these columns. */
function tableHead(texts) {
  const row = element("tr");
  for (const text of texts) {
    const cell = element("th", "", text);
    cell.scope = "col";
    row.append(cell);
  }
  const head = element("thead");
  head.append(row);
  return head;
}

function mark(label, kind, character) {
  const made = element("span", `mark ${kind}`);
  made.dataset.mark = label;
  if (character === "\n") made.textContent = character;
  else if (character) made.append(element("span", "unseen", character));
  return made;
}

function byteMark(bytes) {
  return mark(bytes.map((byte) => `<${byte.toString(16).toUpperCase().padStart(2, "0")}>`).join(""), "byte");
}

/** Append text to a token; spaces that do not simply lead a word are dotted, what cannot be seen is written out. */
function appendText(parent, text) {
  if (/^ ?[!-~¡-ɏ]*$/.test(text)) {
    if (text[0] === " ") parent.classList.add("led");
    parent.append(text);
    return;
  }
  let plain = "";
  const flush = () => {
    if (plain) parent.append(plain);
    plain = "";
  };
  const isBare = BARE.test(text);
  for (const character of text) {
    if (isBare || HIDDEN.test(character)) {
      flush();
      parent.append(mark(escapeOf(character), character === "\n" ? "break" : "control", character));
    } else if (SPACE.test(character)) {
      flush();
      parent.append(element("span", "space", character));
    } else plain += character;
  }
  flush();
}

/** Fill a token's span. `reading` comes from Reader.read; a special token shows its name and copies as nothing. */
function fillToken(span, word, reading) {
  if (word.kind & (CONTROL | END) && !reading.text) {
    span.classList.add("special");
    span.append(mark(word.text, "name"));
    return;
  }
  if (reading.before.length) span.append(byteMark(reading.before));
  if (reading.text) appendText(span, reading.text);
  if (reading.behind.length) span.append(byteMark(reading.behind));
}

/** A token by itself as one line of text for lists and labels: nothing invisible is left. */
function oneLine(text) {
  let line = "";
  const isBare = BARE.test(text);
  for (const character of text) line += isBare || HIDDEN.test(character) ? escapeOf(character) : character;
  return line;
}

/** A token by itself, isolated from its surroundings, with its spaces dotted. */
function tokenChip(word, className = "token-chip") {
  const chip = element("span", className);
  const special = word.kind & (CONTROL | END) && !word.hex;
  if (special) chip.classList.add("special");
  for (const part of oneLine(word.text).split(/( )/)) {
    if (part) chip.append(part === " " ? element("span", "space", " ") : part);
  }
  return chip;
}
