# SPDX-License-Identifier: MIT
"""The lm_eval package against a server of both demo models: python lmeval_tasks.py URL"""
import json
import os
import sys
import tempfile
import urllib.request

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
folder = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = folder.name
import lm_eval

CASES = [{"q": "What is 58 + 37?", "a": "95"}, {"q": "What is 12 + 30?", "a": "42"}, {"q": "Write 4711 backwards.", "a": "1174"}]
with open(os.path.join(folder.name, "cases.json"), "w") as cases:
    json.dump(CASES, cases)
TASK = {"task": "sums", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": os.path.join(folder.name, "cases.json")}},
        "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 24, "temperature": 0, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}

for model in ("weft-demo", "weft-demo-ar"):
    for kind, path in (("local-chat-completions", "chat/completions"), ("local-completions", "completions")):
        found = lm_eval.simple_evaluate(
            model=kind, tasks=[TASK], log_samples=True, bootstrap_iters=0, apply_chat_template=kind == "local-chat-completions",
            model_args=dict(model=model, base_url=f"{sys.argv[1]}/v1/{path}", tokenizer_backend=None, tokenized_requests=False,
                            num_concurrent=2, max_retries=1, max_length=1024))
        samples = found["samples"]["sums"]
        assert len(samples) == len(CASES)
        answers = [sample["resps"][0][0] for sample in samples]
        assert all(isinstance(answer, str) for answer in answers), answers
        if kind == "local-chat-completions":
            score = found["results"]["sums"]["exact_match,none"]
            assert score > 0.3, (model, answers)
# Log-likelihoods: lm_eval finds its tokens with /tokenize, asks for the prompt back with logprobs and adds up those behind
# the context. What it finds must be what the server says of the same tokens by another field, prompt_logprobs.
ROWS = [{"q": "The soft drum is near the blue", "c": [" coat", " 4711"], "a": 0},
        {"q": "The fast leaf is near the", "c": [" 4711", " pink shoe"], "a": 1},
        {"q": "The red fox is behind the gray", "c": [" cup", " Zo\u00eb \U0001f600"], "a": 0},
        {"q": "The old boat is behind the", "c": [" 4711 4711", " red cup"], "a": 1}]
with open(os.path.join(folder.name, "rows.json"), "w") as rows:
    json.dump(ROWS, rows)
CHOICES = {"task": "ends", "dataset_path": "json",
           "dataset_kwargs": {"data_files": {"test": os.path.join(folder.name, "rows.json")}},
           "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "{{c}}",
           "doc_to_target": "{{a}}", "target_delimiter": "",
           "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}


def ask(path, **fields):
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def likelihood(model, context, end):
    """What the server says of the tokens behind the context, and whether each of them is the likeliest."""
    ids = ask("/tokenize", model=model, prompt=context + end, add_special_tokens=False)["tokens"]
    n = len(ask("/tokenize", model=model, prompt=context, add_special_tokens=False)["tokens"])
    answer = ask("/v1/completions", model=model, prompt=ids, max_tokens=1, prompt_logprobs=0, temperature=0)
    of_end = [places[str(id)] for id, places in list(zip(ids, answer["choices"][0]["prompt_logprobs"]))[n:]]
    assert len(of_end) > 0 and answer["usage"]["prompt_tokens"] == len(ids)
    return sum(place["logprob"] for place in of_end), all(place["rank"] == 1 for place in of_end)


for model, batch, concurrent in (("weft-demo", 4, 1), ("weft-demo-ar", 1, 3)):
    found = lm_eval.simple_evaluate(
        model="local-completions", tasks=[CHOICES], log_samples=True, bootstrap_iters=0,
        model_args=dict(model=model, base_url=f"{sys.argv[1]}/v1/completions", tokenizer_backend="remote",
                        batch_size=batch, num_concurrent=concurrent, max_retries=1, max_length=1024))
    samples = found["samples"]["ends"]
    assert len(samples) == len(ROWS)
    for sample in samples:
        for (context, end), response in zip(sample["arguments"], sample["resps"]):
            sum_found, greedy_found = response[0]
            sum_wanted, greedy_wanted = likelihood(model, context, end)
            assert abs(sum_found - sum_wanted) < 1e-3 and greedy_found == greedy_wanted, (context, end, response[0])
    assert found["results"]["ends"]["acc,none"] == 1.0, [sample["resps"] for sample in samples]
print("lm_eval", lm_eval.__version__, "generate_until over chat and completions, log-likelihoods over completions")
