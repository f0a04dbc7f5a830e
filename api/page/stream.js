// SPDX-License-Identifier: MIT
// A stream of events that is kept alive: it comes back by itself when the server was away. Law: waits grow and are
// bounded, time is that of the page's own monotonic clock, and a refusal of the key ends the attempts until there is
// another key.
import {ask, problemOf, readEvents} from "./wire.js";

const FIRST_WAIT = 500, LONGEST_WAIT = 10000, SILENCE = 30000;

export class Stream {
  // handlers: onEvent(name, data), onState(state, detail): "live", "away" (detail: ms until the next attempt),
  // "refused" (detail: the Problem), "off".
  constructor(path, handlers) {
    this.path = path;
    this.handlers = handlers;
    this.wait = FIRST_WAIT;
    this.running = null;
    this.timer = 0;
  }

  open() {
    if (this.running === null) this.begin();
  }

  close() {
    clearTimeout(this.timer);
    if (this.running !== null) this.running.abort();
    this.running = null;
    this.wait = FIRST_WAIT;
  }

  begin() {
    const control = new AbortController();
    this.running = control;
    this.read(control).then(() => this.lose(control, null), (error) => this.lose(control, error));
  }

  async read(control) {
    let last = performance.now();
    const guard = setInterval(() => {
      if (performance.now() - last > SILENCE) control.abort();
    }, 5000);
    try {
      const response = await ask(this.path, {signal: control.signal, accept: "text/event-stream"});
      this.handlers.onState("live", null);
      await readEvents(
          response,
          (name, data) => {
            if (name === "error") throw problemOf(401, JSON.parse(data));
            this.wait = FIRST_WAIT;
            this.handlers.onEvent(name, data);
          },
          () => {
            last = performance.now();
          });
    } finally {
      clearInterval(guard);
      control.abort(); // what is left of the response
    }
  }

  lose(control, error) {
    if (this.running !== control) return; // closed, or begun anew
    const refused = error !== null && (error.status === 401 || error.status === 403 || error.status === 404);
    if (refused && error.code !== "draining") {
      this.running = null;
      this.handlers.onState("refused", error);
      return;
    }
    const wait = this.wait * (0.75 + Math.random() / 2);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT);
    this.handlers.onState("away", wait);
    this.timer = setTimeout(() => {
      if (this.running === control) this.begin();
    }, wait);
  }
}
