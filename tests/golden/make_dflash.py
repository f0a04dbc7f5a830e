# SPDX-License-Identifier: MIT
"""Writes a tiny drafter that fills a block in one pass (dflash), for a model of models/, and what it drafts. transformers 5.23
has no such class. Here it is made of transformers' own parts for Qwen3 (norms, MLP, rotation), put together as the authors'
published module does: the rows that go into some layers of the target, side by side, are projected and normed; keys and values
of all positions before the block are made of them in each layer, those of the block of its own rows; queries are of the block
alone, every row of which sees all of these. The file has the keys of llama.cpp's converter: dflash.target_layers counts from 1
(the row that goes into layer L comes out of layer L - 1), and the mark that stands for a token is tokenizer.ggml.mask_token_id."""

import os

import gguf
import numpy as np
import torch
from transformers.models.qwen3 import modeling_qwen3 as qwen3

import golden_floats
import tiny_llama
import tiny_models

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "assistants")
TARGET, SEED, LAYERS, BLOCK, READS, MARK = "qwen3-base", 21, 2, 8, (1, 3), 287
DRAFTS, MARGIN = 4, 2e-3
LENGTHS = (1, 2, 9, 63, 64, 65, 130)
SHAPE = dict(hidden=24, dense=16, heads=2, kv=1, head_dim=16, layers=LAYERS)


class Layer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        linear = lambda n, m: torch.nn.Linear(n, m, bias=False)
        self.n = c.head_dim
        self.q_proj, self.o_proj = linear(c.hidden_size, c.num_attention_heads * self.n), linear(c.num_attention_heads * self.n, c.hidden_size)
        self.k_proj, self.v_proj = (linear(c.hidden_size, c.num_key_value_heads * self.n) for _ in range(2))
        self.q_norm, self.k_norm = (qwen3.Qwen3RMSNorm(self.n, eps=c.rms_norm_eps) for _ in range(2))
        self.input_layernorm, self.post_attention_layernorm = (qwen3.Qwen3RMSNorm(c.hidden_size, eps=c.rms_norm_eps) for _ in range(2))
        self.mlp = qwen3.Qwen3MLP(c)

    @property
    def self_attn(self):
        return self

    def forward(self, x, context, cos, sin):
        h = self.input_layernorm(x)
        heads = lambda y, norm=None: (y if norm is None else norm(y)).transpose(1, 2)
        split = lambda y: y.view(*y.shape[:2], -1, self.n)
        rows = torch.cat([context, h], dim=1)
        q, k = heads(split(self.q_proj(h)), self.q_norm), heads(split(self.k_proj(rows)), self.k_norm)
        v = heads(split(self.v_proj(rows)))
        first = rows.shape[1] - h.shape[1]
        q, _ = qwen3.apply_rotary_pos_emb(q, q, cos[:, first:], sin[:, first:])
        k, _ = qwen3.apply_rotary_pos_emb(k, k, cos, sin)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=self.n ** -0.5)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(torch.nn.Module):
    def __init__(self, c, target):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(c) for _ in range(LAYERS)])
        self.fc = torch.nn.Linear(len(READS) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm, self.norm = (qwen3.Qwen3RMSNorm(c.hidden_size, eps=c.rms_norm_eps) for _ in range(2))
        self.rotary = qwen3.Qwen3RotaryEmbedding(c)
        self.target, self.vocab = target, target.config.vocab_size

    def features(self, tokens):
        hidden = self.target.model(tokens, use_cache=False, output_hidden_states=True).hidden_states
        return torch.cat([hidden[l] for l in READS], dim=-1)

    def forward(self, features, token, first, skip=1):
        """Rows from `skip` on of the blocks that begin with these tokens at position `first`; features: of the positions before it."""
        context = self.hidden_norm(self.fc(features))
        marks = torch.full((token.shape[0], BLOCK - 1), MARK)
        x = self.target.model.embed_tokens(torch.cat([token, marks], dim=1))
        cos, sin = self.rotary(x, torch.arange(first + BLOCK)[None])
        for layer in self.layers:
            x = layer(x, context, cos, sin)
        return self.target.lm_head(self.norm(x))[:, skip:]


@torch.no_grad()
def build(t, target):
    own = tiny_llama.Tiny(**{**t.__dict__, **SHAPE, "name": "dflash", "tied": False, "text": False})
    drafter = Drafter(tiny_llama.config(own)[1], target).float().eval()
    draw = tiny_models.Draw(9000 + SEED)
    for name, x in drafter.named_parameters():
        if not name.startswith("target."):
            x.copy_(draw.uniform(x, 0.4, 1.6) if "norm" in name else draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
    norm = drafter.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / own.hidden ** 0.5)
    return own, drafter


def train(drafter, steps):
    """Learns texts that the target goes on with, greedily and by chance, so that some drafts are right."""
    target, g = drafter.target, torch.Generator().manual_seed(3)
    torch.manual_seed(4)
    begin = torch.randint(0, drafter.vocab, (96, 4), generator=g)
    with torch.no_grad():
        texts = torch.cat([target.generate(begin[i::2], max_new_tokens=40, min_new_tokens=40, do_sample=i == 1, pad_token_id=0)
                           for i in range(2)])
        features = drafter.features(texts)
    best = torch.optim.Adam([x for name, x in drafter.named_parameters() if not name.startswith("target.")], lr=1e-2)
    for step in range(steps):
        rows = torch.randint(0, len(texts), (32,), generator=g)
        first = int(torch.randint(4, texts.shape[1] - BLOCK, (1,), generator=g))
        wanted = texts[rows, first + 1:first + BLOCK]
        logits = drafter(features[rows, :first], texts[rows, first:first + 1], first)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, drafter.vocab), wanted.reshape(-1))
        best.zero_grad()
        loss.backward()
        best.step()
        if (step + 1) % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {float((logits.argmax(-1) == wanted).float().mean()):.1%} right", flush=True)


