# SPDX-License-Identifier: MIT
"""Writes tiny models of qwen35 and qwen35moe whose files have one layer more, which guesses tokens ahead (nextn, MTP), and
what that layer guesses. transformers 5.23 reads no such layer. Here it is made of transformers' own classes for a decoder
layer with attention and for norms, put together as vLLM's Qwen3_5MultiTokenPredictor and llama.cpp's graph for these files
do: the normed embedding of a token, then the normed hidden row that the token was drawn from (after the model's last
norm), projected into the layer; its rows, normed, are what the model's head reads, and stand in for the hidden rows of
guesses. As in llama.cpp's files a row has the position of its token, and position 0 has zeros for a hidden row.

The layer of deepseek4 is put together as vLLM's DeepSeekV4MultiTokenPredictor and llama.cpp's graph do, of
transformers' decoder layer with a window, norms and mixer before the head: the hidden row is the residual stream after
the last layer, of which each part is normed and projected beside the same embedding. vLLM projects both halves by
matrices of their own, which is the same. The mixer is the layer's own, as in vLLM and the model's checkpoint. Its
tensors are put into the file of models/.

The models are those of models/, built again from their seeds."""

import os
import sys

import gguf
import numpy as np
import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as latent
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe

import golden_floats
import tiny_deepseek4
import tiny_models
import tiny_qwen35

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "assistants")
DRAFTS, MARGIN = 6, 2e-3
LENGTHS = (1, 2, 9, 63, 64, 65, 130)
TABLE = [("nextn-moe", "qwen35-moe", 8), ("nextn-latent", "deepseek4-base", 4)]


class Guesser(torch.nn.Module):
    """The layer of one model."""

    def __init__(self, t, model):
        super().__init__()
        code, c = (moe, model.config) if t.experts else (dense, model.config)
        one = tiny_qwen35.config(tiny_qwen35.Tiny(**{**t.__dict__, "pattern": "a", "listed": False}))
        kind, norm = ("Qwen3_5Moe", "Qwen3_5MoeRMSNorm") if t.experts else ("Qwen3_5", "Qwen3_5RMSNorm")
        self.layer = getattr(code, kind + "DecoderLayer")(one, 0)
        self.enorm, self.hnorm, self.norm = (getattr(code, norm)(t.hidden, eps=t.eps) for _ in range(3))
        self.project = torch.nn.Linear(2 * t.hidden, t.hidden, bias=False)
        self.model, self.vocab = model, c.vocab_size

    def hidden(self, tokens):
        """The rows of the model that stand beside the next tokens."""
        return self.model.model(tokens, use_cache=False).last_hidden_state

    def forward(self, tokens, hidden):
        """The rows of all positions that the head reads, and those that stand in for hidden ones; hidden: of the
        position before each."""
        x = self.project(torch.cat([self.enorm(self.model.model.embed_tokens(tokens)), self.hnorm(hidden)], dim=-1))
        n = x.shape[1]
        positions = torch.arange(n).view(1, 1, -1).expand(3, 1, -1)
        mask = torch.full((n, n), -1e9).triu(1)[None, None]
        y = self.norm(self.layer(x, position_embeddings=self.model.model.rotary_emb(x, positions), attention_mask=mask,
                                 position_ids=positions[0], past_key_values=None))
        return y, y


class LatentGuesser(torch.nn.Module):
    """That of a model whose residual stream has several parts."""

    def __init__(self, t, model):
        super().__init__()
        one = tiny_deepseek4.config(tiny_deepseek4.Tiny(**{**t.__dict__, "ratios": (0,), "hashed": 0}))
        self.layer, self.hc_head = latent.DeepseekV4DecoderLayer(one, 0), latent.DeepseekV4HyperHead(one)
        self.enorm, self.hnorm, self.norm = (latent.DeepseekV4RMSNorm(t.hidden, eps=t.eps) for _ in range(3))
        self.project = torch.nn.Linear(2 * t.hidden, t.hidden, bias=False)
        self.model, self.vocab, self.window = model, model.config.vocab_size, t.near

    def hidden(self, tokens):
        seen = []
        hook = self.model.model.hc_head.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
        self.model.model(tokens, use_cache=False)
        hook.remove()
        return seen[0]

    def forward(self, tokens, hidden):
        embedded = self.enorm(self.model.model.embed_tokens(tokens)).unsqueeze(2).expand_as(hidden)
        x = self.project(torch.cat([embedded, self.hnorm(hidden)], dim=-1))
        positions = torch.arange(x.shape[1])[None]
        back = positions[0][:, None] - positions[0][None]
        mask = torch.where((back < 0) | (back >= self.window), -1e9, 0.0)[None, None]
        angles = {kind: self.model.model.rotary_emb(embedded, position_ids=positions, layer_type=kind)
                  for kind in ("main", "compress")}
        x = self.layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions, past_key_values=None)
        return self.norm(self.hc_head(x)), x


