// Trials that an offline file holds: they are read from it where a page of the workbench would ask its web socket.

function embeddedJson(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

class Embedded {
  constructor() {
    this.frames = new Map();
    this.vocabularies = embeddedJson("words").map((words) => new Map(words.map(([id, text, hex, kind]) => [id, { text, hex, kind }])));
  }

  /** Give a follower the messages of a trial, one for each frame, as they come while a trial runs. */
  follow(trial, follower) {
    const messages = embeddedJson(`trial-${trial}`);
    const deliver = () => {
      const message = messages.shift();
      if (!message) return;
      for (const batch of [message.prompt, message.steps]) if (batch) batch.vocabulary = this.vocabularies[batch.v];
      follower.receive(message);
      this.frames.set(follower, requestAnimationFrame(deliver));
    };
    this.frames.set(follower, requestAnimationFrame(deliver));
  }

  leave(trial, follower) {
    cancelAnimationFrame(this.frames.get(follower));
    this.frames.delete(follower);
  }

  /** Questions need the workbench: nobody answers. */
  request() {
    return false;
  }
}

let embedded;

function liveAt() {
  return (embedded ??= new Embedded());
}
