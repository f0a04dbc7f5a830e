# SPDX-License-Identifier: MIT
"""Writes what two heads of drafters have besides an output matrix, as tensors that go into drafters of assistants/, and what the
drafters with them draft.

`centroids` goes into dense.gguf: transformers' Gemma4Assistant class with ordered embeddings. Tokens lie in groups of equal size, a
row reads those of the groups whose centroids it agrees with most, and all others are one below the least of these.

`dspark` goes into dflash.gguf: what DSpark has besides DFlash. The rows of a block from the first one on give the drafts, and the token
before each adds a product of two matrices to its logits, as in the authors' module (DeepSpec: VanillaMarkov). The rows of the block are
those of dflash.gguf, of which make_dflash.py tells; the two matrices were trained for some seconds."""

import os

import gguf
import numpy as np
import torch
from transformers import Gemma4AssistantForCausalLM

import golden_floats
import make_assistants
import make_dflash
import tiny_configs
import tiny_gguf
import tiny_llama
import tiny_models

OUT = make_assistants.OUT
DRAFTS, MARGIN = 3, 2e-3
GROUPS, CHOSEN, RANK = 16, 3, 4


def file_tensors(name):
    return {x.name: torch.tensor(np.array(x.data)) for x in gguf.GGUFReader(os.path.join(OUT, name)).tensors}


@torch.no_grad()
def fill(tensors, values):
    for name, x in tensors.items():
        x.data.copy_(values[name].reshape(x.shape))


