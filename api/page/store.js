// SPDX-License-Identifier: MIT
// The conversations of this browser. Law: each lies under a key of its own, so that two tabs which talk in two
// conversations never write over each other; the order is by a number that only grows and by no clock; what does not
// fit is said. Addresses are part of the keys: two servers behind one proxy do not see each other's.

const HERE = new URL(".", document.baseURI).pathname;
const PLACE = `weft.talk:${HERE}:`, HEAD = `weft.head:${HERE}:`; // a conversation; its {id, order, title} for the list

export function newTalk() {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
  return {id, order: 0, title: "", settings: {}, turns: []};
}

// All that are kept, the newest first: {id, order, title}.
export function listTalks() {
  const talks = [];
  for (let i = 0; i < localStorage.length; i++) {
    const place = localStorage.key(i);
    if (!place.startsWith(HEAD)) continue;
    try {
      const {id, order, title} = JSON.parse(localStorage.getItem(place));
      if (HEAD + id === place) talks.push({id, order: Number(order) || 0, title: String(title)});
    } catch { /* not ours */
    }
  }
  return talks.sort((a, b) => b.order - a.order);
}

export function readTalk(id) {
  try {
    const talk = JSON.parse(localStorage.getItem(PLACE + id));
    if (talk === null || talk.id !== id || !Array.isArray(talk.turns)) return null;
    for (const turn of talk.turns) {
      turn.canvases = (turn.canvases ?? []).map(unpackCanvas);
      if (turn.draft) turn.text += turn.draft; // a canvas that was left in the middle
      if (turn.draft) turn.draft = "";
    }
    return talk;
  } catch {
    return null; // not ours, or from another version of the page
  }
}

// Keeps a conversation. False: the browser has no room for it, with its canvases or without.
export function keepTalk(talk, {touch = false} = {}) {
  if (touch) talk.order = 1 + listTalks().reduce((most, other) => Math.max(most, other.order), 0);
  const turns = talk.turns.map((turn) => ({...turn, canvases: (turn.canvases ?? []).map(packCanvas)}));
  for (let bare = 0; bare <= turns.length; bare++) { // the oldest canvases go first
    if (tryKeep({...talk, turns})) return true;
    if (bare < turns.length) turns[bare].canvases = [];
  }
  return false;
}

function tryKeep(talk) {
  try {
    localStorage.setItem(PLACE + talk.id, JSON.stringify(talk));
    localStorage.setItem(HEAD + talk.id, JSON.stringify({id: talk.id, order: talk.order, title: talk.title}));
    return true;
  } catch { return false; }
}

export function dropTalk(id) {
  localStorage.removeItem(HEAD + id);
  localStorage.removeItem(PLACE + id);
}

// work(id) after another tab has changed a conversation.
export function watchTalks(work) {
  addEventListener("storage", (event) => {
    for (const place of [PLACE, HEAD])
      if (event.key !== null && event.key.startsWith(place)) work(event.key.slice(place.length));
  });
}

// The same words come again in every step, so a step has their numbers in a list of all words.
function packCanvas(canvas) {
  const words = [], places = new Map();
  const numberOf = (word) => {
    if (word === null) return -1;
    if (!places.has(word)) {
      places.set(word, words.length);
      words.push(word);
    }
    return places.get(word);
  };
  const steps = canvas.steps.map((step) => ({
                                   ...step,
                                   pieces: step.pieces.map(numberOf),
                                   drawn: step.drawn.map(numberOf),
                                   noise: step.noise.map(numberOf)
                                 }));
  return {...canvas, words, steps};
}

function unpackCanvas({words, ...canvas}) {
  const wordOf = (number) => (number < 0 ? null : words[number]);
  const steps = canvas.steps.map(
      (step) =>
          ({...step, pieces: step.pieces.map(wordOf), drawn: step.drawn.map(wordOf), noise: step.noise.map(wordOf)}));
  return {...canvas, steps};
}