@torch.no_grad()
def draft(drafter, prompt):
    """The token that the target goes on with, then the likeliest of each draft, and their logits [DRAFTS][vocab]."""
    tokens = torch.tensor([prompt])
    last = drafter.target(tokens, use_cache=False).logits[0, -1]
    logits = drafter(drafter.features(tokens), last.argmax()[None, None], len(prompt))[0, :DRAFTS]
    top = torch.cat([last[None], logits]).topk(2).values
    return [int(last.argmax()), *logits.argmax(-1).tolist()], logits, float((top[:, 0] - top[:, 1]).min())


def find_prompt(drafter, n, g):
    """One where no draft is a close call."""
    for _ in range(200):
        prompt = torch.randint(0, drafter.vocab, (n,), generator=g).tolist()
        tokens, logits, margin = draft(drafter, prompt)
        if margin > MARGIN:
            return prompt, tokens, logits
    raise SystemExit(f"no prompt of {n} tokens without a close call")


def write(path, own, drafter):
    w = gguf.GGUFWriter(path, "dflash")
    tiny_llama.add_keys(w, tiny_llama.Tiny(**{**own.__dict__, "kind": "qwen3", "name": "dflash"}), "dflash")
    w.add_uint32("dflash.block_size", BLOCK)
    w.add_array("dflash.target_layers", list(READS))
    w.add_mask_token_id(MARK)

    def put(name, x):
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=np.float32))

    put("fc.weight", drafter.fc.weight)
    put("enc.output_norm.weight", drafter.hidden_norm.weight)
    put("output_norm.weight", drafter.norm.weight)
    for i, layer in enumerate(drafter.layers):
        for name, x in tiny_llama.layer_tensors(layer, own).items():
            put(f"blk.{i}.{name}", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def target_of():
    t = next(t for t in tiny_llama.ALL if t.name == TARGET)
    with open(os.path.join(HERE, "models", TARGET + ".cases.txt"), encoding="ascii") as f:
        seed = next(int(line.split()[1]) for line in f if line.startswith("seed "))
    target = tiny_llama.build(t, seed)
    tensors = {x.name: x.data for x in gguf.GGUFReader(os.path.join(HERE, "models", TARGET + ".gguf")).tensors}
    assert np.array_equal(tensors["token_embd.weight"], target.model.embed_tokens.weight.detach().numpy())
    return t, target


def make():
    (t, target), g = target_of(), torch.Generator().manual_seed(5)
    own, drafter = build(t, target)
    train(drafter, 400)
    lines, floats = [], []
    for n in LENGTHS:
        prompt, tokens, logits = find_prompt(drafter, n, g)
        lines += ["prompt " + ",".join(map(str, prompt)), f"draft {tokens[0]} " + ",".join(map(str, tokens[1:]))]
        floats.append(logits.numpy().astype(np.float64).reshape(-1))
    write(os.path.join(OUT, "dflash.gguf"), own, drafter)
    n = len(floats[0])
    golden_floats.write(os.path.join(OUT, "dflash"), np.concatenate(floats), [(i * n, n) for i in range(len(floats))])
    head = ["weft-golden-assistant 1", "gguf dflash.gguf", f"target {TARGET}.gguf", f"n_vocab {t.vocab}", f"n_drafts {DRAFTS}",
            f"n_floats {n * len(floats)}"]
    with open(os.path.join(OUT, "dflash.cases.txt"), "w", encoding="ascii") as f:
        f.write("\n".join(head + lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    make()
