#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The page in a headless Chromium, with both demo models: tests/browser/page.py WEFT [--pictures FOLDER] [--only NAME].

Law: nothing is judged by time. After all, no page has asked anything of a host that is not ours, nor said an error on its console
that its test did not expect. With --pictures the views are drawn into a folder instead."""
import argparse
import json
import os
import signal
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "bench", "attack")]
import chromium
from proxy import Proxy
from server import DEMO, DEMO_AR, Server

KEYS = ("operator-key operator weight=2", "red-key red", "blue-key blue weight=2")
STORY = "Write 4 sentences with these words: rat lamp mouse wolf"
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&lt;b&gt;"
TURNED = "\u202etxet\u202c \u2066x\u2069"
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}
CONTROLS = {"button", "link", "textbox", "combobox", "slider", "checkbox", "spinbutton", "image", "DisclosureTriangle"}

# What a test reads of the page.
ANSWER = "[...document.querySelectorAll('.answer')].at(-1)"
TEXT = f"{ANSWER}.querySelector(':scope > .text:not(.draft)').textContent.trim()"
CELLS = "[...[...document.querySelectorAll('.cells')].at(-1).children].map(c => c.className.replace(' chosen', '') + '|' + c.innerText).join(' ')"
IDLE = "document.querySelector('#send').textContent === 'Ask'"


class World:
    def __init__(self, weft):
        self.weft = weft
        self.server = Server(weft, keys=KEYS, models=(DEMO, DEMO_AR))
        self.proxy = Proxy(self.server.port)
        self.browser = chromium.Browser(chromium.find())
        self.open_tabs, self.expected = [], {}

    def visit(self, key="operator-key", context=None, place="", url=None, expect=(), before=None, **size):
        """A page with a key, ready to be asked. expect: words of console messages that this test provokes."""
        tab = self.browser.tab(context or self.browser.context(), **size)
        self.open_tabs.append(tab)
        self.expected[tab] = expect
        script = f"sessionStorage.setItem('weft.key', {json.dumps(key)});" if key else ""
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=f"if (self === top) {{ {script} }} {before or ''}")
        tab.go((url or self.proxy.url) + place)
        if key:
            tab.wait("document.querySelector('#model').options.length > 0", "the models are listed")
        return tab

    def close(self):
        self.browser.close()
        self.server.stop()


def ask(tab, text, mode=None, model=None):
    if model:
        choose(tab, "#model", model)
    if mode:
        choose(tab, "#mode", mode)
    tab.type("#question", text)
    tab.press("Enter")
    tab.wait("document.querySelector('#send').textContent === 'Stop' || document.querySelector('.answer .took').textContent !== ''", "it is asked")


def choose(tab, selector, value):
    tab.value(f"(() => {{ const s = document.querySelector('{selector}'); s.value = '{value}'; s.dispatchEvent(new Event('change', {{bubbles: true}})); }})()")


def ended(tab):
    tab.wait(IDLE, "the answer has ended")
    return tab.value(TEXT)


def expect(what, got, wanted):
    if got != wanted:
        raise chromium.Failed(f"{what}: {got!r}, not {wanted!r}")


FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


def let_until(world, tab, condition):
    """Lets events of an answer go, one at a time, until the page shows what is waited for."""
    gate, end = world.proxy.gate, time.monotonic() + chromium.PATIENCE
    while not tab.value(condition):
        if time.monotonic() > end:
            raise chromium.Failed(f"waited in vain until {condition}")
        if gate.passed >= gate.allowed:
            gate.let(1)
        tab.value(FRAMES)


# ---- the tests: each is a function of the world

def test_canvas(world):
    """A canvas is seen to change, step by step, and its steps are found again; behind a path."""
    tab = world.visit()
    world.proxy.gate.hold()
    ask(tab, STORY, model="weft-demo", mode="diffusion")
    seen = [tab.wait(CELLS, "there is a canvas")]
    world.proxy.gate.let(1)  # the role
    for step in range(1, 6):
        world.proxy.gate.let(1)
        tab.wait(f"document.querySelector('details.canvas > summary').dataset.more.startsWith('{step} step')", f"step {step} is shown")
        tab.value(FRAMES)
        seen.append(tab.value(CELLS))
    changes = sum(a != b for a, b in zip(seen, seen[1:]))
    if changes < 3:
        raise chromium.Failed(f"the canvas changed {changes} times in five steps")
    world.proxy.gate.open()
    text = ended(tab)
    states = tab.value("[...document.querySelectorAll('.cell')].map(c => c.classList.contains('accepted') || c.classList.contains('after'))")
    expect("every position is accepted", all(states) and len(states) == 32, True)
    tab.value("document.querySelector('.canvas input[type=range]').focus()")
    tab.press("Home")
    expect("before the first step all is noise", tab.value(CELLS), seen[0])
    for step in range(1, 6):
        tab.press("ArrowRight")
        expect(f"step {step} is found again", tab.value(CELLS), seen[step])
    tab.press("End")
    words = tab.value("[...document.querySelectorAll('.cell.accepted:not(.after) .word')].map(w => w.textContent)")
    if "".join(words).replace("␣", "") != text.replace(" ", ""):
        raise chromium.Failed(f"the last step says {words}, the answer {text!r}")
    tab.value("document.querySelector('.cells').focus()")
    tab.press("ArrowRight")
    tab.wait("document.querySelector('.readout').textContent.startsWith('position 0 · most likely')", "a position is read out")


def test_blocks(world):
    """Each canvas of an answer has its own strip; figures of what it took."""
    tab = world.visit()
    ask(tab, "List all numbers from 34 to 49.", model="weft-demo", mode="diffusion")
    expect("the answer", ended(tab), " ".join(map(str, range(34, 50))))
    expect("canvases with a slider", tab.value("document.querySelectorAll('.answer details.canvas input[type=range]').length"), 2)
    facts = tab.value(f"{ANSWER}.querySelector('.took').textContent")
    for word in "47 tokens", "2 canvases", "steps", "first after", "tokens/s":
        if word not in facts:
            raise chromium.Failed(f"{word} is not in {facts!r}")


def stop_and_go_on(world, mode):
    tab = world.visit()
    tab.click("#more")
    tab.type("#setting-temperature", "0")
    tab.type("#setting-seed", "5")
    tab.click("#more")
    world.proxy.gate.hold()
    ask(tab, "List all numbers from 34 to 49.", model="weft-demo", mode=mode)
    let_until(world, tab, "document.querySelector('.answer > .text:not(.draft)').textContent.length >= 8")
    if mode == "diffusion":
        tab.click("#send")
    else:
        tab.press("Escape")
    begun = ended(tab)
    world.proxy.gate.open()
    if not begun or "stopped" not in tab.value(f"{ANSWER}.querySelector('.took').textContent"):
        raise chromium.Failed(f"it is not stopped: {begun!r}")
    tab.click(".answer button[aria-label='Continue this answer']")
    whole = ended(tab)
    if not whole.startswith(begun) or not whole.endswith("48 49"):
        raise chromium.Failed(f"{begun!r} goes on as {whole!r}")
    expect("turns", tab.value("document.querySelectorAll('.turn').length"), 2)


def test_stop_diffusion(world):
    stop_and_go_on(world, "diffusion")


def test_stop_autoregressive(world):
    stop_and_go_on(world, "autoregressive")


def test_edit_reload_tabs(world):
    """A question is edited; what was said is there after a reload and in another tab, which hears of more."""
    context = world.browser.context()
    tab = world.visit(context=context)
    ask(tab, "What is 58 + 37?", model="weft-demo-ar")
    expect("the answer", ended(tab), "95")
    tab.press("ArrowUp")  # in the empty field: the last question
    tab.wait("document.activeElement.closest('.editor') !== null", "the question can be edited")
    tab.value("document.activeElement.select()")
    tab.call("Input.insertText", text="What is 72 - 17?")
    tab.press("Enter")
    tab.wait(f"{IDLE} && {TEXT} === '55'", "the edited question is answered")
    expect("turns", tab.value("document.querySelectorAll('.turn').length"), 2)
    tab.call("Page.reload")
    tab.wait(f"document.querySelector('.answer') !== null && {TEXT} === '55'", "the conversation is there after a reload")
    tab.wait("document.querySelector('#model').value === 'weft-demo-ar'", "its model is chosen again")
    other = world.visit(context=context)
    other.click(".talks a")
    other.wait(f"document.querySelector('.answer') !== null && {TEXT} === '55'", "another tab shows it")
    ask(tab, STORY, model="weft-demo", mode="diffusion")
    text = ended(tab)
    other.wait(f"document.querySelectorAll('.turn').length === 4 && {TEXT} === {json.dumps(text)}", "another tab hears of more")
    other.wait("document.querySelector('details.canvas input[type=range]').max >= 3", "with its canvas")
    other.click(".talks .drop")
    tab.wait("document.querySelectorAll('.talks li').length === 0", "the list of the other tab follows")
    other.click(".undo button")
    tab.wait("document.querySelectorAll('.talks li').length === 1", "and back")


def test_reload_midway(world):
    """A page that is loaded anew in the middle of an answer has what was there, and can go on with it; so can another tab."""
    context = world.browser.context()
    tab = world.visit(context=context)
    world.proxy.gate.hold()
    ask(tab, STORY, model="weft-demo", mode="diffusion")
    kept = "Object.values(localStorage).filter(v => v.includes('\"turns\"')).map(v => JSON.parse(v).turns.at(-1).draft)[0]"
    for _ in range(20):  # it is kept every two seconds while it grows
        world.proxy.gate.let(1)
        tab.value("new Promise(done => setTimeout(() => done(true), 200))")
        begun = tab.value(kept)
        if begun:
            break
    else:
        raise chromium.Failed("an answer that grows is not kept")
    other = world.visit(context=context, place=tab.value("location.hash"))
    other.wait(f"document.querySelector('.answer') !== null && {TEXT} === {json.dumps(begun.strip())}", "another tab has what was kept")
    shown = tab.value("document.querySelector('.answer .draft').textContent.trim()")
    tab.call("Page.reload")
    tab.wait(f"document.querySelector('.answer') !== null && {TEXT} === {json.dumps(shown)}", "what was there is there again")
    world.proxy.gate.open()
    tab.wait("document.querySelector('#model').options.length > 0", "the models are listed")
    tab.click(".answer button[aria-label='Continue this answer']")
    tab.wait(f"{IDLE} && {ANSWER}.querySelector('.took').textContent.includes('tokens')", "it goes on")
    expect("how it begins", tab.value(TEXT).startswith(shown), True)


def test_formats_tools(world):
    """Tools are declared, called, given a result; a schema holds the answer; what is no JSON is said and not asked."""
    tab = world.visit()
    tab.click("#more")
    tab.type("#setting-tools", "[{")
    ask_refused = "document.querySelector('#problem-tools').textContent"
    tab.type("#question", "What is the weather in Oslo?")
    tab.press("Enter")
    tab.wait(f"{ask_refused}.includes('no JSON')", "the field says what is wrong")
    expect("turns", tab.value("document.querySelectorAll('.turn').length"), 0)
    tab.value("document.querySelector('#setting-tools').value = ''")
    tab.type("#setting-tools", json.dumps(TOOLS))
    choose(tab, "#model", "weft-demo-ar")
    tab.value("document.querySelector('#question').focus()")
    tab.press("Enter")
    tab.wait(f"{IDLE} && document.querySelector('.calling .name')?.textContent === 'weather'", "the tool is called")
    expect("the call is folded", tab.value("document.querySelector('.calling details').open"), False)
    tab.type(".calling textarea", "cold")
    tab.click(".answer > button.main")
    tab.wait(f"{IDLE} && document.querySelectorAll('.answer').length === 2", "the result is answered")
    expect("the answer", tab.value(TEXT), "The weather in Oslo is cold.")
    tab.click(".new")
    tab.type("#setting-format", json.dumps(SCHEMA))
    ask(tab, "What is 72 - 17? Answer as JSON.")
    expect("the answer", json.loads(ended(tab)), {"answer": 55})


def chunk(**delta):
    return {"model": "m", "mode": "diffusion", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def test_hostile_text(world):
    """Markup, scripts and marks of direction are text: in questions, answers, thinking, canvases, calls, models and tenants."""
    model = {"id": MARKUP + TURNED, "architecture": MARKUP, "canvas": 2, "chat": True, "diffusion": True, "autoregressive": True, "max_model_len": 9}
    world.proxy.can("/v1/models", "application/json", json.dumps({"data": [model]}))
    world.proxy.can_answer(
        ("replace", {"index": 0, "block": 0, "step": 0, "text": MARKUP, "accepted": 1, "positions": 2, "stopped": True, "temperature": 0.5,
                     "mean_entropy": 0.5, "steps": 3, "end": 2, "pieces": [MARKUP, TURNED], "drawn": [None, MARKUP], "noise": [None, MARKUP],
                     "entropy": [0.1, 0.2]}),
        chunk(reasoning_content=MARKUP + TURNED), chunk(content=f"{MARKUP}\n\n```{MARKUP}\n{MARKUP}\n```\n- **{MARKUP}**\n| {MARKUP} |\n{TURNED}"),
        chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": MARKUP + TURNED, "arguments": MARKUP}}]), LAST, "[DONE]")
    stats = {"object": "stats", "scope": "own", "tenant": MARKUP + TURNED, "period_ms": 250, "time_ms": 1, "number": 1, "late": False, "draining": False,
             "models": [{"name": MARKUP, "canvas": 2, "context": 9, "broken": False}],
             "tenants": [{"name": MARKUP + TURNED, "weight": 1, "class": 0, "share": 1, "active": True, "limits": {}, "running": 1, "waiting": 0, "pages": 1,
                          "pages_cached": 0, "submitted": 1, "finished": 0, "prompt_tokens": 1, "cached_tokens": 0, "answer_tokens": 1, "rows": 1, "device_us": 1}],
             "requests": [{"id": MARKUP, "tenant": 0, "model": 0, "replica": 0, "kind": MARKUP, "phase": MARKUP, "prompt": 1, "cached": 0, "computed": 1,
                           "answer": 1, "answer_max": 2, "preemptions": 0, "age_ms": 1}],
             "requests_left_out": 0, "replicas": [{"pool": {"pages": 1, "page_bytes": 1, "live": 1, "owners":
             [{"kind": "tenant", "tenant": 0}], "grid": {"pages_per_cell": 1, "cells": 1, "runs": [[2, 0, 1]]}}}]}
    world.proxy.can("/stats/stream", "text/event-stream", f"event: stats\ndata: {json.dumps(stats)}\n\n")
    try:
        tab = world.visit()
        ask(tab, MARKUP + TURNED)
        ended(tab)
        tab.value("document.querySelectorAll('details').forEach(d => d.open = true)")
        shown = tab.value("document.querySelector('#view-chat').textContent")
        tab.value("location.hash = '#pool'")
        tab.wait("document.querySelector('.pool tbody tr') !== null", "the pool is shown")
        shown += tab.value("document.querySelector('#view-pool').textContent")
        if shown.count(MARKUP) < 10:
            raise chromium.Failed(f"markup is not shown as text: {shown.count(MARKUP)} times in {shown}")
        expect("elements that the text became", tab.value("document.querySelectorAll('main img, main script, main b, main iframe').length"), 0)
        expect("the title", tab.value("document.title"), "weft: pool")
        for place in ".who bdi", ".calling .name", ".pool td bdi", ".pool h1 bdi", "#model option":
            name = tab.value(f"document.querySelector({json.dumps(place)}).textContent")
            if "\\u202e" not in name and "\u202e" in name:
                raise chromium.Failed(f"{place}: a name turns the direction of its line: {name!r}")
        if "\u202e" not in shown or "\\u202e" not in shown:
            raise chromium.Failed("the marks of direction are lost")
    finally:
        world.proxy.canned.clear()


def test_megabyte(world):
    """A very long answer, with and without lines: all of it is there, in blocks of bounded size, and it can still be typed."""
    lines = ["word " * 12 + "\n" for _ in range(9000)]
    pieces = lines + ["```\n"] + ["code line\n"] * 9000 + ["```\n\n"] + ["x" * 5000] * 90
    text = "".join(pieces)
    world.proxy.can_answer(*(chunk(content=piece) for piece in pieces), LAST, "[DONE]")
    try:
        tab = world.visit()
        begun = time.monotonic()
        ask(tab, "long")
        tab.type("#question", "next")
        tab.wait(IDLE, "the answer has ended")
        took = time.monotonic() - begun
        letters = tab.value(f"{ANSWER}.querySelector(':scope > .text').textContent.replace(/\\s/g, '').length")
        expect("letters", letters, len("".join(text.replace("```", "").split())))
        most = tab.value(f"Math.max(...[...{ANSWER}.querySelectorAll(':scope > .text > *')].map(b => b.textContent.length))")
        if most > 9000:
            raise chromium.Failed(f"a block has {most} characters")
        expect("what was typed meanwhile", tab.value("document.querySelector('#question').value"), "next")
        print(f"page: an answer of {len(text)} characters was read and shown in {took:.1f} s")
    finally:
        world.proxy.canned.clear()


def test_no_room(world):
    """A browser whose storage is full shows the answer and says that it is not kept; with little room the oldest canvases go."""
    tab = world.visit()
    most = tab.value("""(() => { let n = 1 << 22;
        for (let step = 1 << 22; step >= 64; step >>= 1) try { localStorage.setItem('fill', 'x'.repeat(n)); n += step; } catch { n -= step; }
        localStorage.setItem('fill', 'x'.repeat(n - 64)); return n - 64; })()""")
    ask(tab, "What is 58 + 37?", model="weft-demo", mode="diffusion")
    expect("the answer", ended(tab), "95")
    tab.wait("document.querySelector('#banner').textContent.includes('storage is full')", "it is said that there is no room")
    tab.value(f"localStorage.setItem('fill', 'x'.repeat({most - 8000}))")
    for question in STORY, "What is 72 - 17?":
        ask(tab, question)
        answer = ended(tab)
    expect("the banner", tab.value("document.querySelector('#banner').hidden"), True)
    tab.call("Page.reload")
    tab.wait(f"document.querySelectorAll('.answer').length === 3 && {TEXT} === '55'", "the conversation was kept")
    expect("the answer", answer, "55")
    canvases = tab.value("[...document.querySelectorAll('.answer')].map(a => a.querySelectorAll('details.canvas').length)")
    expect("the oldest canvases go", canvases, [0, 0, 1])


def test_wrong_clock(world):
    """A clock that stands still in 1970 changes neither the order of conversations nor the times that are shown."""
    tab = world.visit(before="Date.now = () => 0;")
    for question in "What is 58 + 37?", "What is 72 - 17?":
        ask(tab, question, model="weft-demo-ar")
        ended(tab)
        facts = tab.value(f"{ANSWER}.querySelector('.took').textContent")
        if "-" in facts or "NaN" in facts or "first after 0 ms" in facts:
            raise chromium.Failed(facts)
        tab.click(".new")
    titles = tab.value("[...document.querySelectorAll('.talks a')].map(a => a.textContent)")
    expect("the newest is first", titles, ["What is 72 - 17?", "What is 58 + 37?"])


def pool(world, key, **more):
    tab = world.visit(key, place="#pool", **more)
    tab.wait("document.querySelector('.stats').hidden === false", f"the pool is shown to {key}")
    return tab


def test_tenants(world):
    """The operator sees all tenants' requests alive, a tenant its own alone."""
    world.proxy.gate.open()
    asker = world.visit("red-key")
    tabs = {key: pool(world, f"{key}-key") for key in ("operator", "red", "blue")}
    slow = "Write 4 sentences with these words: " + " ".join(["rat lamp mouse wolf fox hen cow pig"] * 8)
    rows = "[...document.querySelectorAll('.requests tbody tr')].map(r => r.innerText)"
    ask(asker, slow, model="weft-demo", mode="diffusion")
    tabs["operator"].wait("document.querySelector('.tenants tbody').innerText.includes('red')", "the operator sees the tenant")
    ended(asker)
    tokens = "[...document.querySelectorAll('.tenants tbody tr')].find(r => r.innerText.includes('red')).children[9].textContent"
    for key in "operator", "red":
        tabs[key].wait(f"Number({tokens}.replace(',', '')) > 0", f"{key} sees the tokens of red")
    blue = tabs["blue"].value("document.querySelector('#view-pool').innerText")
    if "red" in blue.replace("shared", "").split() or "operator" in blue:
        raise chromium.Failed(f"blue sees of others: {blue}")
    expect("tenants that red sees", tabs["red"].value("document.querySelectorAll('.tenants tbody tr').length"), 1)
    expect("requests that blue sees", tabs["blue"].value(f"{rows}.length"), 0)
    expect("tenants that the operator sees", tabs["operator"].value("document.querySelectorAll('.tenants tbody tr').length"), 3)
    if tabs["operator"].value("document.querySelectorAll('.bars path[d^=M]').length") < 1:
        raise chromium.Failed("the operator sees no step")


