// Tells tests whether the page has asked for a run of its script that has not begun: until then the script's state is
// that of the run before. Other messages start no run, so none is waited for longer than two seconds.
(() => {
  const LONGEST_MS = 2000;
  const send = WebSocket.prototype.send;
  let asked = -Infinity;
  let began = -Infinity;
  WebSocket.prototype.send = function (...message) {
    if (this.url.endsWith("/_stcore/stream")) asked = performance.now();
    return send.apply(this, message);
  };
  new MutationObserver((changes) => {
    for (const { target } of changes) if (target.dataset.testScriptState === "running") began = performance.now();
  }).observe(document, { subtree: true, attributeFilter: ["data-test-script-state"] });
  window.isAsking = () => began < asked && performance.now() - asked < LONGEST_MS;
})();