@torch.no_grad()
def build(t, model, seed):
    draw = tiny_models.Draw(seed)
    if isinstance(t, tiny_deepseek4.Tiny):
        guesser = LatentGuesser(t, model).float().eval()
        own = [(name, x) for name, x in guesser.named_parameters() if not name.startswith("model.")]
        tiny_deepseek4.draw_weights(draw, own)
        bias = guesser.layer.mlp.gate.e_score_correction_bias
        bias.copy_(draw.normal(bias, 0.5))
        guesser.norm.weight.copy_(draw.uniform(guesser.norm.weight, 0.6, 1.4) * 5.0 / t.hidden ** 0.5)
        return guesser
    guesser = Guesser(t, model).float().eval()
    for name, x in guesser.named_parameters():
        if name.startswith("model."):
            continue
        if "norm" in name:
            x.copy_(draw.uniform(x, -0.6, 0.6))
        elif "down_proj" in name:
            x.copy_(draw.normal(x, 0.7 / x.shape[-1] ** 0.5))
        else:
            x.copy_(draw.normal(x, 1.3 / x.shape[-1] ** 0.5))
    norm = guesser.norm.weight
    norm.copy_(draw.uniform(norm, 0.6, 1.4) * 5.0 / t.hidden ** 0.5 - 1.0)
    return guesser


def train(guesser, steps):
    """Learns texts that the model goes on with, greedily and by chance, so that some guesses are right."""
    model, g = guesser.model, torch.Generator().manual_seed(3)
    torch.manual_seed(4)
    begin = torch.randint(0, guesser.vocab, (128, 4), generator=g)
    with torch.no_grad():
        texts = torch.cat([model.generate(begin[i::2], max_new_tokens=44, min_new_tokens=44, do_sample=i == 1, pad_token_id=0)
                           for i in range(2)])
    own = [x for name, x in guesser.named_parameters() if not name.startswith("model.")]
    best = torch.optim.Adam(own, lr=1e-2)
    for step in range(steps):
        rows = texts[torch.randint(0, len(texts), (16,), generator=g)]
        with torch.no_grad():
            hidden = guesser.hidden(rows)
        hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        logits = model.lm_head(guesser(rows, hidden)[0])[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, guesser.vocab), rows[:, 1:].reshape(-1))
        best.zero_grad()
        loss.backward()
        best.step()
        if (step + 1) % 100 == 0:
            right = float((logits.argmax(-1) == rows[:, 1:]).float().mean())
            print(f"step {step}: loss {loss.item():.3f}, {right:.1%} right", flush=True)


@torch.no_grad()
def draft(guesser, prompt):
    """The token that the model goes on with, then the likeliest of each guess, and their logits [DRAFTS][vocab]."""
    model = guesser.model
    tokens = torch.tensor([prompt])
    hidden = guesser.hidden(tokens)
    logits = [model(tokens, use_cache=False).logits[0, -1]]
    hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden], dim=1)
    tokens = torch.cat([tokens, logits[0].argmax()[None, None]], dim=1)
    for _ in range(DRAFTS):
        rows, stands_in = guesser(tokens, hidden)
        logits.append(model.lm_head(rows)[0, -1])
        tokens = torch.cat([tokens, logits[-1].argmax()[None, None]], dim=1)
        hidden = torch.cat([hidden, stands_in[:, -1:]], dim=1)
    top = torch.stack(logits).topk(2).values
    return tokens[0, len(prompt):].tolist(), torch.stack(logits[1:]), float((top[:, 0] - top[:, 1]).min())