def test_key_taken(world):
    """A key is asked for where none is known, is kept for the tab, and one that is taken away is asked for again."""
    tab = world.visit(key=None, expect=("401",))
    tab.wait("document.querySelector('#key-dialog').open", "a key is asked for")
    tab.type("#key-field", "wrong")
    tab.press("Enter")
    tab.wait("!document.querySelector('#key-dialog').open || document.querySelector('#key-why').textContent.includes('key')", "it is refused")
    tab.wait("document.querySelector('#key-dialog').open", "it is asked for again")
    tab.value("document.querySelector('#key-field').select()")
    tab.type("#key-field", "blue-key")
    tab.press("Enter")
    tab.wait("document.querySelector('#model').options.length === 2", "the models are there")
    tab.value("location.hash = '#pool'")
    tab.wait("document.querySelector('.pool').dataset.state === 'live'", "the pool is live")
    expect("where the key is kept", tab.value("JSON.stringify(localStorage).includes('blue-key')"), False)
    world.server.write_keys([line for line in KEYS if not line.startswith("blue-key")] + ["other-key blue weight=2"])
    world.server.signal(signal.SIGHUP)
    tab.wait("document.querySelector('#key-dialog').open", "the key is asked for again")
    expect("what is left of what it saw", tab.value("document.querySelector('.stats').hidden"), True)
    tab.press("Escape")
    tab.value("location.hash = '#chat'")
    tab.type("#question", "What is 58 + 37?")
    tab.press("Enter")
    tab.wait("document.querySelector('#key-dialog').open", "a question asks for the key, too")
    world.server.write_keys(KEYS)
    world.server.signal(signal.SIGHUP)


