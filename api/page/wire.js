// SPDX-License-Identifier: MIT
// Requests to the server that gave this page. Law: every address is relative to the page's own, so that a proxy may
// serve it under any path; the key is kept for this tab alone and goes nowhere else.

const KEY = "weft.key";

export class Problem extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function readKey() { return sessionStorage.getItem(KEY) ?? ""; }

export function keepKey(key) {
  if (key === "")
    sessionStorage.removeItem(KEY);
  else
    sessionStorage.setItem(KEY, key);
}

export function problemOf(status, body) {
  const error = body && body.error;
  if (error && typeof error.message === "string") return new Problem(status, error.code ?? "", error.message);
  return new Problem(status, "", `The server answered ${status}.`);
}

// Asks; what is no 2xx, and what never arrived, is thrown as a Problem of one line.
export async function ask(path, {method = "GET", body, signal, accept = "application/json"} = {}) {
  const headers = {Accept: accept};
  const key = readKey();
  if (key !== "") headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = {method, headers, signal, cache: "no-store", credentials: "same-origin", redirect: "error"};
  if (body !== undefined) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The server cannot be reached.");
  }
  if (response.ok) return response;
  let told = null;
  try {
    told = await response.json();
  } catch { /* a proxy's page, perhaps */
  }
  throw problemOf(response.status, told);
}

export async function askJson(path, options) { return (await ask(path, options)).json(); }

// Cuts a stream into server-sent events. `onBytes` hears that something came, comments too.
export async function readEvents(response, onEvent, onBytes = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "", name = "", data = [];
  const takeLine = (line) => {
    if (line === "") {
      if (data.length > 0) onEvent(name || "message", data.join("\n"));
      name = "";
      data = [];
    } else if (line.startsWith("data:"))
      data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:"))
      name = line.slice(6).trim();
  };
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    onBytes();
    const lines = (kept + value).split("\n");
    kept = lines.pop();
    for (const line of lines) takeLine(line.endsWith("\r") ? line.slice(0, -1) : line);
  }
}
