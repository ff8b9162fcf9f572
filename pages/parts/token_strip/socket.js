// One web socket for all strips and text fields of a page; it comes back by itself and goes on where it stopped.

const BACK_OFF_MS = [250, 500, 1000, 2000, 5000];

class Live {
  constructor(url) {
    this.url = url;
    this.followers = new Map();
    this.fields = new Map();
    this.questions = new Map(); // of fields, not answered yet
    this.vocabularies = new Map();
    this.failures = 0;
  }

  /** Follow a trial: `follower` has next() for the first index wanted, receive(message) and connected(is). */
  follow(trial, follower) {
    if (!this.followers.has(trial)) this.followers.set(trial, new Set());
    this.followers.get(trial).add(follower);
    if (this.socket?.readyState === WebSocket.OPEN) this.ask([trial]);
    else if (!this.socket && !this.retry) this.connect();
  }

  /** Stop following; the socket closes when nobody follows any more. */
  leave(trial, follower) {
    const group = this.followers.get(trial);
    group?.delete(follower);
    if (group && !group.size) this.followers.delete(trial);
    this.closeUnused();
  }

  /** Hear the answers to the questions of a text field: `hear` gets each. */
  attend(field, hear) {
    this.fields.set(field, hear);
  }

  dismiss(field) {
    this.fields.delete(field);
    this.questions.delete(field);
    this.closeUnused();
  }

  closeUnused() {
    if (this.followers.size || this.fields.size) return;
    clearTimeout(this.retry);
    this.retry = undefined;
    this.socket?.close();
    this.socket = undefined;
  }

  ask(trials) {
    const jobs = {};
    for (const trial of trials) {
      jobs[trial] = Math.min(...[...this.followers.get(trial)].map((follower) => follower.next()));
    }
    const latency = new URLSearchParams(location.search).has("latency");
    this.socket.send(JSON.stringify({ jobs, latency }));
  }

  /** Ask what other sampling parameters draw; the answer comes as a message of the trial. Where the socket is closed it
      is opened again, and the answer is false: followers are told when it is there. */
  request(question) {
    const isOpen = this.socket?.readyState === WebSocket.OPEN;
    if (isOpen) this.socket.send(JSON.stringify({ jobs: {}, ...question }));
    else if (!this.socket && !this.retry) this.connect();
    return isOpen;
  }

  /** Ask for the tokens of a field's text; of several questions the latest is answered. */
  askText(question) {
    this.questions.set(question.field, question);
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ jobs: {}, text: question }));
    else if (!this.socket && !this.retry) this.connect();
  }

  /** Ask for the figures of words at a trial, until all have come; no words: stop computing them. */
  askWords(question) {
    this.watched = question.words.length ? question : null;
    this.request({ watch: question });
  }

  unfinished() {
    return [...this.followers].filter(([, group]) => [...group].some((one) => !one.isOver())).map(([trial]) => trial);
  }

  connect() {
    this.retry = undefined;
    const socket = new WebSocket(this.url);
    this.socket = socket;
    this.vocabularies.clear();
    socket.onopen = () => {
      this.failures = 0;
      this.tell(true);
      this.ask(this.unfinished());
      for (const question of this.questions.values()) this.askText(question);
      if (this.watched) this.askWords(this.watched);
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = undefined;
      this.tell(false);
      if (!this.unfinished().length && !this.questions.size && !this.watched) return;
      const wait = BACK_OFF_MS[Math.min(this.failures++, BACK_OFF_MS.length - 1)];
      this.retry = setTimeout(() => this.connect(), wait);
    };
  }

  receive(message) {
    for (const batch of [message.prompt, message.steps, message.resampled, message.text, message.watch]) {
      if (!batch?.words) continue;
      if (!this.vocabularies.has(batch.v)) this.vocabularies.set(batch.v, new Map());
      const words = this.vocabularies.get(batch.v);
      for (const [id, text, hex, kind] of batch.words) words.set(id, { text, hex, kind });
      batch.vocabulary = words;
    }
    for (const follower of this.followers.get(message.job) ?? []) follower.receive(message);
    if (message.text) this.answer(message.text);
    if (message.watch?.over && message.watch.number === this.watched?.number) this.watched = null;
  }

  answer(answer) {
    const { field, number } = answer;
    if (this.questions.get(field)?.number === number) this.questions.delete(field);
    this.fields.get(field)?.(answer);
  }

  tell(isConnected) {
    for (const group of this.followers.values()) for (const follower of group) follower.connected(isConnected);
  }
}

/** The page's socket for this address; a component's script may be read several times, the socket is made once. */
function liveAt(path) {
  const sockets = (globalThis[Symbol.for("logitbench.live")] ??= new Map());
  const url = new URL(path, location.origin.replace(/^http/, "ws")).href;
  if (!sockets.has(url)) sockets.set(url, new Live(url));
  return sockets.get(url);
}
