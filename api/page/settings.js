// SPDX-License-Identifier: MIT
// What a conversation asks for besides its words: the fields, and what they mean in a request. Law: a field that is
// left empty is left out, so that the server's default holds; a field that cannot be read is named and nothing is
// asked.
import {make, setText} from "./dom.js";

const NUMBERS = [
  {key: "temperature", label: "Temperature", hint: "token by token", min: 0, max: 2, step: 0.05},
  {key: "steps", label: "Steps per canvas", hint: "by diffusion, at most", min: 1, max: 512, step: 1},
  {key: "length", label: "Tokens", hint: "of an answer, at most", min: 1, max: 1048576, step: 1},
  {key: "seed", label: "Seed", hint: "the same answer again", min: 0, max: 4294967295, step: 1},
];
const TEXTS = [
  {key: "system", label: "System prompt", rows: 2},
  {key: "tools", label: "Tools", rows: 5, json: "array", hint: "definitions as JSON, as OpenAI has them"},
  {key: "format", label: "Format", rows: 5, json: "object", hint: "a JSON schema that the answer is held to"},
];

export class SettingsView {
  constructor(onChange) {
    this.inputs = {};
    this.problems = {};
    const numbers = make("div", {class: "numbers"}, ...NUMBERS.map((field) => this.makeField(field, make("input", {
                                                                                               type: "number",
                                                                                               min: field.min,
                                                                                               max: field.max,
                                                                                               step: field.step,
                                                                                               inputmode: "decimal",
                                                                                               placeholder: "default"
                                                                                             }))));
    this.thinking = make("input", {type: "checkbox", id: "setting-thinking"});
    const thinking = make("p", {class: "check"}, this.thinking, make("label", {for: "setting-thinking"
                          }, "Think before the answer, where the model can"));
    const texts = TEXTS.map(
        (field) =>
            this.makeField(field, make("textarea", {rows: field.rows, spellcheck: field.json ? "false" : "true"})));
    this.node = make(
        "fieldset", {class: "settings", hidden: true, id: "settings", onchange: () => onChange(this.values())},
        make("legend", {class: "unseen"}, "Settings of this conversation"), numbers, thinking, ...texts);
  }

  makeField({key, label, hint}, input) {
    input.id = `setting-${key}`;
    input.setAttribute("aria-describedby", `problem-${key}`);
    this.inputs[key] = input;
    this.problems[key] = make("span", {class: "problem", id: `problem-${key}`});
    const words = make("label", {for: input.id
    }, label);
    if (hint) words.append(make("small", {}, hint));
    return make("div", {class: "field"}, words, input, this.problems[key]);
  }

  show(values) {
    for (const [key, input] of Object.entries(this.inputs)) input.value = values[key] ?? "";
    this.thinking.checked = values.thinking === true;
    this.read();
  }

  // As they are kept: the texts that were typed.
  values() {
    const values = {thinking: this.thinking.checked};
    for (const [key, input] of Object.entries(this.inputs))
      if (input.value !== "") values[key] = input.value;
    return values;
  }

  // As a request has them; null where a field cannot be read, which then says why.
  read() {
    const out = {thinking: this.thinking.checked, system: this.inputs.system.value};
    let sound = true;
    const note = (key, problem) => {
      setText(this.problems[key], problem);
      this.inputs[key].setAttribute("aria-invalid", String(problem !== ""));
      if (problem !== "") sound = false;
    };
    for (const field of NUMBERS) note(field.key, this.readNumber(field, out));
    for (const field of TEXTS)
      if (field.json) note(field.key, this.readJson(field, out));
    return sound ? out : null;
  }

  readNumber({key, label, min, max, step}, out) {
    const input = this.inputs[key];
    if (input.value === "" && !input.validity.badInput) return "";
    const value = Number(input.value);
    const right = !input.validity.badInput && value >= min && value <= max && (step < 1 || Number.isInteger(value));
    if (!right) return `${label} is ${step < 1 ? "a number" : "a whole number"} from ${min} to ${max}.`;
    out[key] = value;
    return "";
  }

  readJson({key, label, json}, out) {
    const text = this.inputs[key].value.trim();
    if (text === "") return "";
    let value;
    try {
      value = JSON.parse(text);
    } catch (error) { return `This is no JSON: ${error.message}.`; }
    if (Array.isArray(value) !== (json === "array") || value === null || typeof value !== "object")
      return `${label}: a JSON ${json} is needed.`;
    out[key] = value;
    return "";
  }
}
