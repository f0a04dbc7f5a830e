#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""vLLM's server on made-up weights of a model's shape, those of bench/peers/vllm_offline.py, for bench/load.py and bench/peers/serve.py.

  bench/peers/vllm_serve.py DIR [options of `vllm serve`]

DIR has config.json and a tokenizer, which may be made up too; no weights are needed.
"""
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import vllm_offline

if __name__ == "__main__" and (len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help")):
    raise SystemExit(__doc__)
if __name__ in ("__main__", "__mp_main__"):  # the process that has the model is started anew and reads this file as __mp_main__
    os.environ |= dict(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    vllm_offline.make_up_weights()
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main
    sys.argv[1:] = ["serve", sys.argv[1], "--load-format", "dummy", *sys.argv[2:]]
    sys.exit(main())
