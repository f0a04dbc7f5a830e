// SPDX-License-Identifier: MIT
// One canvas of an answer: all its positions in their places, as they are at one step, and the way back through the
// steps. Law: a step that was shown once can be shown again, from what is kept here alone; what stands in a cell is
// text.
import {draw, make, plain, setText} from "./dom.js";

const NOISE = "·";
const SURE = 0.35; // nats at which a position has lost most of its tint

// A canvas as it is kept (store.js writes it down): steps are those that the server told, oldest first.
export function newCanvas(block, positions) { return {block, positions, limit: 0, steps: [], committed: false}; }

export function addStep(canvas, event) {
  canvas.positions = event.positions;
  canvas.limit = event.steps ?? canvas.limit;
  canvas.steps.push({
    step: event.step,
    temperature: event.temperature,
    entropy: event.mean_entropy,
    accepted: event.accepted,
    stopped: event.stopped,
    end: event.end,
    text: event.text,
    pieces: event.pieces,
    drawn: event.drawn,
    noise: event.noise,
    unsure: event.entropy,
  });
}

// What one position is at one step: its word, what the step drew besides, the noise that follows, how unsure (0 to 1).
function readCell(step, i) {
  if (step === null) return {state: "noise", word: "", noise: NOISE, unsure: 1};
  const unsure = 1 - Math.exp(-step.unsure[i] / SURE);
  const accepted = step.noise[i] === null;
  const state = i >= step.end ? (accepted ? "after" : "noise after") : accepted ? "accepted" : "drawn";
  return {state, word: step.drawn[i] ?? step.pieces[i], noise: accepted ? "" : step.noise[i], unsure};
}

// A piece as it fits into a cell: blanks and line ends are seen.
function shownPiece(piece) {
  const text = plain(piece.replace(/\n/g, "↵").replace(/\t/g, "⇥"));
  return text.startsWith(" ") && text.length > 1 ? text.slice(1) : text.replace(/ /g, "␣");
}

class Cell {
  constructor() {
    this.word = make("span", {class: "word"});
    this.noise = make("span", {class: "noise"});
    this.node = make("span", {class: "cell"}, this.word, this.noise);
    this.state = "";
    this.unsure = -1;
  }

  show({state, word, noise, unsure}) {
    setText(this.word, shownPiece(word));
    setText(this.noise, shownPiece(noise));
    const glued = state !== "noise" && word !== "" && !/^[\s<]/.test(word) ? " glued" : "";
    if (this.state !== state + glued) this.node.className = `cell ${state}${glued}`;
    this.state = state + glued;
    const rounded = Math.round(unsure * 50) / 50;
    if (rounded !== this.unsure) this.node.style.setProperty("--unsure", String(rounded));
    this.unsure = rounded;
  }
}

export class CanvasView {
  constructor(canvas, number) {
    this.canvas = canvas;
    this.number = number;
    this.cells = [];
    this.at = 0;         // 0: noise, k: after the k-th step that was told
    this.follows = true; // the newest step is shown as it comes
    this.chosen = -1;    // the position that is read out
    this.playing = 0;
    this.touched = false; // somebody opened or closed it
    this.build();
    this.update();
  }

