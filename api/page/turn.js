// SPDX-License-Identifier: MIT
// How a turn of a conversation looks: a question, an answer, the result of a call. Law: a view only reads its turn;
// what a button does is told to the conversation (`acts`), which changes the turn and has it shown again.
import {CanvasView} from "./canvas.js";
import {count, make, nameNode, plain, setText, time} from "./dom.js";
import {TextView} from "./text.js";

const ENDS = {
  length: "cut at the most tokens",
  stopped: "stopped",
  tool_calls: "waits for results",
  content_filter: "filtered"
};
const WAYS = {
  diffusion: "by diffusion",
  autoregressive: "token by token"
};

function quietButton(words, onclick, label = words) {
  return make("button", {type: "button", class: "quiet", onclick, "aria-label": label}, words);
}

export function makeTurnView(turn, acts) {
  if (turn.role === "user") return new QuestionView(turn, acts);
  if (turn.role === "tool") return new ResultView(turn);
  return new AnswerView(turn, acts);
}

class QuestionView {
  constructor(turn, acts) {
    this.turn = turn;
    this.acts = acts;
    this.words = make("p", {class: "words", dir: "auto"}, turn.text);
    this.edit = quietButton("Edit", () => this.openEditor(), "Edit this question");
    this.tools = make("p", {class: "tools"}, this.edit);
    this.node = make("article", {class: "turn question", "aria-label": "Question"}, this.words, this.tools);
  }

  update({busy}) { this.edit.disabled = busy; }

  openEditor() {
    const field = make("textarea", {
      rows: 3,
      "aria-label": "The question",
      onkeydown: (event) => {
        if (event.key === "Escape") this.closeEditor();
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          form.requestSubmit();
        }
        event.stopPropagation();
      }
    });
    field.value = this.turn.text;
    const form = make(
        "form", {
          class: "editor",
          onsubmit: (event) => {
            event.preventDefault();
            if (field.value.trim() !== "") this.acts.edit(this.turn, field.value);
          }
        },
        field,
        make(
            "p", {class: "tools"}, make("button", {type: "submit", class: "main"}, "Ask again"),
            quietButton("Cancel", () => this.closeEditor())));
    this.node.replaceChildren(form);
    field.focus();
  }

  closeEditor() {
    this.node.replaceChildren(this.words, this.tools);
    this.edit.focus();
  }
}

class ResultView {
  constructor(turn) {
    this.node = make(
        "article", {class: "turn result", "aria-label": "Result of a call"},
        make(
            "details", {class: "call"}, make("summary", {}, "result of ", nameNode(turn.name, {class: "name"})),
            make("pre", {tabindex: "0", role: "region", "aria-label": "Result"}, turn.text)));
  }

  update() {}
}

class CallView {
  constructor() {
    this.name = make("bdi", {class: "name"});
    this.text = make("code");
    this.result = make("textarea", {rows: 1, class: "given-text", "aria-label": "Result of this call"});
    this.form = make("label", {class: "given", hidden: true}, "Result", this.result);
    this.node = make(
        "div", {class: "calling"},
        make(
            "details", {class: "call"}, make("summary", {}, "calls ", this.name),
            make("pre", {tabindex: "0", role: "region", "aria-label": "Arguments"}, this.text)),
        this.form);
  }

  update(call, open) {
    setText(this.name, plain(call.name));
    setText(this.text, prettyJson(call.text));
    this.form.hidden = !open;
    this.result.setAttribute("aria-label", `Result of ${plain(call.name)}`);
  }
}

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch { return text; }
}

