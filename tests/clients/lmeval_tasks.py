# SPDX-License-Identifier: MIT
"""The lm_eval package against a server of both demo models: python lmeval_tasks.py URL"""
import json
import os
import sys
import tempfile

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
print("lm_eval", lm_eval.__version__, "generate_until over chat and completions")
