// SPDX-License-Identifier: MIT
// The conversations and the one that is shown. Law: an answer belongs to its conversation and not to the view, so it
// goes on while another conversation is shown; what is shown is made from the turns alone, at most once a frame.
import {Answer, bodyOf, newAnswer} from "./answer.js";
import {byId, eachFrame, make, nameNode, plain, say} from "./dom.js";
import {SettingsView} from "./settings.js";
import {dropTalk, keepTalk, listTalks, newTalk, readTalk, watchTalks} from "./store.js";
import {factsOf, makeTurnView} from "./turn.js";
import {askJson} from "./wire.js";

const KEEP_EVERY = 2000, ELSEWHERE = 6000; // ms: an answer that grows is kept; another tab that keeps one is at work

export class ChatView {
  // hooks: needKey(problem), banner(text), lost()
  constructor(root, hooks) {
    this.root = root;
    this.hooks = hooks;
    this.models = [];
    this.running = new Map();   // id of a conversation: {talk, answer, turn}
    this.elsewhere = new Map(); // id: when another tab last wrote it
    this.views = [];
    this.talk = newTalk();
    this.acts = {
      edit: (turn, text) => this.edit(turn, text),
      again: (turn) => this.again(turn),
      goOn: (turn) => this.goOn(turn),
      results: (turn, texts) => this.giveResults(turn, texts)
    };
    this.refresh = eachFrame(() => this.update());
    this.build();
    watchTalks((id) => this.hearOther(id));
    addEventListener("pagehide", () => this.leave());
    this.showList();
  }

  build() {
    this.list = make("ul", {class: "talks"});
    this.undo = make("p", {class: "undo", role: "status"});
    const aside = make(
        "aside", {class: "side", id: "side", "aria-label": "Conversations"},
        make("button", {type: "button", class: "new", onclick: () => this.open(null)}, "New conversation"), this.list,
        this.undo);
    this.log = make("div", {class: "log"});
    this.scroller = make("section", {class: "thread", tabindex: "0", "aria-label": "Conversation"}, this.log);
    this.settings = new SettingsView((values) => this.keepSettings(values));
    this.question = make("textarea", {
      id: "question",
      rows: 1,
      placeholder: "Ask something",
      "aria-label": "Question",
      dir: "auto",
      onkeydown: (event) => this.typeKey(event)
    });
    this.sendButton = make("button", {type: "submit", class: "main send", id: "send"}, "Ask");
    this.modelField = make("select", {id: "model", "aria-label": "Model", onchange: () => this.chooseModel()});
    this.modeField = make(
        "select", {id: "mode", "aria-label": "How it writes", onchange: () => this.keepMode()},
        make("option", {value: "diffusion"}, "by diffusion"),
        make("option", {value: "autoregressive"}, "token by token"));
    this.moreButton = make(
        "button", {
          type: "button",
          class: "quiet",
          id: "more",
          "aria-expanded": "false",
          "aria-controls": "settings",
          onclick: () => this.toggleSettings()
        },
        "Settings");
    this.sideButton = byId("side-button");
    this.sideButton.addEventListener("click", () => this.toggleSide());
    this.form = make(
        "form", {
          class: "composer",
          onsubmit: (event) => {
            event.preventDefault();
            this.submit();
          }
        },
        this.settings.node,
        make(
            "div", {class: "box"}, this.question,
            make(
                "div", {class: "bar"}, this.modelField, this.modeField, this.moreButton, make("span", {class: "gap"}),
                this.sendButton)));
    this.root.append(aside, make("div", {class: "desk"}, this.scroller, make("div", {class: "foot"}, this.form)));
  }

  // ---- models

  // Reads which models are served. Gives what was in the way, or null.
  async load() {
    try {
      const told = await askJson("v1/models");
      this.models = told.data.filter((model) => model.chat !== false);
    } catch (problem) { return problem; }
    this.modelField.replaceChildren(...this.models.map((model) => make("option", {value: model.id}, plain(model.id))));
    this.showSettings();
    this.update();
    return null;
  }

  model() { return this.models.find((model) => model.id === this.modelField.value) ?? null; }

  chooseModel() {
    this.showMode();
    this.talk.model = this.modelField.value;
    this.keep(this.talk);
    this.update();
  }

  keepMode() { this.keepSettings(this.settings.values()); }

  showMode() {
    const model = this.model();
    this.modeField.hidden = model === null || !(model.diffusion && model.autoregressive);
  }

