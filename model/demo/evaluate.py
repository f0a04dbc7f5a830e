# SPDX-License-Identifier: MIT
"""The held-out evaluation set and the reference evaluator.

    python3 evaluate.py --make                 writes eval.jsonl and eval-structured.jsonl
    python3 evaluate.py FILE [--limit N]       answers it autoregressively (greedy), by diffusion
                                               (entropy-bound sampler) and by diffusion without
                                               self-conditioning; prints one table
    python3 evaluate.py FILE --draft DRAFTER   how much of the greedy answers a drafter foresees

FILE is a GGUF file (a `gemma4` file answers autoregressively only) or a checkpoint of train.py,
whose weights are rounded through Q8_0 first. --cases names another file of questions.
"""

import argparse
import json
import os
import random

import torch

import tasks
from model import Config, Demo, canvas_masks, causal_masks, entropy_bound_step, gumbel
from tokenizer import EOS, PAD, Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(HERE, "eval.jsonl")
STRUCTURED_PATH = os.path.join(HERE, "eval-structured.jsonl")
SAMPLER = {
    "max_steps": 48,
    "t_min": 0.4,
    "t_max": 0.8,
    "bound": 0.1,
    "stability": 1,
    "confidence": 0.005,
}
CANVAS = 32
CONTEXT = 1024


