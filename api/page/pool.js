// SPDX-License-Identifier: MIT
// Who runs and who has the pool. The same code shows the operator all and a tenant its own: what the server sends
// decides. Law: rates are differences of the server's counters by the server's own clock, so a clock that is wrong here
// changes nothing; nothing is asked of the server while nobody looks.
import {Figure, KINDS, PoolGrid, StepBars} from "./chart.js";
import {bytes, count, eachFrame, make, nameNode, plain, say, setText, time} from "./dom.js";
import {Stream} from "./stream.js";

const WINDOW = 10000; // ms of the server's clock that a rate is taken over
const PHASES = {
  queued: "waits for its turn",
  prefix: "waits for a prefix",
  file: "waits for the file",
  preempted: "was preempted",
  prefill: "prefill",
  decode: "decode",
  denoise: "denoise",
  ending: "ends"
};

export class PoolView {
  constructor(root, hooks) {
    this.root = root;
    this.hooks = hooks;
    this.past = []; // snapshots of the last seconds
    this.stats = null;
    this.replicas = [];
    this.rows = new Map();
    this.shown = false;
    this.refresh = eachFrame(() => this.update());
    this.stream = new Stream(
        "stats/stream",
        {onEvent: (name, data) => this.take(name, data), onState: (state, detail) => this.showState(state, detail)});
    this.build();
    document.addEventListener("visibilitychange", () => this.look());
  }

  build() {
    this.state = make("p", {class: "state", role: "status"});
    this.now = make(
        "button", {
          type: "button",
          class: "quiet",
          hidden: true,
          onclick: () => {
            this.stream.close();
            this.look();
          }
        },
        "Try now");
    this.title = make("h1", {}, "Pool");
    this.figures = Object.fromEntries([
      ["running", "running"], ["waiting", "waiting"], ["tokens", "tokens/s"], ["rows", "rows/s"],
      ["busy", "device busy"], ["hits", "from the prefix cache"]
    ].map(([key, name]) => [key, new Figure(name)]));
    this.pools = make("div", {class: "pools"});
    this.models = new Table("Models", ["model", "writes", "running", "waiting", "steps", "rows", "device"]);
    this.tenants = new Table("Tenants", [
      "tenant", "share", "used", "running", "waiting", "pages", "cached", "prompt", "from cache", "answer", "refused"
    ]);
    this.requests = new Table("Requests", ["request", "tenant", "model", "phase", "prompt", "answer", "canvas", "age"]);
    this.leftOut = make("p", {class: "note"});
    this.requests.node.append(this.leftOut);
    this.body = make(
        "div", {class: "stats", hidden: true},
        make("dl", {class: "figures"}, ...Object.values(this.figures).map((figure) => figure.node)), this.pools,
        this.tenants.node, this.models.node, this.requests.node);
    this.root.append(make("header", {class: "head"}, this.title, this.state, this.now), this.body);
  }

  // The view is shown or not; the stream follows.
  show(shown) {
    this.shown = shown;
    this.look();
  }

  look() {
    if (this.shown && !document.hidden)
      this.stream.open();
    else
      this.stream.close();
  }

  // Another key: nothing of what the last one saw stays.
  forget() {
    this.stream.close();
    this.stats = null;
    this.past = [];
    this.body.hidden = true;
    this.look();
  }

  showState(state, detail) {
    this.root.dataset.state = state;
    this.now.hidden = state !== "away";
    if (state === "live")
      setText(this.state, "live");
    else if (state === "away")
      setText(this.state, `No connection. The next attempt is in ${time(detail)}.`);
    else
      setText(this.state, plain(detail.message));
    if (state !== "live") say(this.state.textContent);
    if (state !== "refused") return;
    this.body.hidden = true;
    if (detail.status === 401) this.hooks.needKey(detail);
  }

  take(name, data) {
    if (name !== "stats") return;
    const stats = JSON.parse(data);
    if (this.past.length > 0 && stats.number <= this.past.at(-1).number) this.past = []; // a server that began anew
    this.past.push(stats);
    while (this.past.length > 2 && stats.time_ms - this.past[1].time_ms > WINDOW) this.past.shift();
    this.stats = stats;
    this.refresh();
  }

  update() {
    const {stats} = this;
    if (stats === null) return;
    this.body.hidden = false;
    const own = stats.scope === "own";
    this.title.replaceChildren(own ? "Your requests: " : "Pool", own ? nameNode(stats.tenant) : "");
    setText(
        this.state,
        stats.draining ? "live · the server is shutting down" :
            stats.late ? "live · in a long step: requests are those of before" :
                         "live");
    this.updateFigures();
    this.updatePools();
    this.updateTenants();
    this.updateModels();
    this.updateRequests();
  }

  // How a counter grew per second in the last ten.
  rate(read) {
    const first = this.past[0], last = this.past.at(-1), ms = last.time_ms - first.time_ms;
    return ms > 0 ? Math.max(0, (read(last) - read(first)) / ms * 1000) : 0;
  }

