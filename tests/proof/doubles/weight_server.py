#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A double of an owner of weights for the tests of `weft prove`: it says and does what the runner asks of one
(bench/prove/owner.h), and owns no weights. --without ITEM leaves one thing out or does it wrongly, so that a test sees the
runner notice."""
import argparse
import ctypes
import fcntl
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1

parser = argparse.ArgumentParser(description=__doc__)
for name in ("--folder", "--parent", "--model", "--manifest", "--lock", "--backend"):
    parser.add_argument(name, required=True)
parser.add_argument("--dry-run", action="store_true")
parser.add_argument("--without", default="")
asked = parser.parse_args()


def say(event, **more):
    if event != asked.without:
        print(json.dumps({"event": event, **more}), flush=True)


def stop(_number, _frame):
    raise SystemExit(0)


size = os.path.getsize(asked.model)
if asked.dry_run:
    say("preflight", fits=asked.without != "room", need_bytes=size, free_bytes=size * 2 if asked.without != "room" else 1)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
if asked.without == "start":
    sys.exit("weft: the double was told not to start")
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(asked.parent):
    sys.exit("weft: the process that started this one is gone")
say("support", virtual_memory=True, handles=["file descriptor"])
say("plan", ranges=1, bytes=size)
lock = open(asked.lock, "w", encoding="utf-8")
if asked.without != "held":
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
say("lock", path=asked.lock)
say("guard", parent=int(asked.parent) if asked.without != "parent" else 1)
say("upload", bytes=size, seconds=0.001)
with open(asked.manifest, "w", encoding="utf-8") as manifest:
    json.dump({"version": 1, "model": asked.model, "ranges": [{"at": 0, "bytes": size}]}, manifest)
say("broker", socket=os.path.join(asked.folder, "weights.socket"))
scope = "draft" if asked.without == "scope" else "target"
say("ready", backend="ipc" if asked.without == "backend" else asked.backend, scope=scope, manifest=asked.manifest)
say("request", worker=0, ranges=1)
try:
    if asked.without == "life":
        time.sleep(0.05)
        sys.exit(3)
    while True:
        time.sleep(3600)
finally:
    say("shutdown")
    if asked.without != "manifest":
        os.remove(asked.manifest)
    lock.close()
    if asked.without == "code":
        os._exit(7)
