// SPDX-License-Identifier: MIT
// The page: which view is shown, the key, the theme. The address says the view (#chat, #chat/ID, #pool), so that going
// back and loading anew lead to what was there.
import {ChatView} from "./chat.js";
import {byId, plain, say, setText, time} from "./dom.js";
import {PoolView} from "./pool.js";
import {keepKey, readKey} from "./wire.js";

const THEMES = ["auto", "light", "dark"];
const FIRST_WAIT = 1000, LONGEST_WAIT = 10000; // ms between two attempts to reach a server that is gone

class Page {
  constructor() {
    const hooks = {
      needKey: (problem) => this.askKey(problem),
      banner: (text) => this.showBanner(text),
      lost: () => this.load()
    };
    this.chat = new ChatView(byId("view-chat"), hooks);
    this.pool = new PoolView(byId("view-pool"), hooks);
    this.wait = FIRST_WAIT;
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.typeKey(event));
    byId("key-button").addEventListener("click", () => this.askKey(null));
    byId("key-dialog").addEventListener("close", () => this.takeKey());
    byId("theme-button").addEventListener("click", () => this.turnTheme());
    this.showTheme(document.documentElement.dataset.theme ?? "auto");
    this.showKey();
    this.route();
    this.load();
  }

  // The models. A server that is not there, or not yet, is asked again, less and less often, until it answers.
  async load() {
    clearTimeout(this.timer);
    const problem = await this.chat.load();
    if (problem === null) {
      if (this.wait > FIRST_WAIT) say("The server answers again.");
      this.wait = FIRST_WAIT;
      this.showBanner("");
    } else if (problem.status === 401)
      this.askKey(problem);
    else {
      this.showBanner(`${problem.message} The next attempt is in ${time(this.wait)}.`);
      this.timer = setTimeout(() => this.load(), this.wait);
      this.wait = Math.min(LONGEST_WAIT, this.wait * 2);
    }
  }

  route() {
    const [view, id] = location.hash.slice(1).split("/");
    const pool = view === "pool";
    byId("view-chat").hidden = pool;
    byId("view-pool").hidden = !pool;
    byId("tab-chat").toggleAttribute("aria-current", false);
    byId("tab-pool").toggleAttribute("aria-current", false);
    byId(pool ? "tab-pool" : "tab-chat").setAttribute("aria-current", "page");
    document.title = pool ? "weft: pool" : "weft";
    this.pool.show(pool);
    if (!pool && (id ?? null) !== this.shownTalk()) this.chat.open(id ?? null);
  }

  shownTalk() { return this.chat.talk.turns.length > 0 ? this.chat.talk.id : null; }

  typeKey(event) {
    if (byId("key-dialog").open) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape" && !byId("view-chat").hidden)
      this.chat.stop();
    else if (event.key === "/" && !typing && !byId("view-chat").hidden) {
      event.preventDefault();
      byId("question").focus();
    }
  }

  // ---- the key

  askKey(problem) {
    const dialog = byId("key-dialog");
    if (dialog.open) return;
    setText(
        byId("key-why"),
        problem === null ? "It is kept until this tab is closed, and sent to this server alone." :
                           plain(problem.message));
    byId("key-field").value = readKey();
    dialog.returnValue = "";
    dialog.showModal();
    byId("key-field").select();
  }

  takeKey() {
    const dialog = byId("key-dialog"), key = byId("key-field").value.trim();
    byId("key-field").value = "";
    if (dialog.returnValue !== "keep" && dialog.returnValue !== "none") return; // closed with Escape
    keepKey(dialog.returnValue === "keep" ? key : "");
    this.showKey();
    this.pool.forget();
    this.load();
  }

  showKey() {
    setText(byId("key-button"), readKey() === "" ? "Key" : "Key ✓");
    byId("key-button").setAttribute("aria-label", readKey() === "" ? "Key: none" : "Key: one is in use");
  }

  // ---- the theme

  turnTheme() {
    const now = document.documentElement.dataset.theme ?? "auto";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "auto")
      delete document.documentElement.dataset.theme;
    else
      document.documentElement.dataset.theme = next;
    localStorage.setItem("weft.theme", next);
    this.showTheme(next);
    say(`Theme: ${next}`);
  }

  showTheme(theme) {
    setText(byId("theme-button"), {auto: "◐ auto", light: "○ light", dark: "● dark"}[theme]);
    byId("theme-button").setAttribute("aria-label", `Theme: ${theme}`);
  }

  showBanner(text) {
    setText(byId("banner"), text);
    byId("banner").hidden = text === "";
  }
}

new Page();