  keepSettings(values) {
    this.talk.settings = {...values, mode: this.modeField.value};
    this.settings.read();
    this.keep(this.talk);
  }

  showSettings() {
    const known = this.models.some((model) => model.id === this.talk.model);
    if (known) this.modelField.value = this.talk.model;
    this.modeField.value = this.talk.settings.mode ?? "diffusion";
    this.settings.show(this.talk.settings);
    this.showMode();
  }

  toggleSettings() {
    const open = this.settings.node.hidden;
    this.settings.node.hidden = !open;
    this.moreButton.setAttribute("aria-expanded", String(open));
  }

  toggleSide(open = !this.root.classList.contains("side-open")) {
    this.root.classList.toggle("side-open", open);
    this.sideButton.setAttribute("aria-expanded", String(open));
  }

  // ---- which conversation

  // Shows a conversation; null: a new one.
  open(id) {
    const running = this.running.get(id);
    this.talk = running ? running.talk : (id !== null && readTalk(id)) || newTalk();
    this.toggleSide(false);
    this.showTalk();
    this.question.focus({preventScroll: true});
  }

  showTalk() {
    const place = this.talk.turns.length === 0 ? "#chat" : `#chat/${this.talk.id}`;
    if (location.hash !== place && location.hash.startsWith("#chat")) history.replaceState(null, "", place);
    byId("tab-chat").href = place;
    this.views = [];
    this.log.replaceChildren();
    this.showSettings();
    this.showList();
    this.update();
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  showList() {
    this.list.replaceChildren(...listTalks().map(
        ({id, title}) => make(
            "li", {},
            make(
                "a", {href: `#chat/${id}`, "aria-current": id === this.talk.id ? "true" : null},
                nameNode(title || "Untitled")),
            make(
                "button", {
                  type: "button",
                  class: "quiet drop",
                  "aria-label": `Delete ${plain(title)}`,
                  onclick: () => this.drop(id)
                },
                "×"))));
  }

  drop(id) {
    const talk = readTalk(id);
    const running = this.running.get(id);
    if (running) running.answer.stop();
    this.running.delete(id);
    dropTalk(id);
    if (this.talk.id === id) this.open(null);
    this.showList();
    const back = make(
        "button", {
          type: "button",
          class: "quiet",
          onclick: () => {
            keepTalk(talk);
            this.undo.replaceChildren();
            this.showList();
          }
        },
        "Undo");
    this.undo.replaceChildren("Deleted. ", back);
  }

  hearOther(id) {
    this.elsewhere.set(id, performance.now());
    this.showList();
    if (id !== this.talk.id || this.running.has(id)) return;
    const talk = readTalk(id);
    if (talk === null) return; // it stays here until it is left
    const near = this.isNearEnd();
    this.talk = talk;
    this.views = [];
    this.log.replaceChildren();
    this.update();
    if (near) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  keep(talk, touch = false) {
    if (talk.turns.length === 0) return;
    if (!keepTalk(talk, {touch}))
      this.hooks.banner("This browser's storage is full: the conversation is shown but not kept. Delete others.");
    if (touch) this.showList();
  }

  leave() {
    for (const {talk, answer, turn} of this.running.values()) {
      answer.stop();
      if (turn.end === "") turn.end = "stopped";
      keepTalk(talk);
    }
  }

  // ---- asking

  typeKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.form.requestSubmit();
    } else if (event.key === "ArrowUp" && this.question.value === "") {
      const asked = this.views.filter((view) => view.turn && view.turn.role === "user").at(-1);
      if (asked && !this.running.has(this.talk.id)) {
        event.preventDefault();
        asked.openEditor();
      }
    }
  }

  submit() {
    if (this.running.has(this.talk.id)) {
      this.stop();
      return;
    }
    const text = this.question.value;
    if (text.trim() === "" || !this.mayAsk()) return;
    this.question.value = "";
    this.talk.turns.push({role: "user", text});
    this.start();
  }

  // Whether a request can be made now; what is in the way is said.
  mayAsk() {
    if (this.model() === null) {
      this.hooks.banner("There is no model to ask.");
      return false;
    }
    if (this.settings.read() === null) {
      if (this.settings.node.hidden) this.toggleSettings();
      say("A setting cannot be read.");
      return false;
    }
    const busy = performance.now() - (this.elsewhere.get(this.talk.id) ?? -ELSEWHERE) < ELSEWHERE;
    if (busy && this.talk.turns.at(-1)?.end === "") {
      this.hooks.banner("Another tab is being answered in this conversation.");
      return false;
    }
    this.hooks.banner("");
    return true;
  }