  build() {
    const name = `canvas ${this.number}`;
    this.grid = make("div", {
      class: this.canvas.positions > 64 ? "cells many" : "cells",
      tabindex: "0",
      role: "img",
      dir: "ltr",
      onpointermove: (event) => this.choose(this.cells.findIndex((cell) => cell.node.contains(event.target))),
      onpointerleave: () => this.choose(-1),
      onblur: () => this.choose(-1),
      onkeydown: (event) => this.moveChosen(event)
    });
    this.slider = make("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      value: 0,
      "aria-label": `Step of ${name}`,
      oninput: () => {
        this.stopPlay();
        this.goTo(Number(this.slider.value));
      }
    });
    this.trace = draw("svg", {class: "trace", preserveAspectRatio: "none", "aria-hidden": "true"});
    this.entropy = draw("path", {class: "entropy"});
    this.taken = draw("path", {class: "taken"});
    this.trace.append(this.entropy, this.taken);
    this.player =
        make("button", {type: "button", class: "round", onclick: () => this.play(), "aria-label": `Play ${name}`}, "▶");
    this.facts = Object.fromEntries(["step", "temperature", "entropy", "accepted"].map((key) => [key, make("dd")]));
    const list = make("dl", {class: "facts"});
    for (const [key, node] of Object.entries(this.facts)) list.append(make("div", {}, make("dt", {}, key), node));
    this.readout = make("p", {class: "readout", role: "status"});
    this.title = make("span");
    this.summary = make(
        "summary", {
          onclick: () => {
            this.touched = true;
          }
        },
        this.title);
    const strip = make("div", {class: "strip"}, this.player, make("div", {class: "track"}, this.trace, this.slider));
    this.node = make(
        "details", {class: "canvas", open: true, "aria-label": `Canvas ${this.number}`}, this.summary, this.grid,
        make("div", {class: "deck"}, strip, list, this.readout));
  }

  // Takes in what came since the last frame.
  update() {
    const n = this.canvas.steps.length;
    while (this.cells.length < this.canvas.positions) this.addCell();
    this.slider.max = String(n);
    setText(this.title, `Canvas ${this.number}`);
    this.summary.dataset.more =
        n === 0 ? "noise" : `${n} ${n === 1 ? "step" : "steps"}${this.canvas.committed ? "" : " so far"}`;
    if (this.follows && this.playing === 0) this.at = n;
    this.player.disabled = n < 2;
    this.drawTrace();
    this.show();
  }

  addCell() {
    const cell = new Cell();
    this.cells.push(cell);
    this.grid.append(cell.node);
  }

  fold(open) {
    if (!this.touched && this.node.open !== open) this.node.open = open;
  }

  stepShown() { return this.at === 0 ? null : this.canvas.steps[this.at - 1]; }

  goTo(at) {
    this.at = at;
    this.follows = at === this.canvas.steps.length;
    this.show();
  }

  show() {
    const step = this.stepShown(), n = this.canvas.positions;
    this.cells.forEach((cell, i) => cell.show(readCell(step, i)));
    if (Number(this.slider.value) !== this.at) this.slider.value = String(this.at);
    const limit = this.canvas.limit > 0 ? ` of at most ${this.canvas.limit}` : "";
    this.slider.setAttribute(
        "aria-valuetext", step === null ? "noise, before the first step" : `step ${step.step + 1}${limit}`);
    setText(
        this.facts.step,
        step === null ? "–" : `${step.step + 1}${this.canvas.limit > 0 ? ` / ${this.canvas.limit}` : ""}`);
    setText(this.facts.temperature, step === null ? "–" : step.temperature.toFixed(3));
    setText(this.facts.entropy, step === null ? "–" : step.entropy.toFixed(3));
    setText(this.facts.accepted, `${step === null ? 0 : step.accepted} / ${n}`);
    this.grid.setAttribute(
        "aria-label",
        step === null ?
            `Canvas of ${n} positions, all noise` :
            `Canvas after step ${step.step + 1}, ${step.accepted} of ${n} positions accepted: ${plain(step.text)}`);
    this.readChosen();
  }

  // The mean entropy of each step as bars, the accepted positions as a line, as wide as the slider's way.
  drawTrace() {
    const steps = this.canvas.steps, n = steps.length;
    this.trace.setAttribute("viewBox", `0 0 ${Math.max(n, 1)} 24`);
    this.trace.style.setProperty("--wide", `${Math.max(2, Math.min(10, 200 / (n + 1)))}px`);
    const most = Math.max(0.001, ...steps.map((step) => step.entropy));
    const bars = steps.map((step, i) => `M${i + 1} 24v${- Math.max(0.6, 23 * step.entropy / most).toFixed(2)}`);
    const line = steps.map((step, i) => `L${i + 1} ${(23 - 22 * step.accepted / this.canvas.positions).toFixed(2)}`);
    this.entropy.setAttribute("d", bars.join(""));
    this.taken.setAttribute("d", `M0 23${line.join("")}`);
  }

  play() {
    if (this.playing !== 0) {
      this.stopPlay();
      return;
    }
    if (this.at >= this.canvas.steps.length) this.goTo(0);
    setText(this.player, "■");
    this.player.setAttribute("aria-label", `Pause canvas ${this.number}`);
    const pause = Math.min(400, Math.max(60, 3000 / this.canvas.steps.length));
    this.playing = setInterval(() => {
      if (this.at < this.canvas.steps.length && this.node.isConnected)
        this.goTo(this.at + 1);
      else
        this.stopPlay();
    }, pause);
  }

  stopPlay() {
    clearInterval(this.playing);
    this.playing = 0;
    setText(this.player, "▶");
    this.player.setAttribute("aria-label", `Play canvas ${this.number}`);
  }

  moveChosen(event) {
    const columns = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns}[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = this.chosen < 0 ? 0 : this.chosen + by;
    if (next >= 0 && next < this.cells.length) this.choose(next);
  }

  choose(i) {
    if (i === this.chosen) return;
    if (this.chosen >= 0) this.cells[this.chosen].node.classList.remove("chosen");
    this.chosen = i;
    this.readChosen();
  }

  // In words what stands at the chosen position.
  readChosen() {
    const i = this.chosen, step = this.stepShown();
    if (i >= 0) this.cells[i].node.classList.add("chosen");
    if (i < 0 || step === null) {
      setText(this.readout, i < 0 ? "" : `position ${i}: noise`);
      return;
    }
    const parts = [`position ${i}`, `most likely “${shownPiece(step.pieces[i])}”`];
    if (step.drawn[i] !== null) parts.push(`drawn “${shownPiece(step.drawn[i])}”`);
    parts.push(step.noise[i] === null ? "accepted" : `noise again: “${shownPiece(step.noise[i])}”`);
    parts.push(`entropy ${step.unsure[i].toFixed(3)} nats`);
    setText(this.readout, parts.join(" · "));
  }
}