def write(name, base, target, t, tensors, prompts, keys):
    w = gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), base)
    for key, value in keys.items():
        w.add_uint32(key, value)
    for tensor, x in tensors.items():
        w.add_tensor(tensor, np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    floats = [x.detach().numpy().astype(np.float64).reshape(-1) for _, _, x in prompts]
    n = len(floats[0])
    golden_floats.write(os.path.join(OUT, name), np.concatenate(floats), [(i * n, n) for i in range(len(floats))])
    lines = ["weft-golden-assistant 1", f"gguf {base}.gguf", f"target {target}.gguf", f"n_vocab {t.vocab}", f"n_drafts {DRAFTS}",
             f"n_floats {n * len(floats)}"]
    for prompt, drafted, _ in prompts:
        lines += ["prompt " + ",".join(map(str, prompt)), f"draft {drafted[0]} " + ",".join(map(str, drafted[1:]))]
    with open(os.path.join(OUT, name + ".cases.txt"), "w", encoding="ascii") as f:
        f.write("\n".join(lines) + "\n")


# ---- centroids ----

def groups_of(rows):
    """Groups of equal size of rows that lie near each other: halves by the direction in which they differ most, again and again."""
    groups = [np.arange(len(rows))]
    while len(groups) < GROUPS:
        halves = []
        for g in groups:
            x = rows[g] - rows[g].mean(axis=0)
            order = g[np.argsort(x @ np.linalg.svd(x, full_matrices=False)[2][0], kind="stable")]
            halves += [order[:len(g) // 2], order[len(g) // 2:]]
        groups = halves
    return np.stack(groups)


def make_centroids():
    t, target = make_assistants.target_of("ar-dense")
    _, _, pattern, width, dense, _ = make_assistants.TABLE[0]
    plain = make_assistants.build(t, pattern, width, dense, 9000)
    config = plain.config
    config.use_ordered_embeddings, config.num_centroids, config.centroid_intermediate_top_k = True, GROUPS, CHOSEN
    model = Gemma4AssistantForCausalLM(config).float().eval()
    values = file_tensors("dense.gguf")
    own = tiny_configs.Tiny("own", pattern, experts=0, hidden=width, dense=dense)
    named = {"token_embd.weight": model.model.embed_tokens.weight, "output_norm.weight": model.model.norm.weight,
             "nextn.pre_projection.weight": model.pre_projection.weight, "nextn.post_projection.weight": model.post_projection.weight}
    for i, layer in enumerate(model.model.layers):
        named |= {f"blk.{i}.{name}": x for name, x in tiny_gguf.layer_tensors(layer, own, pattern[i]).items()}
    fill(named, values)
    model.tie_weights()
    rows = values["token_embd.weight"].numpy()
    groups = groups_of(rows)
    with torch.no_grad():
        model.masked_embedding.centroids.weight.copy_(torch.tensor(rows[groups].mean(axis=1)))
        model.masked_embedding.token_ordering.copy_(torch.tensor(groups.reshape(-1)))
    w, g, prompts, seen = t.window, torch.Generator().manual_seed(5), [], []
    model.masked_embedding.centroids.register_forward_hook(lambda module, given, out: seen.append(out.detach()[0, 0]))
    for n in (1, w, w + 1, 2 * w + 3, 40):
        for _ in range(400):
            prompt = torch.randint(5, t.vocab, (n,), generator=g).tolist()
            seen.clear()
            tokens, logits, margin = make_assistants.draft(t, target, model, prompt)
            top = torch.stack(seen).topk(CHOSEN + 1).values
            if min(margin, float((top[:, -2] - top[:, -1]).min())) > MARGIN:
                break
        else:
            raise SystemExit(f"no prompt of {n} tokens without a close call")
        prompts.append((prompt, tokens[:DRAFTS + 1], logits[:DRAFTS]))
    whole = [make_assistants.draft(t, target, lambda **k: plain_logits(model, k), p)[0] for p, _, _ in prompts]
    print(sum(a != b for x, (_, y, _) in zip(whole, prompts) for a, b in zip(x[1:], y[1:])), "drafts are others without groups")
    write("centroids", "dense", "ar-dense", t, {"masked_embd_centroids.weight": model.masked_embedding.centroids.weight.detach().numpy(),
                                                 "masked_embd_ordering": groups.reshape(-1).astype(np.int32)}, prompts,
          {"gemma4-assistant.centroid_top_k": CHOSEN})


def plain_logits(model, k):
    masked, model.masked_embedding.forward = model.masked_embedding.forward, lambda h, weight: h @ weight.T
    out = model(**k)
    model.masked_embedding.forward = masked
    return out


# ---- dspark ----

class Pairs(torch.nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.before, self.follows = torch.nn.Embedding(vocab, RANK), torch.nn.Linear(RANK, vocab, bias=False)

    def forward(self, tokens):
        return self.follows(self.before(tokens))


def train_pairs(drafter, pairs, steps):
    target, block = drafter.target, make_dflash.BLOCK
    g = torch.Generator().manual_seed(7)
    torch.manual_seed(8)
    begin = torch.randint(0, drafter.vocab, (96, 4), generator=g)
    with torch.no_grad():
        texts = torch.cat([target.generate(begin[i::2], max_new_tokens=40, min_new_tokens=40, do_sample=i == 1, pad_token_id=0)
                           for i in range(2)])
        features = drafter.features(texts)
    best = torch.optim.Adam(pairs.parameters(), lr=3e-2)
    for step in range(steps):
        rows = torch.randint(0, len(texts), (32,), generator=g)
        first = int(torch.randint(4, texts.shape[1] - block, (1,), generator=g))
        wanted = texts[rows, first + 1:first + block + 1]
        with torch.no_grad():
            base = drafter(features[rows, :first], texts[rows, first:first + 1], first, 0)[:, :wanted.shape[1]]
        logits = base + pairs(texts[rows, first:first + wanted.shape[1]])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, drafter.vocab), wanted.reshape(-1))
        best.zero_grad()
        loss.backward()
        best.step()
        if (step + 1) % 100 == 0:
            right = float((logits.argmax(-1) == wanted).float().mean())
            print(f"step {step}: loss {loss.item():.3f}, {right:.1%} right, without pairs {float((base.argmax(-1) == wanted).float().mean()):.1%}", flush=True)


@torch.no_grad()
def draft_pairs(drafter, pairs, prompt):
    tokens = torch.tensor([prompt])
    last = drafter.target(tokens, use_cache=False).logits[0, -1]
    base = drafter(drafter.features(tokens), last.argmax()[None, None], len(prompt), 0)[0]
    drafted, logits = [int(last.argmax())], []
    for k in range(DRAFTS):
        logits.append(base[k] + pairs(torch.tensor(drafted[-1])))
        drafted.append(int(logits[-1].argmax()))
    top = torch.stack([last, *logits]).topk(2).values
    return drafted, torch.stack(logits), float((top[:, 0] - top[:, 1]).min())


def make_dspark():
    t, target = make_dflash.target_of()
    own, drafter = make_dflash.build(t, target)
    named = {"fc.weight": drafter.fc.weight, "enc.output_norm.weight": drafter.hidden_norm.weight, "output_norm.weight": drafter.norm.weight}
    for i, layer in enumerate(drafter.layers):
        named |= {f"blk.{i}.{name}": x for name, x in tiny_llama.layer_tensors(layer, own).items()}
    fill(named, file_tensors("dflash.gguf"))
    pairs, draw = Pairs(t.vocab), tiny_models.Draw(9100)
    with torch.no_grad():
        for x in pairs.parameters():
            x.copy_(draw.normal(x, 0.5))
    train_pairs(drafter, pairs, 600)
    g, prompts = torch.Generator().manual_seed(5), []
    for n in (1, 9, 63, 64, 65):
        for _ in range(400):
            prompt = torch.randint(0, t.vocab, (n,), generator=g).tolist()
            tokens, logits, margin = draft_pairs(drafter, pairs, prompt)
            if margin > MARGIN:
                break
        else:
            raise SystemExit(f"no prompt of {n} tokens without a close call")
        prompts.append((prompt, tokens, logits))
    write("dspark", "dflash", make_dflash.TARGET, t, {"markov_w1.weight": pairs.before.weight.detach().numpy(),
                                                       "markov_w2.weight": pairs.follows.weight.detach().numpy()}, prompts, {})


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_centroids()
    make_dspark()