  updateFigures() {
    const {stats, figures} = this, {cache} = stats;
    const sum = (list, key) => (list ?? []).reduce((total, row) => total + (row[key] ?? 0), 0);
    const put = (key, text, value) => {
      figures[key].node.hidden = value === null;
      if (value !== null) figures[key].update(text, value);
    };
    const limit = (value, most) => `${count(value)}${most !== undefined ? ` / ${count(most)}` : ""}`;
    const own = stats.tenants[0],
          queue = stats.queue ??
        {running: own.running, running_max: own.limits.running, waiting: own.waiting, waiting_max: own.limits.waiting};
    put("running", limit(queue.running, queue.running_max), queue.running);
    put("waiting", limit(queue.waiting, queue.waiting_max), queue.waiting);
    const tokens = this.rate((s) => sum(s.tenants, "answer_tokens")), rows = this.rate((s) => sum(s.tenants, "rows"));
    put("tokens", count(tokens), tokens);
    put("rows", count(rows), rows);
    const busy = stats.models.some((model) => model.busy_us !== undefined) ?
        this.rate((s) => sum(s.models, "busy_us")) / 1e4 / Math.max(1, stats.replicas.length) :
        null;
    put("busy", `${count(Math.min(100, busy ?? 0))} %`, busy);
    const tenantsCache = {
      prompt_tokens: sum(stats.tenants, "prompt_tokens"),
      hit_tokens: sum(stats.tenants, "cached_tokens")
    };
    const {prompt_tokens: asked, hit_tokens: hit} = cache ?? tenantsCache;
    put("hits", asked > 0 ? `${(100 * hit / asked).toFixed(0)} %` : "–", asked > 0 ? hit / asked : 0);
  }

  updatePools() {
    const {replicas} = this.stats;
    while (this.replicas.length > replicas.length) this.replicas.pop().node.remove();
    replicas.forEach((replica, i) => {
      if (this.replicas[i] === undefined) {
        this.replicas[i] = new ReplicaView();
        this.pools.append(this.replicas[i].node);
      }
      this.replicas[i].update(replica, replicas.length > 1 ? ` of replica ${i}` : "", this.stats);
    });
  }

  updateTenants() {
    const own = this.stats.scope === "own"; // of itself it would always be all
    const device = this.rate((s) => s.tenants.reduce((total, tenant) => total + (tenant.device_us ?? 0), 0));
    this.tenants.update(
        this.stats.tenants, (tenant) => tenant.name,
        (tenant, i) =>
            [swatch(`hue${i % 8}`, nameNode(tenant.name)),
             tenant.share === undefined ? "" :
                 tenant.active          ? share(tenant.share) :
                                          "–",
             own            ? "" :
                 device > 0 ? share(this.rate((s) => s.tenants[i]?.device_us ?? 0) / device) :
                              "–",
             ofLimit(tenant.running, tenant.limits?.running),
             ofLimit(tenant.waiting, tenant.limits?.waiting),
             ofLimit(tenant.pages, tenant.limits?.pages),
             count(tenant.pages_cached ?? 0),
             count(tenant.prompt_tokens),
             tenant.prompt_tokens > 0 ? `${count(100 * tenant.cached_tokens / tenant.prompt_tokens)} %` : "–",
             count(tenant.answer_tokens),
             count((tenant.refused ?? 0) + (tenant.evicted ?? 0)),
    ]);
  }

  updateModels() {
    this.models.update(
        this.stats.models, (model) => model.name,
        (model, i) =>
            [nameNode(model.name),
             model.broken         ? "its device has failed" :
                 model.canvas > 0 ? `canvases of ${model.canvas}` :
                                    "token by token",
             countOf(model.running),
             countOf(model.waiting),
             countOf(model.steps),
             countOf(model.rows),
             model.busy_us === undefined ?
                 "" :
                 `${count(Math.min(100, this.rate((s) => s.models[i]?.busy_us ?? 0) / 1e4))} %`,
    ]);
  }

  updateRequests() {
    const {stats} = this;
    this.requests.update(
        stats.requests, (request) => request.id,
        (request) =>
            [make("code", {}, plain(request.id.slice(-8))),
             swatch(`hue${request.tenant % 8}`, nameNode(stats.tenants[request.tenant]?.name ?? "")),
             nameNode(stats.models[request.model]?.name ?? ""),
             phaseNode(request),
             `${count(request.prompt)}${request.cached > 0 ? `, ${count(request.cached)} cached` : ""}`,
             bar(request.answer / Math.max(1, request.answer_max),
                 `${count(request.answer)} / ${count(request.answer_max)}`),
             request.kind === "canvas" ? bar(request.step / Math.max(1, request.steps),
                                             `${request.block + 1}: step ${request.step} / ${request.steps}`) :
                                         "",
             time(request.age_ms),
    ]);
    const left = stats.requests_left_out;
    setText(
        this.leftOut,
        stats.requests.length === 0 ? "Nobody is asking." :
            left > 0                ? `${count(left)} more are not listed.` :
                                      "");
  }
}

