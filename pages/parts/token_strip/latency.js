// From decoded to painted, where the address asks for ?latency: each message's stamps are kept for who measures.

class Latency {
  constructor() {
    this.stamps = [];
  }

  reset() {
    this.stamps = [];
  }

  received(message, first, count) {
    if (!message.at) return;
    this.stamps.push({ first, count, at: message.at, decodedAt: message.status?.decoded_at, received: performance.now() });
  }

  /** Called within the frame that draws what was received. */
  drawn(job) {
    if (!this.stamps.length) return;
    const stamps = this.stamps.splice(0);
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const painted = performance.now();
      const log = (window.__logitbench ??= []);
      for (const stamp of stamps) log.push({ job, origin: performance.timeOrigin, ...stamp, painted });
    };
    // A message is delivered after the frame has been painted; the frame's own callback runs before.
    channel.port2.postMessage(null);
  }
}
