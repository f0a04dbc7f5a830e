# SPDX-License-Identifier: MIT
"""The guidellm package against a server of both demo models: python guidellm_run.py URL

guidellm makes its prompts of a tokenizer, and takes the folder of one in place of a name on a hub. Here it is one of letters, made
beside it, so nothing is asked of a hub: what it says of the lengths of prompts are letters, and answers are counted by the server."""
import json
import os
import subprocess
import sys
import tempfile

folder = tempfile.TemporaryDirectory()
place = os.path.join(folder.name, "tokenizer")
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=os.path.join(folder.name, "hub"))
import tokenizers
import transformers

letters = tokenizers.Tokenizer(tokenizers.models.BPE(
    {letter: i for i, letter in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()) + ["<end>"])}, []))
letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
letters.decoder = tokenizers.decoders.ByteLevel()
transformers.PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>").save_pretrained(place)


def run(model, path, profile, data, **backend):
    """A benchmark of some seconds; its record."""
    out = os.path.join(folder.name, "out.json")
    backend = dict(kind="openai_http", target=sys.argv[1], model=model, request_format=path, **backend)
    command = [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--disable-console", "--backend",
               json.dumps(backend), "--profile", profile, "--tokenizer", json.dumps({"kind": "hf_auto", "model": place}),
               "--data", data, "--constraint", "kind=max_requests,count=4", "--output", json.dumps({"kind": "json", "path": out})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(out) as record:
        return json.load(record)["benchmarks"][0]


TEXTS = os.path.join(folder.name, "texts.jsonl")
with open(TEXTS, "w") as texts:
    texts.writelines(json.dumps({"prompt": f"What is {n} + 30?"}) + "\n" for n in range(12, 20))
SYNTHETIC = "kind=synthetic_text,prompt_tokens=64,output_tokens=16"
OBJECT = {"body": {"response_format": {"type": "json_object"}, "max_tokens": 40}}


def check(found, n_tokens=None):
    done = found["requests"]["successful"]
    assert len(done) == 4 and not found["requests"]["errored"] and not found["requests"]["incomplete"], found["requests"]
    for one in done:
        n = one["output_metrics"]["text_tokens"]
        assert n == n_tokens if n_tokens else n > 0 and one["output"], one  # behind its end a text may be empty
    return done


for model in ("weft-demo", "weft-demo-ar"):
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        check(run(model, path, "kind=concurrent,streams=2", SYNTHETIC), 16)
    check(run(model, "/v1/chat/completions", "kind=synchronous", f"kind=json_file,path={TEXTS}", max_tokens=24, stream=False))
    for one in check(run(model, "/v1/chat/completions", "kind=synchronous", f"kind=json_file,path={TEXTS}", extras=OBJECT)):
        assert isinstance(json.loads(one["output"]), dict), one
print("guidellm: concurrent and synchronous, made-up prompts and a file of them, chat, completions and responses, streams, formats, usage")