def test_restart(world):
    """The server ends under the page and comes back: a line says so, and all goes on by itself."""
    server = Server(world.weft, keys=(), models=(DEMO,))
    url = f"http://127.0.0.1:{server.port}/"
    more = ("--port", str(server.port))
    chat, watch = (world.visit(key=None, url=url, place=place, expect=("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "503")) for place in ("", "#pool"))
    chat.wait("document.querySelector('#model').options.length > 0", "the models are listed")
    watch.wait("document.querySelector('.pool').dataset.state === 'live'", "the pool is live")
    server.stop()
    watch.wait("document.querySelector('.state').textContent.startsWith('No connection')", "a line says that the server is gone")
    chat.type("#question", "What is 58 + 37?")
    chat.press("Enter")
    chat.wait("document.querySelector('.banner').textContent.includes('cannot be reached')", "a line says that it cannot be reached")
    server = Server(world.weft, keys=(), models=(DEMO,), options=more)
    try:
        watch.wait("document.querySelector('.pool').dataset.state === 'live'", "the pool is live again")
        chat.wait("document.querySelector('.banner').hidden", "the line goes away")
        chat.click(".answer button[aria-label='Ask for this answer again']")
        expect("the answer", ended(chat), "95")
    finally:
        server.stop()


def test_names_and_keys(world):
    """Every control has a name for a screen reader and is reached with the keyboard; motion is left out where that is wished."""
    tab = world.visit()
    ask(tab, "List all numbers from 34 to 49.", model="weft-demo", mode="diffusion")
    ended(tab)
    tab.click("#more")
    chat = named(tab, "chat")
    for role in "button", "textbox", "combobox", "slider", "checkbox", "spinbutton", "link":
        if role not in chat:
            raise chromium.Failed(f"the chat has no {role} for a screen reader: {sorted(chat)}")
    tab.click("#key-button")
    named(tab, "key")
    tab.press("Escape")
    reached = set()
    tab.value("document.querySelector('#tab-chat').focus()")
    for _ in range(45):
        tab.press("Tab")
        reached.add(tab.value("document.activeElement.id || document.activeElement.className"))
    for name in "question", "model", "mode", "more", "send", "cells", "setting-seed", "theme-button":
        if name not in reached:
            raise chromium.Failed(f"{name} is not reached with Tab: {sorted(reached)}")
    tab.value("document.querySelector('#more').focus()")
    tab.press("Tab")
    expect("the focus is seen", tab.value("getComputedStyle(document.activeElement).outlineStyle"), "solid")
    tab.prefer(prefers_reduced_motion="reduce")
    expect("motion", tab.value("getComputedStyle(document.querySelector('.cell')).transitionDuration"), "0s")
    tab.value("location.hash = '#pool'")
    tab.wait("document.querySelector('.grid path') !== null", "the pool is shown")
    named(tab, "pool")


# The least contrast of texts that are shown with the background behind them, as WCAG has it, and whose it is.
CONTRAST = """(() => {
    const read = (text) => (text.match(/^rgba?\\(([^)]+)\\)/) || [0, ""])[1].split(",").map(Number);
    const light = (c) => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const c = read(getComputedStyle(at).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll(".who *, .took, .facts dt, .facts dd, .quiet, .talks a, th, .note, .figure dt, .state, .legend, .words, .main")]
        .filter(node => node.getClientRects().length > 0 && node.textContent.trim() !== "" && !node.disabled).map(node => {
            const [a, b] = [light(read(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
            return [(a + 0.05) / (b + 0.05), node.className || node.tagName];
        }).sort((x, y) => x[0] - y[0])[0]; })()"""


def test_contrast(world):
    """Small text can be read by day and by night, in both views."""
    tab = world.visit()
    ask(tab, "What is 58 + 37?", model="weft-demo", mode="diffusion")
    ended(tab)
    for place in "#chat", "#pool":
        if place == "#pool":
            tab.value("location.hash = '#pool'")
            tab.wait("document.querySelector('.grid path') !== null", "the pool is shown")
        for theme in "light", "dark":
            tab.prefer(prefers_color_scheme=theme)
            ratio, whose = tab.value(CONTRAST)
            if ratio < 4.5:
                raise chromium.Failed(f"{place} {theme}: {whose} has a contrast of {ratio:.2f}, below 4.5")


def named(tab, view):
    roles = set()
    for node in tab.tree():
        role = node["role"]["value"]
        if role in CONTROLS:
            roles.add(role)
            if not node.get("name", {}).get("value", "").strip():
                raise chromium.Failed(f"{view}: a {role} has no name: {node}")
    return roles


def test_first_paint(world):
    """A figure, not a judgement."""
    tab = world.visit(url=f"http://127.0.0.1:{world.server.port}/")
    paint = tab.wait("performance.getEntriesByName('first-contentful-paint')[0]?.startTime", "something is painted")
    print(f"page: first paint after {paint:.0f} ms")


def check_requests(world):
    ours = {f"http://127.0.0.1:{port}" for port in (world.server.port, world.proxy.server_address[1])}
    for tab in world.open_tabs:
        for url in tab.requests:
            if "ERR_CONNECTION" in world.expected[tab] and url.startswith("http://127.0.0.1:"):
                continue
            if not any(url.startswith(origin + "/") for origin in ours):
                raise chromium.Failed(f"a request to {url}")
            if url.startswith(f"http://127.0.0.1:{world.proxy.server_address[1]}") and not url.startswith(world.proxy.url):
                raise chromium.Failed(f"a request beside the proxy's path: {url}")


def check_console(world):
    for tab in world.open_tabs:
        for problem in tab.problems:
            if not any(word in problem for word in world.expected[tab]):
                raise chromium.Failed(problem)
        if tab.dialogs:
            raise chromium.Failed(f"a dialog: {tab.dialogs}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("--pictures")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if chromium.find() is None:
        print("page: Chromium is not installed: left out")
        return 77
    world = World(os.path.abspath(options.weft))
    tests = [(name, f) for name, f in globals().items() if name.startswith("test_") and options.only in name]
    tests += [("requests", check_requests), ("console", check_console)]
    if options.pictures:
        from pictures import draw_all
        tests = [("pictures", lambda w: draw_all(w, options.pictures))]
    failed = 0
    try:
        for name, test in tests:
            begun = time.monotonic()
            try:
                test(world)
                print(f"ok {name} {time.monotonic() - begun:.1f} s", flush=True)
            except Exception:  # the next test is run all the same
                failed += 1
                print(f"failed {name}", flush=True)
                traceback.print_exc()
            world.proxy.gate.open()
    finally:
        world.close()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
