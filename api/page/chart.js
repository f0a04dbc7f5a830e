// SPDX-License-Identifier: MIT
// Drawings of the pool's view: cells of pages, rows of steps, a line of the last values. Law: a drawing says in its
// label what it shows; colours are classes, so that the theme decides them.
import {count, draw, make, setText, time} from "./dom.js";

export const KINDS = ["prefill", "decode", "canvas", "commit"];
const STATES = ["free", "cached", "live", "pinned", "others"];
const CELL = 10, GAP = 1.4, STEPS = 128;

function ownerClass(owner) {
  if (owner === undefined) return "nobody";
  return owner.kind === "tenant" ? `hue${owner.tenant % 8}` : owner.kind;
}

export class PoolGrid {
  constructor() {
    this.node = draw("svg", {class: "grid", role: "img", preserveAspectRatio: "xMinYMin meet"});
    this.drawn = "";
  }

  // wide: it has the whole width of the view.
  update({grid, owners, ...pool}, wide) {
    const told = JSON.stringify([grid, owners, wide]);
    if (told === this.drawn) return;
    this.drawn = told;
    const columns = Math.max(8, Math.ceil(Math.sqrt(grid.cells * (wide ? 6 : 2.6))));
    const paths = new Map();
    let at = 0;
    for (const [state, owner, cells] of grid.runs) {
      const name = `${STATES[state]} ${ownerClass(owners[owner])}`;
      const parts = paths.get(name) ?? [];
      for (let i = 0; i < cells; i++, at++)
        parts.push(cellPath(at % columns, Math.floor(at / columns), STATES[state] === "pinned"));
      paths.set(name, parts);
    }
    this.node.setAttribute("viewBox", `0 0 ${columns * CELL} ${Math.ceil(grid.cells / columns) * CELL}`);
    this.node.replaceChildren(...Array.from(paths, ([name, parts]) => draw("path", {class: name, d: parts.join("")})));
    const words = STATES.filter((state) => pool[state] > 0).map((state) => `${count(pool[state])} ${state}`);
    this.node.setAttribute("aria-label", `Pages of the pool: ${words.join(", ")}, of ${count(pool.pages)}`);
  }
}

// A cell; a pinned one with a hole.
function cellPath(x, y, hole) {
  const side = CELL - GAP, left = x * CELL + GAP / 2, top = y * CELL + GAP / 2;
  const inner = hole ? `M${left + 2.8} ${top + 2.8}h3v3h-3z` : "";
  return `M${left} ${top}h${side}v${side}h${- side}z${inner}`;
}

// The last steps as they were packed: a bar is a step, its parts are rows by kind; below it how long it took.
export class StepBars {
  constructor() {
    this.steps = [];
    this.paths = Object.fromEntries(KINDS.map((kind) => [kind, draw("path", {class: kind})]));
    this.rows = draw("svg", {class: "bars", role: "img", preserveAspectRatio: "none"}, ...Object.values(this.paths));
    this.took = draw("path", {class: "took"});
    this.foretold = draw("path", {class: "foretold"});
    this.times = draw("svg", {class: "times", role: "img", preserveAspectRatio: "none"}, this.took, this.foretold);
    this.most = make("span", {class: "most"});
    this.longest = make("span", {class: "most"});
    this.node = make(
        "div", {class: "steps"}, make("div", {class: "plot"}, this.rows, this.most),
        make("div", {class: "plot low"}, this.times, this.longest));
  }

  update(steps) {
    const newest = this.steps.at(-1)?.number ?? -1;
    if (steps.length > 0 && steps.at(-1).number < newest) this.steps = []; // a server that began anew
    const fresh = steps.filter((step) => step.number > (this.steps.at(-1)?.number ?? -1));
    if (fresh.length === 0 && this.steps.length > 0) return;
    this.steps = this.steps.concat(fresh).slice(-STEPS);
    this.drawRows();
    this.drawTimes();
  }

  drawRows() {
    const most = Math.max(1, ...this.steps.map((step) => KINDS.reduce((sum, kind) => sum + step[kind], 0)));
    const parts = Object.fromEntries(KINDS.map((kind) => [kind, []]));
    this.steps.forEach((step, i) => {
      let base = 100;
      for (const kind of KINDS) {
        const height = 100 * step[kind] / most;
        if (height > 0)
          parts[kind].push(`M${i + STEPS - this.steps.length + 0.1} ${base.toFixed(2)}v${- height.toFixed(2)}h.8v${
              height.toFixed(2)}z`);
        base -= height;
      }
    });
    this.rows.setAttribute("viewBox", `0 0 ${STEPS} 100`);
    for (const kind of KINDS) this.paths[kind].setAttribute("d", parts[kind].join(""));
    setText(this.most, `${count(most)} rows`);
    const last = this.steps.at(-1);
    this.rows.setAttribute(
        "aria-label",
        last === undefined ? "No step yet" :
                             `Rows of the last ${this.steps.length} steps; the newest has ${
                                 KINDS.map((kind) => `${count(last[kind])} ${kind}`).join(", ")}`);
  }

  drawTimes() {
    const most = Math.max(1, ...this.steps.map((step) => Math.max(step.us, step.predicted_us)));
    const line = (key) => this.steps
                              .map(
                                  (step, i) => `${i === 0 ? "M" : "L"}${i + STEPS - this.steps.length + 0.5} ${
                                      (98 - 94 * step[key] / most).toFixed(2)}`)
                              .join("");
    this.times.setAttribute("viewBox", `0 0 ${STEPS} 100`);
    this.took.setAttribute("d", line("us"));
    this.foretold.setAttribute("d", line("predicted_us"));
    setText(this.longest, time(most / 1000));
    const last = this.steps.at(-1);
    this.times.setAttribute(
        "aria-label",
        last === undefined ?
            "No step yet" :
            `The newest step took ${time(last.us / 1000)}; ${time(last.predicted_us / 1000)} were foretold`);
  }
}

// A figure with its name and its last values.
export class Figure {
  constructor(name) {
    this.values = [];
    this.value = make("dd");
    this.line = draw("path");
    this.area = draw("path", {class: "area"});
    const svg = draw(
        "svg", {class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true"}, this.area,
        this.line);
    this.node = make("div", {class: "figure"}, make("dt", {}, name), this.value, svg);
  }

  update(text, value) {
    setText(this.value, text);
    this.values.push(value);
    if (this.values.length > 101) this.values.shift();
    const most = Math.max(1e-9, ...this.values), from = 101 - this.values.length;
    const points = this.values.map((v, i) => `${from + i} ${(23 - 21 * v / most).toFixed(1)}`);
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d", `M${from} 24L${points.join("L")}V24z`);
  }
}
