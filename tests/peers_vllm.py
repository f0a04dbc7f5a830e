#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/peers/vllm_offline.py and vllm_serve.py beside a made-up vLLM: which options it is given, that weights are made up, what counts as a step,
gates, a figure that fails, and the one line for what does not belong together."""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = {
    "torch/__init__.py": """
import contextlib, types
class Generator:
    def __init__(self, device): pass
    def manual_seed(self, seed): pass
is_floating_point = lambda tensor: tensor.floating
finfo = lambda dtype: types.SimpleNamespace(bits=16)
no_grad = contextlib.nullcontext
cuda = types.SimpleNamespace(mem_get_info=lambda: (2**30, 2**31))
""",
    "vllm/__init__.py": """
import os, types
from vllm import sampling_params
from vllm.model_executor.model_loader import dummy_loader
__version__ = "made up"
class SamplingParams:
    def __init__(self, **of): self.__dict__.update(of)
class Tensor:
    device, dtype, floating, value = types.SimpleNamespace(type="cpu"), None, True, None
    def __init__(self, dims): self.dims = dims
    def dim(self): return self.dims
    def numel(self): return 4
    def fill_(self, v): self.value = v
    def normal_(self, mean, width, generator): self.value = ("normal", width)
    def uniform_(self, low, high, generator): self.value = ("uniform", high)
class Engine:
    def __init__(self): self.left = {}
    def add_request(self, name, prompt, params): self.left[name] = params.max_tokens
    def has_unfinished_requests(self): return bool(self.left)
    def step(self):
        done = []
        for name, left in list(self.left.items()):
            now = min(2, left)  # two tokens a step
            self.left[name] -= now
            if self.left[name] == 0: del self.left[name]
            done.append(types.SimpleNamespace(request_id=name, outputs=[types.SimpleNamespace(token_ids=[7] * now)]))
        return done
class LLM:
    def __init__(self, **options):
        print("OPTIONS", {k: options.get(k) for k in ("speculative_config", "diffusion_config", "max_num_seqs", "load_format", "block_size")})
        layers = [type(n, (), {"t": Tensor(d)})() for n, d in (("RMSNorm", 1), ("GateLinear", 2), ("VocabParallelEmbedding", 2), ("Linear", 2))]
        if not os.environ.get("PEER_FILLS_ITSELF"):
            for layer in layers:
                for name, tensor in dummy_loader.get_layer_tensors(layer).items(): dummy_loader.initialize_single_dummy_weight(tensor, name=name)
        print("VALUES", [layer.t.value for layer in layers])
        n = types.SimpleNamespace
        config = n(compilation_config=n(static_forward_context={"a": n(attn_backend=LLM)}, cudagraph_mode="full"), attention_config=n(flash_attn_version=4))
        self.llm_engine = Engine()
        self.worker = n(model_runner=n(vllm_config=config, model_state=n(diffusion_states=n(max_denoising_steps=0))))
    def collective_rpc(self, call, args=()): return [call(self.worker, *args)]
    def generate(self, prompts, params, use_tqdm):
        if len(prompts) == 3: raise RuntimeError("no room for three")
""",
    "vllm/sampling_params.py": "class RequestOutputKind:\n    DELTA = 1\n",
    "vllm/model_executor/__init__.py": "", "vllm/v1/__init__.py": "", "vllm/v1/engine/__init__.py": "", "vllm/v1/engine/core.py": "",
    "vllm/entrypoints/__init__.py": "", "vllm/entrypoints/cli/__init__.py": "", "vllm/entrypoints/cli/main.py": """
import sys
from vllm.model_executor.model_loader import dummy_loader
def main(): print("SERVE", sys.argv[1:], dummy_loader.initialize_single_dummy_weight.__module__)
""",
    "D/config.json": '{"text_config": {"vocab_size": 5000}}',
    "vllm/model_executor/model_loader/__init__.py": "",
    "vllm/model_executor/model_loader/dummy_loader.py": """
initialize_single_dummy_weight = lambda tensor, name: None
get_layer_tensors = lambda layer: {"weight": layer.t}
""",
}


def run(folder, *words, code=0, program="offline", **more):
    command = [sys.executable, os.path.join(ROOT, f"bench/peers/vllm_{program}.py"), os.path.join(folder, "D"), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": folder} | more, timeout=60)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done, [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("JSON ")]


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
        gate = os.path.join(folder, "gate")
        open(gate + ".go", "w").close()
        words = ("--drafter", "D", "--rates", "0.8,0.64", "--sequences", "1,5", "--answer", "64", "--prefill", "2,3", "--gate", gate,
                 "--engine", '{"block_size": 7}', "--temperatures", "1,0")
        done, lines = run(folder, *words, code=1)
        assert os.path.exists(gate + ".ready"), done.stderr
        assert "'synthetic_acceptance_rates': [0.8, 0.64]" in done.stdout and "'num_speculative_tokens': 2" in done.stdout, done.stdout
        assert "VALUES [1.0, ('normal', 1.0), ('normal', 0.02), ('uniform', 0.03)]" in done.stdout, done.stdout
        assert [r["test"] for r in lines] == ["import", "start", "decode", "decode", "prefill", "prefill", "decode", "decode", "end"], lines
        assert "'block_size': 7" in done.stdout, done.stdout
        assert [lines[i]["temperature"] for i in (2, 3, 6, 7)] == [1, 1, 0, 0] and lines[3]["distinct"] == 0.2, lines  # one token for five
        assert lines[1]["filled"] == 4 and lines[3]["sequences"] == 5 and lines[3]["tokens_per_step"] == 2, lines
        assert lines[4]["prompts"] == 2 and "no room for three" in lines[5]["failed_because"], lines
        done, lines = run(folder, "--canvas", "256", "--sequences", "1", "--repeat", "1")
        assert "'canvas_length': 256" in done.stdout and lines[2]["test"] == "canvas step" and len(lines[2]["all_40"]) == 1, done.stdout
        done, _ = run(folder, code=1, PEER_FILLS_ITSELF="1")
        assert "its weights were not made up here" in done.stderr, done.stderr
        done, _ = run(folder, "--port", "1", program="serve")
        assert f"SERVE ['serve', '{folder}/D', '--load-format', 'dummy', '--port', '1'] vllm_offline" in done.stdout, done.stdout
        done, _ = run(folder, "--rates", "0.5", code=2)
        assert "--drafter and --rates belong together" in done.stderr, done.stderr
    print("peers_vllm: options, values, steps and faults are as they should be")


if __name__ == "__main__":
    main()
