// SPDX-License-Identifier: MIT
// One answer while the server gives it: the request that is made of a conversation, and how its stream becomes a turn.
// Law: times are differences of the page's monotonic clock; a turn that has an end has exactly one, whatever happened.
import {addStep, newCanvas} from "./canvas.js";
import {ask, Problem, problemOf, readEvents} from "./wire.js";

export function newAnswer(model) {
  return {
    role: "assistant",
    model,
    mode: "",
    text: "",
    draft: "",
    thinking: "",
    calls: [],
    canvases: [],
    usage: null,
    times: null,
    end: "",
    problem: ""
  };
}

function messageOf(turn) {
  if (turn.role === "user") return {role: "user", content: turn.text};
  if (turn.role === "tool") return {role: "tool", tool_call_id: turn.call, name: turn.name, content: turn.text};
  const message = {role: "assistant", content: turn.text};
  if (turn.calls.length > 0) {
    message.tool_calls =
        turn.calls.map(({id, name, text}) => ({id, type: "function", function: {name, arguments: text}}));
    if (turn.text === "") message.content = null;
  }
  return message;
}

// The body of a request. `goesOn`: the last turn is an answer that was broken off, and is to be continued.
export function bodyOf(turns, model, settings, goesOn) {
  const messages = turns.map(messageOf);
  if (settings.system) messages.unshift({role: "system", content: settings.system});
  const body = {model: model.id, messages, stream: true, stream_options: {include_usage: true}};
  const mode = model.diffusion && model.autoregressive ? settings.mode || "diffusion" : "";
  if (mode !== "") body.mode = mode;
  const diffuses = model.diffusion && mode !== "autoregressive";
  if (diffuses) body.stream_canvas = "tokens";
  if (diffuses && settings.steps) body.diffusion = {steps: settings.steps};
  if (!diffuses && settings.temperature !== undefined) body.temperature = settings.temperature;
  if (settings.seed !== undefined) body.seed = settings.seed;
  if (settings.length) body.max_tokens = settings.length;
  if (settings.tools) body.tools = settings.tools;
  if (settings.format)
    body.response_format = {type: "json_schema", json_schema: {name: "answer", schema: settings.format}};
  if (settings.thinking) body.chat_template_kwargs = {enable_thinking: true};
  if (goesOn) Object.assign(body, {continue_final_message: true, add_generation_prompt: false});
  return body;
}

export class Answer {
  // turn: what grows; canvas: positions of a canvas of this model, 0 where it writes token by token; onChange:
  // something in the turn is new.
  constructor(turn, canvas, onChange) {
    this.turn = turn;
    this.canvas = canvas;
    this.onChange = onChange;
    this.control = new AbortController();
  }

  stop() { this.control.abort(); }

  // Asks and reads to the end. Never throws: a problem is in the turn, and is given back (null: none).
  async run(body) {
    this.begun = performance.now();
    this.first = 0;
    let problem = null;
    if (this.canvas > 0 && body.stream_canvas)
      this.turn.canvases.push(newCanvas(this.turn.canvases.length, this.canvas));
    this.base = Math.max(0, this.turn.canvases.length - 1); // a continued answer has canvases already
    this.onChange();
    try {
      const response = await ask(
          "v1/chat/completions", {method: "POST", body, signal: this.control.signal, accept: "text/event-stream"});
      await readEvents(response, (name, data) => this.take(name, data));
      if (this.turn.end === "") throw new Problem(0, "cut", "The connection was lost before the answer ended.");
    } catch (error) { problem = this.breakOff(error); }
    this.finish();
    return problem;
  }

  breakOff(error) {
    if (error.name === "AbortError") {
      this.turn.end = "stopped";
      return null;
    }
    this.control.abort();
    const problem =
        error instanceof Problem ? error : new Problem(0, "cut", "The connection was lost before the answer ended.");
    this.turn.end = "problem";
    this.turn.problem = problem.message;
    return problem;
  }

  finish() {
    const now = performance.now(), {turn} = this;
    turn.times = {first: this.first > 0 ? this.first - this.begun : null, whole: now - this.begun};
    if (turn.draft !== "" && turn.end !== "stop") turn.text += turn.draft; // what stood there when it was broken off
    turn.draft = "";
    turn.canvases = turn.canvases.filter((canvas) => canvas.steps.length > 0);
    for (const canvas of turn.canvases) canvas.committed = true;
    this.onChange();
  }

  take(name, data) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw problemOf(200, event);
    if (event.mode) this.turn.mode = event.mode;
    if (name === "replace")
      this.takeStep(event);
    else
      this.takeChunk(event);
    if (event.usage) this.turn.usage = event.usage;
    this.onChange();
  }

  takeStep(event) {
    if (this.first === 0) this.first = performance.now();
    const place = this.base + event.block, {canvases} = this.turn;
    while (canvases.length <= place) canvases.push(newCanvas(canvases.length, event.positions));
    addStep(canvases[place], event);
    this.turn.draft = event.text;
  }

  takeChunk(event) {
    const choice = (event.choices ?? [])[0];
    if (choice === undefined) return;
    const {delta} = choice, {turn} = this;
    if (this.first === 0 && (delta.content || delta.reasoning_content || delta.tool_calls))
      this.first = performance.now();
    if (delta.reasoning_content) turn.thinking += delta.reasoning_content;
    if (delta.content) turn.text += delta.content;
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.commitCanvas();
    for (const call of delta.tool_calls ?? []) this.takeCall(call);
    if (choice.finish_reason) turn.end = choice.finish_reason;
  }

  commitCanvas() {
    this.turn.draft = "";
    for (const canvas of this.turn.canvases)
      if (canvas.steps.length > 0) canvas.committed = true;
  }

  takeCall({index, id, function: {name, arguments: piece} = {}}) {
    const {calls} = this.turn;
    calls[index] ??= {id: "", name: "", text: ""};
    const call = calls[index];
    if (id) call.id = id;
    if (name) call.name = name;
    if (piece) call.text += piece;
  }
}