  edit(turn, text) {
    if (!this.mayAsk()) return;
    this.cutBefore(turn);
    this.talk.turns.push({role: "user", text});
    this.start();
  }

  again(turn) {
    if (!this.mayAsk()) return;
    this.cutBefore(turn);
    this.start();
  }

  goOn(turn) {
    if (this.mayAsk()) this.start(turn);
  }

  giveResults(turn, texts) {
    if (!this.mayAsk()) return;
    turn.calls.forEach(
        (call, i) => this.talk.turns.push({role: "tool", call: call.id, name: call.name, text: texts[i]}));
    this.start();
  }

  cutBefore(turn) {
    this.talk.turns.length = this.talk.turns.indexOf(turn);
    while (this.views.length > this.talk.turns.length) this.views.pop().node.remove();
  }

  // Asks for an answer to what stands there, or for more of the answer `old`.
  async start(old = null) {
    const {talk} = this, model = this.model(), settings = {...this.settings.read(), mode: this.modeField.value};
    const turn = old ?? newAnswer(model.id);
    const body = bodyOf(talk.turns, model, settings, old !== null);
    if (old === null) talk.turns.push(turn);
    Object.assign(turn, {end: "", problem: "", draft: ""});
    talk.model = model.id;
    talk.settings = {...this.settings.values(), mode: this.modeField.value};
    if (talk.title === "") talk.title = talk.turns[0].text.trim().slice(0, 80);
    const answer = new Answer(turn, model.diffusion ? model.canvas : 0, () => this.change(talk));
    this.running.set(talk.id, {talk, answer, turn, kept: performance.now()});
    this.keep(talk, true);
    if (talk === this.talk) history.replaceState(null, "", byId("tab-chat").href = `#chat/${talk.id}`);
    this.update();
    this.scroller.scrollTop = this.scroller.scrollHeight;
    say("The answer begins.");
    const problem = await answer.run(body);
    this.end(talk, turn, problem);
  }

  change(talk) {
    const running = this.running.get(talk.id);
    if (running && performance.now() - running.kept > KEEP_EVERY) {
      running.kept = performance.now();
      this.keep(talk);
    }
    if (talk === this.talk) this.refresh();
  }

  end(talk, turn, problem) {
    if (this.running.get(talk.id)?.turn === turn)
      this.running.delete(talk.id);
    else
      return; // its conversation was deleted
    this.keep(talk);
    say(problem === null ? `The answer has ended: ${factsOf(turn).join(", ")}.` :
                           `There is no whole answer: ${turn.problem}`);
    if (problem !== null && problem.status === 401) this.hooks.needKey(problem);
    if (problem !== null && problem.status === 0) this.hooks.lost();
    if (talk === this.talk) this.update();
  }

  stop() {
    const running = this.running.get(this.talk.id);
    if (running) running.answer.stop();
  }

  // ---- what is shown

  isNearEnd() { return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 80; }

  update() {
    const {turns} = this.talk, running = this.running.get(this.talk.id), busy = running !== undefined;
    const near = this.isNearEnd();
    turns.forEach((turn, i) => {
      if (this.views[i] === undefined) {
        this.views[i] = makeTurnView(turn, this.acts);
        this.log.append(this.views[i].node);
      }
      this.views[i].update({last: i === turns.length - 1, busy, running: busy && running.turn === turn});
    });
    this.showEmpty();
    this.sendButton.textContent = busy ? "Stop" : "Ask";
    this.sendButton.classList.toggle("stop", busy);
    if (near) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  showEmpty() {
    const empty = byId("empty");
    if (this.talk.turns.length > 0) {
      if (empty) empty.remove();
      return;
    }
    const model = this.model();
    const facts = model === null ? [] : [
      model.architecture, model.diffusion ? `canvas of ${model.canvas}` : "token by token",
      `context of ${model.max_model_len}`
    ];
    const node = make(
        "div", {class: "empty", id: "empty"}, make("h1", {}, model === null ? "No model yet" : nameNode(model.id)),
        make("p", {}, facts.map(plain).join(" · ")));
    if (empty)
      empty.replaceWith(node);
    else
      this.log.append(node);
  }
}