def find_prompt(guesser, n, g):
    """One where no guess is a close call."""
    for _ in range(200):
        prompt = torch.randint(0, guesser.vocab, (n,), generator=g).tolist()
        tokens, logits, margin = draft(guesser, prompt)
        if margin > MARGIN:
            return prompt, tokens, logits
    raise SystemExit(f"no prompt of {n} tokens without a close call")


def write_latent(path, t, guesser):
    more = {"nextn.eh_proj.weight": guesser.project.weight, "nextn.enorm.weight": guesser.enorm.weight,
            "nextn.hnorm.weight": guesser.hnorm.weight, "nextn.shared_head_norm.weight": guesser.norm.weight}
    more.update({f"nextn.hc_head_{x}.weight": getattr(guesser.hc_head, f"hc_{x}") for x in ("fn", "base", "scale")})
    tiny_deepseek4.write(path, t, guesser.model, (guesser.layer, more))


def write(path, t, guesser):
    model, l = guesser.model, t.layers
    w = gguf.GGUFWriter(path, t.arch)
    more = tiny_qwen35.Tiny(**{**t.__dict__, "pattern": t.pattern + "a", "name": os.path.basename(path)[:-5], "listed": True})
    tiny_qwen35.add_keys(w, more)
    w.add_uint32(t.arch + ".nextn_predict_layers", 1)

    def put(name, x):
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=np.float32))

    put("token_embd.weight", model.model.embed_tokens.weight)
    put("output_norm.weight", model.model.norm.weight + 1)
    if not t.tied:
        put("output.weight", model.lm_head.weight)
    for i, layer in enumerate([*model.model.layers, guesser.layer]):
        for name, x in tiny_qwen35.layer_tensors(layer, t).items():
            put(f"blk.{i}.{name}", x)
    put(f"blk.{l}.nextn.eh_proj.weight", guesser.project.weight)
    put(f"blk.{l}.nextn.enorm.weight", guesser.enorm.weight + 1)
    put(f"blk.{l}.nextn.hnorm.weight", guesser.hnorm.weight + 1)
    put(f"blk.{l}.nextn.shared_head_norm.weight", guesser.norm.weight + 1)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make(name, model_name, seed):
    t = next(t for t in tiny_qwen35.ALL + tiny_deepseek4.ALL if t.name == model_name)
    is_latent = isinstance(t, tiny_deepseek4.Tiny)
    with open(os.path.join(HERE, "models", model_name + ".cases.txt"), encoding="ascii") as f:
        of_model = next(int(line.split()[1]) for line in f if line.startswith("seed "))
    model = (tiny_deepseek4 if is_latent else tiny_qwen35).build(t, of_model)
    g, path = torch.Generator().manual_seed(5), os.path.join(HERE, "models", model_name + ".gguf")
    tensors = {x.name: x.data for x in gguf.GGUFReader(path).tensors}
    assert np.array_equal(tensors["token_embd.weight"], model.model.embed_tokens.weight.detach().numpy())
    guesser = build(t, model, 9000 + seed)
    train(guesser, 300)
    lines, floats = [], []
    for n in LENGTHS:
        prompt, tokens, logits = find_prompt(guesser, n, g)
        lines += ["prompt " + ",".join(map(str, prompt)), f"draft {tokens[0]} " + ",".join(map(str, tokens[1:]))]
        floats.append(logits.numpy().astype(np.float64).reshape(-1))
    if is_latent:
        write_latent(path, t, guesser)
        file = f"../models/{model_name}.gguf"
    else:
        file = name + ".gguf"
        write(os.path.join(OUT, file), t, guesser)
    n = len(floats[0])
    golden_floats.write(os.path.join(OUT, name), np.concatenate(floats), [(i * n, n) for i in range(len(floats))])
    head = ["weft-golden-assistant 1", f"gguf {file}", f"target {file}", f"n_vocab {t.vocab}", f"n_drafts {DRAFTS}",
            f"n_floats {n * len(floats)}"]
    with open(os.path.join(OUT, name + ".cases.txt"), "w", encoding="ascii") as f:
        f.write("\n".join(head + lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    for row in TABLE:
        if row[0] in (sys.argv[1:] or [row[0]]):
            make(*row)