// One pool with its last steps.
class ReplicaView {
  constructor() {
    this.grid = new PoolGrid();
    this.bars = new StepBars();
    this.title = make("h2");
    this.facts = make("p", {class: "note"});
    this.legend = make("ul", {class: "legend"});
    this.stepTitle = make("h2");
    const kinds = make("ul", {class: "legend"}, ...KINDS.map((kind) => make("li", {}, swatch(kind, kind))));
    this.steps = make(
        "section", {class: "card packed"}, this.stepTitle,
        make("p", {class: "note"}, "rows by kind, and below them how long each step took (dashed: as foretold)"),
        this.bars.node, kinds);
    this.node = make(
        "div", {class: "replica"},
        make("section", {class: "card"}, this.title, this.facts, this.grid.node, this.legend), this.steps);
  }

  update({pool, steps}, of, stats) {
    this.steps.hidden = stats.scope === "own";
    setText(this.title, `Pages${of}`);
    setText(this.stepTitle, `Steps${of}, as packed`);
    const parts = [`${count(pool.pages)} pages of ${bytes(pool.page_bytes)}`];
    for (const key of ["live", "cached", "pinned", "free"])
      if (pool[key] !== undefined) parts.push(`${count(pool[key])} ${key}`);
    if (pool.host?.pages > 0) parts.push(`${count(pool.host.held)} of ${count(pool.host.pages)} in host memory`);
    if (pool.file?.pages > 0) parts.push(`${count(pool.file.held)} of ${count(pool.file.pages)} in the file`);
    setText(this.facts, parts.join(" · "));
    this.grid.update(pool, this.steps.hidden && innerWidth > 760);
    const names =
        pool.owners.map((owner) => (owner.kind === "tenant" ? stats.tenants[owner.tenant]?.name ?? "" : owner.kind));
    const told = JSON.stringify(names);
    if (told !== this.told) {
      this.told = told;
      this.legend.replaceChildren(
          ...pool.owners.map(
              (owner, i) => make(
                  "li", {},
                  swatch(owner.kind === "tenant" ? `hue${owner.tenant % 8}` : owner.kind, nameNode(names[i])))),
          make(
              "li", {class: "states"}, swatch("live nobody", "held"), swatch("cached nobody", "cached"),
              swatch("pinned nobody", "pinned"), swatch("free nobody", "free")));
    }
    if (!this.steps.hidden) this.bars.update(steps);
  }
}

function swatch(name, ...words) {
  return make("span", {class: "key"}, make("span", {class: `swatch ${name}`, "aria-hidden": "true"}), ...words);
}

function share(part) { return bar(part, `${count(100 * part)} %`); }

function bar(part, words) {
  const line = make("span", {class: "level", "aria-hidden": "true"});
  line.style.setProperty("--part", String(Math.min(1, Math.max(0, part))));
  return make("span", {class: "gauge"}, make("span", {}, words), line);
}

// A count that the viewer may see, or nothing.
function countOf(value) { return value === undefined ? "" : count(value); }

function ofLimit(value, limit) { return `${count(value ?? 0)}${limit !== undefined ? ` / ${count(limit)}` : ""}`; }

function phaseNode(request) {
  const words = PHASES[request.phase] ?? plain(request.phase);
  const part = request.phase === "prefill" ? ` ${count(request.computed)} / ${count(request.prompt)}` : "";
  return make(
      "span",
      {class: `phase ${request.kind === "canvas" && request.phase === "denoise" ? "canvas" : plain(request.phase)}`},
      words + part);
}

// A table whose rows stay the same elements while their key is there.
class Table {
  constructor(title, heads) {
    this.rows = new Map();
    this.body = make("tbody");
    this.head = make("thead", {}, make("tr", {}, ...heads.map((name) => make("th", {scope: "col"}, name))));
    this.heads = heads;
    this.node = make(
        "section", {class: `card ${title.toLowerCase()}`}, make("h2", {}, title),
        make(
            "div", {class: "wide", tabindex: "0", role: "region", "aria-label": `${title}, a table`},
            make("table", {}, this.head, this.body)));
  }

  update(list, keyOf, cellsOf) {
    const kept = new Map();
    list.forEach((entry, i) => {
      const key = keyOf(entry), cells = cellsOf(entry, i),
            row = this.rows.get(key) ?? make("tr", {}, ...cells.map(() => make("td")));
      cells.forEach((cell, k) => {
        const place = row.children[k];
        if (typeof cell === "string")
          setText(place, cell);
        else if (place.firstChild === null || !place.firstChild.isEqualNode?.(cell))
          place.replaceChildren(cell);
        place.dataset.head = this.heads[k];
      });
      kept.set(key, row);
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] ?? null);
    });
    for (const [key, row] of this.rows)
      if (!kept.has(key)) row.remove();
    this.rows = kept;
    this.hideEmpty();
  }

  // A column that says nothing of anybody is not there.
  hideEmpty() {
    const rows = Array.from(this.body.children);
    this.head.querySelectorAll("th").forEach((head, k) => {
      const empty = rows.length > 0 && rows.every((row) => row.children[k].textContent === "");
      if (head.hidden === empty) return;
      head.hidden = empty;
    });
    for (const row of rows)
      for (let k = 0; k < row.children.length; k++) row.children[k].hidden = this.head.rows[0].children[k].hidden;
  }
}