def make(tok, families, per_family, seed):
    """Examples whose last task is held out; the turns before it come from the training side."""
    r = random.Random(seed)
    out = []
    for family in families:
        seen, n = set(), 0
        while n < per_family:
            messages, task = tasks.conversation(r, want_held_out=True, family=family)
            answer = len(tok.encode(task.answer)) + 1
            canvases = -(-answer // CANVAS)
            prompt = len(tok.render(messages[:-1], tools=task.tools))
            if task.key in seen or prompt + canvases * CANVAS > CONTEXT:
                continue
            if family in tasks.MULTI and canvases < 2:
                continue
            seen.add(task.key)
            n += 1
            example = {
                "family": family,
                "key": task.key,
                "messages": messages[:-1],
                "max_tokens": canvases * CANVAS,
                "canvases": canvases,
            }
            example.update(
                {"validator": task.validator} if task.validator else {"answer": task.answer}
            )
            if task.schema:
                example["schema"] = task.schema
            if task.tools:
                example["tools"] = task.tools
            out.append(example)
    return out


def round_q8_0(w):
    """The values a matrix has after Q8_0: blocks of 32 along the rows, one half-precision scale
    each."""
    blocks = w.float().reshape(-1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127
    q = torch.where(d > 0, blocks / d, torch.zeros_like(blocks)).round()
    return (q * d.half().float()).view_as(w)


def rounded(model):
    copy = Demo(model.cfg)
    copy.load_state_dict({k: v.detach().float() for k, v in model.state_dict().items()})
    with torch.no_grad():
        for name, p in copy.named_parameters():
            if p.dim() > 1 and not name.endswith("router"):
                p.copy_(round_q8_0(p))
    return copy.to(next(model.parameters()).device).eval()


def load(path):
    """A checkpoint: one file or its parts PATH.0, PATH.1, ...; or a GGUF file of export.py."""
    if path.endswith(".gguf"):
        from check_reference import read

        model = read(path)
        if isinstance(model, str):
            raise SystemExit(f"{path}: not a model of this form: {model}")
        return model
    parts = [path] if os.path.exists(path) else []
    while not os.path.exists(path) and os.path.exists(f"{path}.{len(parts)}"):
        parts.append(f"{path}.{len(parts)}")
    saved = [torch.load(p, map_location="cpu", weights_only=True) for p in parts]
    if not saved:
        raise SystemExit(f"{path}: no checkpoint there")
    model = Demo(Config(**saved[0]["config"]))
    model.load_state_dict({k: v for s in saved for k, v in s["model"].items()})
    return model


def stops(tok):
    return {EOS, tok.turn_end, tok.ids["<|tool_response>"]}


def cut(tok, ids):
    """The text before the first end token, and whether there was one."""
    for i, t in enumerate(ids):
        if t in stops(tok):
            return tok.decode(ids[:i]), True
    return tok.decode(ids), False


def batches(prompts, tokens):
    """Groups of indices of similar length, at most `tokens` padded tokens each."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    group = []
    for i in order:
        if group and (len(prompts[i]) + 128) * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def padded(rows, device):
    n = max(map(len, rows))
    ids = torch.full((len(rows), n), PAD, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows])
    positions = torch.arange(n)[None].expand(len(rows), -1)
    return ids.to(device), lengths.to(device), positions.to(device)


@torch.no_grad()
def autoregressive(model, tok, prompts, limits, device):
    """Greedy answers. Rows are read anew for every token; only the longest matters."""
    rows, live = [list(p) for p in prompts], list(range(len(prompts)))
    ends = stops(tok)
    while live:
        ids, lengths, positions = padded([rows[i] for i in live], device)
        x, _, _ = model.encode(ids, positions, causal_masks(model.cfg, ids.shape[1], device))
        last = (
            model.head(x[torch.arange(len(live), device=device), lengths - 1]).argmax(-1).tolist()
        )
        for i, t in zip(live, last):
            rows[i].append(t)
        live = [
            i
            for i, t in zip(live, last)
            if t not in ends and len(rows[i]) - len(prompts[i]) < limits[i]
        ]
    return [row[len(p) :] for row, p in zip(rows, prompts)]


@torch.no_grad()
def denoise_block(model, rows, device, condition):
    """One canvas for each row. Returns the argmax canvases and the number of steps each took."""
    cfg, s = model.cfg, SAMPLER
    ids, lengths, positions = padded(rows, device)
    _, kvs, _ = model.encode(ids, positions, causal_masks(cfg, ids.shape[1], device))
    masks = canvas_masks(cfg, lengths, ids.shape[1])
    b = len(rows)
    canvas = torch.randint(cfg.vocab, (b, cfg.canvas), device=device)
    places = lengths[:, None] + torch.arange(cfg.canvas, device=device)[None]
    soft, before = None, torch.full((b, cfg.canvas), -1, device=device)
    block, steps = before.clone(), torch.zeros(b, dtype=torch.long, device=device)
    done = torch.zeros(b, dtype=torch.bool, device=device)
    for left in range(s["max_steps"], 0, -1):
        t = s["t_min"] + (s["t_max"] - s["t_min"]) * left / s["max_steps"]
        x, _ = model.denoise(canvas, soft, places, kvs, masks)
        logits = model.head(x)
        best, canvas, entropy, _ = entropy_bound_step(
            logits,
            t,
            s["bound"],
            gumbel(logits.shape, device),
            torch.randint(cfg.vocab, canvas.shape, device=device),
        )
        steps += ~done
        block = torch.where(done[:, None], block, best)
        done |= (best == before).all(-1) & (entropy.mean(-1) < s["confidence"])
        if done.all():
            break
        before = best
        soft = model.soften(logits, t) if condition else None
    return block.tolist(), steps.tolist()


def diffusion(model, tok, prompts, blocks, device, condition=True):
    rows, live = [list(p) for p in prompts], list(range(len(prompts)))
    ends, steps, n = stops(tok), [], 0
    while live:
        got, took = denoise_block(model, [rows[i] for i in live], device, condition)
        steps += list(zip(live, took))
        for i, block in zip(live, got):
            rows[i] += block
        n += 1
        live = [i for i, block in zip(live, got) if not ends & set(block) and n < blocks[i]]
    return [row[len(p) :] for row, p in zip(rows, prompts)], steps


def evaluate(model, tok, examples, device, budget=60000, seed=1, ways=("ar", "diffusion", "no_sc")):
    """Per family {n, ar, diffusion, mean_steps, p90_steps, no_sc, no_sc_steps}, and the wrong
    answers."""
    torch.manual_seed(seed)
    prompts = [tok.render(e["messages"], tools=e.get("tools")) for e in examples]
    table = {
        f: {"n": 0, "ar": 0, "diffusion": 0, "no_sc": 0, "steps": [], "no_sc_steps": []}
        for f in dict.fromkeys(e["family"] for e in examples)
    }
    wrong = []

    def score(kind, group, outs):
        for i, out in zip(group, outs):
            text, ended = cut(tok, out)
            ok = ended and tasks.right(examples[i], text)
            table[examples[i]["family"]][kind] += ok
            if not ok:
                wrong.append((kind, examples[i], text))

    for group in batches(prompts, budget):
        some = [prompts[i] for i in group]
        for i in group:
            table[examples[i]["family"]]["n"] += 1
        if "ar" in ways:
            limits = [examples[i]["max_tokens"] for i in group]
            score("ar", group, autoregressive(model, tok, some, limits, device))
        for kind, condition, steps in (
            ("diffusion", True, "steps"),
            ("no_sc", False, "no_sc_steps"),
        ):
            if kind not in ways:
                continue
            outs, took = diffusion(
                model, tok, some, [examples[i]["canvases"] for i in group], device, condition
            )
            score(kind, group, outs)
            for i, n in took:
                table[examples[group[i]]["family"]][steps].append(n)
    for row in table.values():
        steps = sorted(row.pop("steps")) or [0]
        row["mean_steps"] = sum(steps) / len(steps)
        row["p90_steps"] = steps[min(len(steps) - 1, int(0.9 * len(steps)))]
        row["no_sc_steps"] = sum(row["no_sc_steps"]) / max(1, len(row["no_sc_steps"]))
        for kind in ("ar", "diffusion", "no_sc"):
            row[kind] /= max(1, row["n"])
    return table, wrong


@torch.no_grad()
def foreseen(model, rows, prompts, device):
    """What a model holds likeliest for each place after a row's prompt, read in one pass."""
    ids, _, positions = padded(rows, device)
    x, _, _ = model.encode(ids, positions, causal_masks(model.cfg, ids.shape[1], device))
    ends = [(len(p) - 1, len(row) - 1) for row, p in zip(rows, prompts)]
    return [model.head(h[a:b]).argmax(-1).tolist() for h, (a, b) in zip(x, ends)]


def greedy(model, tok, examples, prompts, device):
    """Greedy answers. The right one is tried first: where the model agrees with each of its tokens,
    that is the answer, and one pass has shown it."""
    tried = [tok.encode(e.get("answer", "")) + [tok.turn_end] for e in examples]
    got = foreseen(model, [p + t for p, t in zip(prompts, tried)], prompts, device)
    left = [i for i, (t, g) in enumerate(zip(tried, got)) if t != g]
    limits = [examples[i]["max_tokens"] for i in left]
    slow = autoregressive(model, tok, [prompts[i] for i in left], limits, device)
    return [slow[left.index(i)] if i in left else t for i, t in enumerate(tried)]


def acceptance(model, small, tok, examples, device, k, budget):
    """Per family: tokens of the greedy answers, how many of them the drafter gives too when it
    reads what comes before, and in how many steps they are made if each verifies k drafts. A draft
    counts until the first that differs, so all of a step follow tokens that the model gave."""
    prompts = [tok.render(e["messages"], tools=e.get("tools")) for e in examples]
    table = {f: [0, 0, 0] for f in dict.fromkeys(e["family"] for e in examples)}
    for group in batches(prompts, budget):
        some = [prompts[i] for i in group]
        answers = greedy(model, tok, [examples[i] for i in group], some, device)
        drafts = foreseen(small, [p + a for p, a in zip(some, answers)], some, device)
        for i, a, drafted in zip(group, answers, drafts):
            equal = [d == t for d, t in zip(drafted, a)]
            steps, at = 0, 0
            while at < len(a):
                wrong = equal[at : at + k] + [False]
                at, steps = at + wrong.index(False) + 1, steps + 1
            table[examples[i]["family"]] = [
                v + w for v, w in zip(table[examples[i]["family"]], (len(a), sum(equal), steps))
            ]
    return table


def show_acceptance(table, k):
    print(f"family       tokens   equal  tokens a step of {k} drafts")
    table = {**table, "all": [sum(column) for column in zip(*table.values())]}
    for name, (n, equal, steps) in table.items():
        print(f"{name:12} {n:6} {equal / n:7.1%} {n / steps:6.2f}")


def show(table):
    print("family          n      ar    diff  steps  p90   no sc  steps")

    def line(name, n, ar, diff, steps, p90, no_sc, no_sc_steps):
        print(
            f"{name:12} {n:>4} {ar:7.1%} {diff:7.1%} {steps:6.2f} {p90:>4} {no_sc:7.1%} "
            f"{no_sc_steps:6.2f}",
            flush=True,
        )

    keys = ("ar", "diffusion", "mean_steps", "no_sc", "no_sc_steps")
    for f, row in table.items():
        ar, diff, steps, no_sc, no_sc_steps = (row[key] for key in keys)
        line(f, row["n"], ar, diff, steps, row["p90_steps"], no_sc, no_sc_steps)
    for name, group in (
        ("exact", tasks.EXACT),
        ("many", tasks.MANY),
        ("structured", tasks.STRUCTURED + tasks.CALLING),
        ("all", tuple(table)),
    ):
        if not set(group) <= set(table):
            continue
        ar, diff, steps, no_sc, no_sc_steps = (
            sum(table[f][key] for f in group) / len(group) for key in keys
        )
        line(name, "", ar, diff, steps, "", no_sc, no_sc_steps)


def show_wrong(wrong):
    for kind, e, text in wrong:
        print(
            kind,
            e["family"],
            repr(e["messages"][-1]["content"][-120:]),
            "->",
            repr(text),
            "want",
            repr(e.get("answer", e.get("validator"))),
        )


def main():
    ap = argparse.ArgumentParser(description="evaluate the demo model, or make its evaluation set")
    ap.add_argument("checkpoint", nargs="?")
    ap.add_argument("--make", action="store_true")
    ap.add_argument("--per-family", type=int, default=50)
    ap.add_argument("--seed", type=int, default=11)
    ap.add_argument("--limit", type=int, default=0, help="examples per family, 0 = all")
    ap.add_argument("--wrong", type=int, default=0, help="wrong answers to print")
    ap.add_argument("--cases", default=PATH, help="the questions")
    ap.add_argument("--ways", default="ar,diffusion,no_sc")
    ap.add_argument("--draft", help="measure this drafter instead")
    ap.add_argument("--drafts", type=int, default=4, help="of a step")
    args = ap.parse_args()
    tok = Tokenizer.load()
    if args.make:
        for path, families in (
            (PATH, tasks.FAMILIES),
            (STRUCTURED_PATH, tasks.STRUCTURED + tasks.CALLING),
        ):
            with open(path, "w", encoding="utf-8") as f:
                for e in make(tok, families, args.per_family, args.seed):
                    f.write(json.dumps(e, ensure_ascii=False, separators=(",", ":")) + "\n")
        return
    with open(args.cases, encoding="utf-8") as f:
        examples = [json.loads(line) for line in f]
    if args.limit:
        kept = {}
        for e in examples:
            kept.setdefault(e["family"], []).append(e)
        examples = [e for group in kept.values() for e in group[: args.limit]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(args.checkpoint).to(device)
    if not args.checkpoint.endswith(".gguf"):
        model = rounded(model)
    ways = args.ways.split(",") if model.cfg.canvas else ["ar"]
    budget = 60000 if device == "cuda" else 8000
    if args.draft:
        small = load(args.draft).to(device)
        got = acceptance(model, small, tok, examples, device, args.drafts, budget)
        return show_acceptance(got, args.drafts)
    table, wrong = evaluate(model, tok, examples, device, budget, ways=ways)
    show(table)
    show_wrong(wrong[: args.wrong])


if __name__ == "__main__":
    main()
