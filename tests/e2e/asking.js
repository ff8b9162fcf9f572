// Tells tests whether the page has asked for a run of its script that has not begun: until then the script's state is
// that of the run before. Other messages of Streamlit's protocol ask for no run.
(() => {
  const RERUN_SCRIPT = 0x5a; // first byte of a BackMsg with field 11, a message
  const NEW_SESSION = 0x22; // tag of a ForwardMsg's field 4, a message, behind which stands that a run begins
  const LONGEST_MS = 15000; // the server starts no run for a fragment that is gone
  const DRAWN_MS = 1000; // from the message to the state of the page, which stays where a run follows the one before at once
  const send = WebSocket.prototype.send;
  const known = new WeakSet();
  let asked = -Infinity;
  let begun = -Infinity;
  let drawn = -Infinity;

  /** Whether a ForwardMsg says that a run begins: before that stand its hash and its metadata alone. */
  function begins(bytes) {
    let at = 0;
    const varint = () => {
      let value = 0;
      for (let factor = 1; ; factor *= 128) {
        const byte = bytes[at++] ?? 0;
        value += (byte & 127) * factor;
        if (byte < 128) return value;
      }
    };
    while (at < bytes.length) {
      const tag = varint();
      if (tag === NEW_SESSION) return true;
      if (tag !== 0x0a && tag !== 0x12) return false;
      const length = varint();
      at += length;
    }
    return false;
  }

  WebSocket.prototype.send = function (...message) {
    if (this.url.endsWith("/_stcore/stream")) {
      if (!known.has(this)) {
        known.add(this);
        this.addEventListener("message", ({ data }) => {
          if (data instanceof ArrayBuffer && begins(new Uint8Array(data))) begun = performance.now();
        });
      }
      if (message[0]?.[0] === RERUN_SCRIPT) asked = performance.now();
    }
    return send.apply(this, message);
  };
  new MutationObserver((changes) => {
    for (const { target } of changes) if (target.dataset.testScriptState === "running") drawn = performance.now();
  }).observe(document, { subtree: true, attributeFilter: ["data-test-script-state"] });
  window.isAsking = () => {
    const now = performance.now();
    return (begun < asked && now - asked < LONGEST_MS) || (drawn < begun && now - begun < DRAWN_MS);
  };
})();
