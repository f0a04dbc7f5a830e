# SPDX-License-Identifier: MIT
"""Draws the views of the page for README and docs: by light and dark on a desk, by light on a phone.

Law: what is drawn is what the server sent; the load that the pool shows is real."""
import http.client
import json
import os
import threading
import time

from server import DEMO, DEMO_AR, Server

KEYS = ("operator-key operator", "search-key search weight=2", "support-key support", "nightly-key nightly class=low")
STORY = "Write 4 sentences with these words: rat lamp mouse wolf"
QUESTIONS = [STORY, "Make a table: Ida 52 Riga; Tom 40 Oslo; Amy 41 Seoul", "List all numbers from 34 to 99.", "Count from 91 to 105.",
             "Follow the links from cat: pig cup; cat pig; cup hat; hat fox; fox owl; owl bee",
             "Write 4 sentences with these words: fox cup boat hen"]
MOST_BYTES = 150 << 10


class Load:
    """Tenants that ask all the time, each with a system prompt of its own."""

    def __init__(self, port):
        self.port, self.on, self.threads = port, True, []
        for tenant, clients in ("search", 4), ("support", 4), ("nightly", 2):
            for i in range(clients):
                self.threads.append(threading.Thread(target=self.ask, args=(tenant, i), daemon=True))
                self.threads[-1].start()

    def ask(self, tenant, i):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        n = 0
        while self.on:
            n += 1
            world = " ".join(f"The {c} {w} is near the {w2} of {tenant}." for c, w, w2 in zip(
                ["red", "blue", "pink", "black"] * 4, ["cup", "key", "box"] * 6, ["lamp", "tree", "door", "boat"] * 4))
            body = {"model": "weft-demo" if n % 5 else "weft-demo-ar", "messages": [{"role": "system", "content": world},
                    {"role": "user", "content": QUESTIONS[(i + n) % len(QUESTIONS)]}], "max_tokens": 128, "ignore_eos": True,
                    "mode": "diffusion" if i % 2 == 0 and n % 5 else "autoregressive"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {tenant}-key"})
            connection.getresponse().read()

    def end(self):
        self.on = False
        for thread in self.threads:
            thread.join(60)


def keep(tab, folder, name):
    path = os.path.join(folder, f"{name}.png")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    time.sleep(0.5)  # fades have ended
    tab.picture(path)
    if os.path.getsize(path) > MOST_BYTES:
        raise RuntimeError(f"{path} has {os.path.getsize(path)} bytes")
    print(f"page: {path}")


def draw(tab, folder, name, themes=("light", "dark")):
    for theme in themes:
        tab.prefer(prefers_color_scheme=theme)
        keep(tab, folder, f"{name}-{theme}")


def draw_all(world, folder):
    from page import ask, ended
    os.makedirs(folder, exist_ok=True)
    server = Server(world.weft, keys=KEYS, models=(DEMO, DEMO_AR), options=("--kv-mib", "20", "--running", "16"))
    url = f"http://127.0.0.1:{server.port}/"
    try:
        context = world.browser.context()
        tab = world.visit("search-key", context=context, url=url)
        ask(tab, "Make a table: Ida 52 Riga; Tom 40 Oslo; Amy 41 Seoul", model="weft-demo", mode="diffusion")
        ended(tab)
        tab.click(".new")
        ask(tab, "What is 58 + 37?", mode="autoregressive")
        ended(tab)
        tab.click(".new")
        ask(tab, STORY, mode="diffusion")
        ended(tab)
        tab.value("(() => { const s = document.querySelector('.canvas input'); s.value = Math.round(s.max * 0.55); s.dispatchEvent(new Event('input')); })()")
        draw(tab, folder, "chat")
        place = tab.value("location.hash")
        phone = world.visit("search-key", context=context, url=url, place=place, width=390, height=844, phone=True)
        phone.wait("document.querySelector('.cells') !== null", "the conversation is there")
        phone.value("(() => { const s = document.querySelector('.canvas input'); s.value = Math.round(s.max * 0.55); s.dispatchEvent(new Event('input')); })()")
        draw(phone, folder, "chat-phone", ("light",))
        load = Load(server.port)
        for key, name in ("operator-key", "pool"), ("search-key", "tenant"):
            desk = world.visit(key, url=url, place="#pool", height=1240)
            desk.wait("document.querySelectorAll('.requests tbody tr').length > 0", "somebody asks")
            time.sleep(12)
            draw(desk, folder, name)
            desk.close()
        for key, name in ("operator-key", "pool-phone"), ("search-key", "tenant-phone"):
            phone = world.visit(key, url=url, place="#pool", width=390, height=844, phone=True)
            time.sleep(6)
            draw(phone, folder, name, ("light",))
            phone.close()
        load.end()
    finally:
        server.stop()
