#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plays the sessions of programs.py against a server of both demo models: play.py WEFT [PROGRAM ...]

Each session is played by both ways of writing, and token by token by one of two models in turn: by both in the nightly amount. Prints `N passed, N failed`."""
import os
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(ROOT, "bench", "attack")]
from programs import PROGRAMS
from server import Server
from talk import Talk

MODELS = ("weft-demo:diffusion", "weft-demo:autoregressive", "weft-demo-ar")
NIGHTLY = os.environ.get("DEV_AMOUNT") == "nightly"
TEMPLATE = os.path.join(ROOT, "tests", "clients", "tools.jinja")


def main():
    files = [os.path.join(ROOT, "model", "demo", name) for name in ("weft-demo.gguf", "weft-demo-ar.gguf")]
    options = ["--kv-mib", "64", "--chat-template", f"weft-demo={TEMPLATE}", "--chat-template", f"weft-demo-ar={TEMPLATE}"]
    server = Server(sys.argv[1], options, keys=(), models=files)
    passed = failed = 0
    try:
        for i, program in enumerate(PROGRAMS):
            if sys.argv[2:] and program.__name__ not in sys.argv[2:]:
                continue
            for model in MODELS if NIGHTLY else (MODELS[0], MODELS[1 + i % 2]):
                try:
                    program(Talk(server.port, model))
                    passed += 1
                except Exception as fault:
                    failed += 1
                    where = [f for f in traceback.extract_tb(fault.__traceback__) if f.filename.endswith("programs.py")][-1]
                    print(f"failed: {program.__name__} by {model}, line {where.lineno}: {type(fault).__name__}: {str(fault)[:500]}")
    finally:
        server.stop()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
