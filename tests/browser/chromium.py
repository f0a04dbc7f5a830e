# SPDX-License-Identifier: MIT
"""A headless Chromium that a test drives by the DevTools protocol, over a pipe, with Python's own library alone.

Law: every wait is bounded and names what it waited for; what a page asked of the network and said on its console is kept, so
that a test can hold the page to it."""
import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

PATIENCE = 60.0  # seconds: for what hangs; nothing is judged by it
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowLeft": (37, ""), "ArrowRight": (39, ""), "ArrowUp": (38, ""),
        "ArrowDown": (40, ""), "Home": (36, ""), "End": (35, ""), " ": (32, " ")}


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Failed(Exception):
    pass


class Browser:
    def __init__(self, program):
        self.home = tempfile.mkdtemp(prefix="weft-page-")
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        self.lock, self.last, self.answers, self.tabs = threading.Lock(), 0, {}, {}

        def pass_pipes():  # Chromium reads commands from descriptor 3 and answers on 4
            low, high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(low, 3, True)
            os.dup2(high, 4, True)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.home}", "--disable-gpu", "--no-first-run",
                 "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-renderer-backgrounding",
                 "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # its sandbox does not run for root
        self.process = subprocess.Popen([program, *flags, "about:blank"], preexec_fn=pass_pipes, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        kept = b""
        while True:
            try:
                came = os.read(self.read, 1 << 20)
            except OSError:
                came = b""
            if not came:
                for place in list(self.answers.values()):
                    place.put({"error": {"message": "the browser has ended"}})
                return
            *whole, kept = (kept + came).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    place = self.answers.pop(message["id"], None)
                    if place:
                        place.put(message)
                elif message.get("sessionId") in self.tabs:
                    self.tabs[message["sessionId"]].hear(message["method"], message["params"])

    def call(self, method, params=None, session=None):
        place = queue.Queue()
        with self.lock:
            self.last += 1
            message = {"id": self.last, "method": method, "params": params or {}}
            if session:
                message["sessionId"] = session
            self.answers[self.last] = place
            os.write(self.write, json.dumps(message).encode() + b"\0")
        try:
            answer = place.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"{method}: no answer in {PATIENCE:.0f} s") from None
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def context(self):
        """A profile of its own: another browser, as far as a page can tell."""
        return self.call("Target.createBrowserContext")["browserContextId"]

    def tab(self, context, width=1280, height=800, phone=False, scale=1):
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})
        session = self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})["sessionId"]
        tab = Tab(self, session, target["targetId"])
        self.tabs[session] = tab
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility", "DOM"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        return tab

    def close(self):
        try:
            self.call("Browser.close")
        except (Failed, OSError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


class Tab:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target
        self.problems, self.requests, self.dialogs = [], [], []

    def call(self, method, **params):
        return self.browser.call(method, params, self.session)

    def hear(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(params["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", f"{url} is loaded")

    def value(self, expression):
        """The value of a JavaScript expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Failed(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, expression, what):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                value = self.value(expression)
            except Failed as failure:  # a page that is being loaded
                value, last = None, failure
            else:
                last = value
            if value:
                return value
            if time.monotonic() > end:
                raise Failed(f"waited in vain until {what} (last: {last})")
            time.sleep(0.02)

    def click(self, selector):
        place = self.wait(f"""(() => {{
            const node = document.querySelector({json.dumps(selector)});
            if (!node || node.disabled) return null;
            node.scrollIntoView({{block: "nearest", behavior: "instant"}});
            const box = node.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
            const top = document.elementFromPoint(x, y);
            return box.width > 0 && top && (node.contains(top) || top.contains(node)) ? [x, y] : null; }})()""", f"{selector} can be clicked")
        for kind in "mouseMoved", "mousePressed", "mouseReleased":
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, selector, text):
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null", f"there is {selector}")
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        more = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def tree(self):
        """The nodes of the accessibility tree that a screen reader meets."""
        return [node for node in self.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]

    def prefer(self, **features):
        self.call("Emulation.setEmulatedMedia", features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.browser.call("Target.closeTarget", {"targetId": self.target})