class AnswerView {
  constructor(turn, acts) {
    this.turn = turn;
    this.acts = acts;
    this.canvases = [];
    this.calls = [];
    this.who = make("p", {class: "who"}, nameNode(turn.model));
    this.way = make("span", {class: "way"});
    this.who.append(this.way);
    this.thought = make("div", {class: "text"});
    this.thinkingText = new TextView(this.thought);
    this.thinking = make("details", {class: "thinking", hidden: true}, make("summary", {}, "Thinking"), this.thought);
    this.body = make("div", {class: "text", dir: "auto"});
    this.bodyText = new TextView(this.body);
    this.draft = make("div", {class: "text draft", dir: "auto", "aria-hidden": "true"});
    this.draftText = new TextView(this.draft);
    this.callList = make("div", {class: "calls"});
    this.send = make(
        "button", {type: "button", class: "main", hidden: true, onclick: () => this.sendResults()}, "Send results");
    this.canvasList = make("div", {class: "canvases"});
    this.problem = make("p", {class: "problem", role: "alert"});
    this.facts = make("span", {class: "took"});
    this.buttons = {
      copy: quietButton("Copy", () => this.copy(), "Copy this answer"),
      again: quietButton("Again", () => acts.again(turn), "Ask for this answer again"),
      goOn: quietButton("Continue", () => acts.goOn(turn), "Continue this answer"),
    };
    this.foot = make("footer", {class: "tools"}, ...Object.values(this.buttons), this.facts);
    this.node = make(
        "article", {class: "turn answer", "aria-label": `Answer of ${plain(turn.model)}`}, this.who, this.thinking,
        this.body, this.draft, this.callList, this.send, this.canvasList, this.problem, this.foot);
  }

  update({last, busy, running}) {
    const {turn} = this;
    setText(this.way, WAYS[turn.mode] ?? "");
    this.thinking.hidden = turn.thinking === "";
    this.thinkingText.update(turn.thinking);
    this.bodyText.update(turn.text);
    this.draftText.clear();
    this.draftText.update(turn.draft);
    this.node.setAttribute("aria-busy", String(running));
    this.node.classList.toggle("running", running);
    this.updateCalls(last && !busy);
    this.updateCanvases(last, running);
    setText(this.problem, turn.problem);
    this.updateFoot(last, busy, running);
  }

  updateCalls(open) {
    const waits = open && this.turn.calls.length > 0 && this.turn.end !== "";
    this.turn.calls.forEach((call, i) => {
      if (this.calls[i] === undefined) {
        this.calls[i] = new CallView();
        this.callList.append(this.calls[i].node);
      }
      this.calls[i].update(call, waits);
    });
    this.send.hidden = !waits;
  }

  updateCanvases(last, running) {
    const {canvases} = this.turn;
    while (this.canvases.length > canvases.length) this.canvases.pop().node.remove(); // one that no step came for
    canvases.forEach((canvas, i) => {
      if (this.canvases[i] === undefined) {
        this.canvases[i] = new CanvasView(canvas, i + 1);
        this.canvasList.append(this.canvases[i].node);
      }
      const view = this.canvases[i];
      view.fold(last && i === canvases.length - 1);
      const seen = `${canvas.steps.length} ${canvas.committed} ${running}`;
      if (view.seen !== seen) view.update();
      view.seen = seen;
    });
  }

  updateFoot(last, busy, running) {
    const {turn} = this,
          more = turn.end === "length" || turn.end === "stopped" || turn.end === "problem" || turn.end === "";
    this.foot.hidden = running;
    this.buttons.copy.hidden = turn.text === "" || !navigator.clipboard;
    this.buttons.again.hidden = !last; // of an earlier one, all that follows would go
    this.buttons.again.disabled = busy;
    this.buttons.goOn.hidden = !(last && more && turn.text !== "" && turn.calls.length === 0);
    this.buttons.goOn.disabled = busy;
    setText(this.facts, factsOf(turn).join(" · "));
  }

  sendResults() { this.acts.results(this.turn, this.calls.map((call) => call.result.value)); }

  async copy() {
    await navigator.clipboard.writeText(this.turn.text);
    setText(this.buttons.copy, "Copied");
  }
}

// What an answer took, in words.
export function factsOf({usage, times, end, canvases}) {
  const facts = [];
  if (ENDS[end]) facts.push(ENDS[end]);
  const details = usage?.completion_tokens_details ?? {};
  if (usage) facts.push(`${count(usage.completion_tokens)} tokens`);
  if (details.canvases)
    facts.push(
        `${details.canvases} ${details.canvases === 1 ? "canvas" : "canvases"}`, `${details.denoise_steps} steps`);
  else if (canvases.length > 0)
    facts.push(`${canvases.reduce((n, canvas) => n + canvas.steps.length, 0)} steps`);
  if (times && times.first !== null) facts.push(`first after ${time(times.first)}`);
  if (times && usage && times.whole > 0) facts.push(`${count(usage.completion_tokens / times.whole * 1000)} tokens/s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  if (usage) facts.push(`prompt of ${count(usage.prompt_tokens)}${cached > 0 ? `, ${count(cached)} cached` : ""}`);
  return facts;
}
