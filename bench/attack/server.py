# SPDX-License-Identifier: MIT
"""A `weft serve` of our own on a free port of 127.0.0.1, with a file of keys, and what can be seen of its process.

Law: it ends with this program, however this program ends."""
import atexit
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict

from client import speaks_tls

DEMO = "model/demo/weft-demo.gguf"
DEMO_AR = "model/demo/weft-demo-ar.gguf"
KEYS = ("operator-key operator", "attacker-key attacker", "victim-key victim")
START_S = 120.0  # generous: a machine with other work may take long


def end_with_parent(parent):
    """In a child process: the kernel ends it when its parent is gone."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def make_certificate(folder):
    """A certificate for this machine, and its key: cert.pem and key.pem in the folder."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-keyout", os.path.join(folder, "key.pem"), "-out", os.path.join(folder, "cert.pem")],
                   check=True, stderr=subprocess.DEVNULL)
    return ["--tls-cert", os.path.join(folder, "cert.pem"), "--tls-key", os.path.join(folder, "key.pem")]


@functools.cache
def tls_options():
    folder = tempfile.TemporaryDirectory(prefix="weft-attack-tls-")
    atexit.register(folder.cleanup)
    return make_certificate(folder.name)


@functools.cache
def models_options(models_mib, keeps):
    """A folder of three models, which come and go; keeps: two of them may leave their weights in host memory."""
    folder = tempfile.TemporaryDirectory(prefix="weft-attack-models-")
    atexit.register(folder.cleanup)
    for name in "abc":
        shutil.copy(DEMO_AR, os.path.join(folder.name, f"load-{name}.gguf"))
    return ("--models-dir", folder.name, "--models-mib", str(models_mib)) + (("--sleep-mib", str(2 * models_mib)) if keeps else ())


class Server:
    def __init__(self, weft, options=(), keys=KEYS, models=(DEMO,), verbose=False, log_to=None):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-attack-")
        self.key_file = os.path.join(self.folder.name, "keys")
        if keys:
            self.write_keys(keys)
        self.log_path = os.path.join(self.folder.name, "log")
        words = [weft, "serve", "--port", "0", "--json", *options] + (["--api-keys", self.key_file] if keys else [])
        words += [w for m in models for w in ("-m", m)] + (["-v"] if verbose else [])
        words += tls_options() if speaks_tls() and "--tls-cert" not in options else []
        parent = os.getpid()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log if log_to is None else log_to,
                                            stdin=subprocess.DEVNULL, preexec_fn=lambda: end_with_parent(parent))
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"attack: {' '.join(words)} did not start:\n{self.log()}")
        self.port = json.loads(line)["port"]

    def write_keys(self, keys):
        with open(self.key_file, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write("\n".join(keys) + "\n")

    def log(self):
        with open(self.log_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def log_bytes(self):
        with open(self.log_path, "rb") as f:
            return f.read()

    @property
    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit_s=START_S):
        """The exit code; None: it still runs."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self):
        """Its exit code after SIGTERM; None: it had to be killed."""
        if self.alive:
            self.signal(signal.SIGTERM)
        code = self.wait()
        if code is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()
        return code

    # What the kernel says of the process.

    def status_mib(self, name):
        with open(f"/proc/{self.process.pid}/status") as f:
            found = re.search(rf"^{name}:\s+(\d+) kB", f.read(), re.M)
        return int(found[1]) / 1024 if found else 0.0  # a process that just ended has none

    @property
    def resident_mib(self):
        return self.status_mib("VmRSS")

    @property
    def peak_mib(self):
        return self.status_mib("VmHWM")

    def forget_peak(self):
        """From now on VmHWM is the peak since this call."""
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as f:
            f.write("5")

    @property
    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def n_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def metrics_of(text):
    """Prometheus text to {name or name{labels}: value}; the sum over labels is at the bare name."""
    values = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("#") or " " not in line:
            continue
        name, value = line.rsplit(" ", 1)
        bare = name.split("{", 1)[0]
        values[name] += float(value)
        if bare != name:
            values[bare] += float(value)
    return values


def wait_for(condition, limit_s=180.0, every_s=0.1):
    """True: the condition came true. The limit only ends what would never end; nothing is judged by how long it took."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True
