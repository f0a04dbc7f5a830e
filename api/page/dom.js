// SPDX-License-Identifier: MIT
// Elements of the page. Law: a text becomes a text node and nothing else, so no text can become an element, an
// attribute that runs, or an address.

// make("button", {class: "main", onclick: f, "aria-label": "Stop"}, "Stop"): functions are listeners, `data` an object.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function")
      node.addEventListener(name.slice(2), value);
    else if (name === "data")
      Object.assign(node.dataset, value);
    else
      node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export function byId(id) { return document.getElementById(id); }

// Sets a text only where it differs, so that a screen reader hears changes alone and no layout is done for nothing.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Controls and marks that turn the direction of a line are shown by number: a name may not look like another one.
export function plain(text) {
  return String(text).replace(
      /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
      (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// A name that somebody else gave: by itself in its line, whatever direction it is written in.
export function nameNode(text, attributes = {}) { return make("bdi", attributes, plain(text)); }

// What a screen reader is told: one line at a time.
export function say(text) { setText(byId("said"), text); }

// At most one call of `work` per frame.
export function eachFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});

export function count(value) { return whole.format(value); }

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : whole.format(value)} ${units[unit]}`;
}

export function time(ms) {
  if (ms < 1000) return `${whole.format(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.floor(ms / 1000) % 60} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.floor(ms / 60000) % 60} min`;
}
