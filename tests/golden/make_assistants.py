# SPDX-License-Identifier: MIT
"""Writes tiny drafters of the architecture gemma4-assistant, and what transformers drafts with them.

The targets are files of models/, built again from their seeds. A target runs a prompt; the drafter then gets the hidden
row of the prompt's last token, the token that the target draws from it and that has no keys, and the target's keys and values: of its last layer without
a window all, of its last layer with one those that the row of the last token would see beside its own. The makers' class
bounds the latter differently after a prompt and after a step, since it sees what the target's cache still has; here it
sees the same at every length, as files of llama.cpp's converter are used elsewhere, too."""

import os

import gguf
import numpy as np
import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

import golden_floats
import tiny_configs
import tiny_gguf
import tiny_models

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "assistants")
DRAFTS, MARGIN = 5, 2e-3
# name, target, layers, width, feed-forward width, steps that it is trained
TABLE = [("dense", "ar-dense", "sf", 16, 24, 400), ("shared", "ar-shared", "ssf", 16, 16, 0)]
NEVER = {3, 4}  # tokens that tests do not let a model draw


sharing_modes = Gemma4TextConfig.kv_sharing_modes


def modes_of(config):
    """transformers 5.23 refuses a text model whose layers all read another's keys, though its own assistants are such."""
    if config.num_kv_shared_layers == config.num_hidden_layers:
        return ["reuse"] * config.num_hidden_layers
    return sharing_modes.fget(config)


Gemma4TextConfig.kv_sharing_modes = property(modes_of)


def give_keys(model):
    """It gives the keys of its last layers only where layers of its own share them; here they are given of every model."""
    own = [layer.self_attn for layer in model.model.layers if not layer.self_attn.is_kv_shared_layer]
    for kind in set(a.layer_type for a in own):
        [a for a in own if a.layer_type == kind][-1].store_full_length_kv = True


def target_of(name):
    """The model of a file of models/, and its row of the table; every number is that of the file."""
    t = next(t for t in tiny_configs.AR if t.name == name)
    with open(os.path.join(HERE, "models", name + ".cases.txt"), encoding="ascii") as f:
        seed = next(int(line.split()[1]) for line in f if line.startswith("seed "))
    _, model = tiny_models.build(t, seed)
    reader = gguf.GGUFReader(os.path.join(HERE, "models", name + ".gguf"))
    tensors = {x.name: x.data for x in reader.tensors}
    assert np.array_equal(tensors["token_embd.weight"], model.model.embed_tokens.weight.detach().numpy())
    assert np.array_equal(tensors["blk.1.attn_q.weight"], model.model.layers[1].self_attn.q_proj.weight.detach().numpy())
    give_keys(model)
    return t, model


def build(t, pattern, width, dense, seed):
    kinds = {"s": "sliding_attention", "f": "full_attention"}
    text = tiny_models.text_kwargs(t) | dict(
        hidden_size=width, intermediate_size=dense, num_hidden_layers=len(pattern), layer_types=[kinds[c] for c in pattern],
        final_logit_softcapping=None, num_kv_shared_layers=len(pattern), hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0, attention_k_eq_v=t.k_eq_v)
    for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        text.pop(name, None)
    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**text, enable_moe_block=False), backbone_hidden_size=t.hidden)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    model = Gemma4AssistantForCausalLM(config).float().eval()
    draw = tiny_models.Draw(seed)
    own = tiny_configs.Tiny("own", pattern, experts=0, hidden=width, dense=dense)
    with torch.no_grad():
        tiny_models.fill_trunk(model.model.embed_tokens, model.model.norm, model.model.layers, draw, own)
        for lin in (model.pre_projection, model.post_projection):
            lin.weight.copy_(draw.normal(lin.weight, 1.3 / lin.weight.shape[1] ** 0.5))
    model.tie_weights()
    return model


def write(path, t, pattern, width, dense, model):
    """With the keys and names of files by llama.cpp's converter."""
    w = gguf.GGUFWriter(path, "gemma4-assistant")
    k = "gemma4-assistant."
    for name, value in {"block_count": len(pattern), "context_length": 1024, "embedding_length": width, "embedding_length_out": t.hidden,
                        "nextn_predict_layers": len(pattern), "feed_forward_length": dense, "attention.head_count": t.heads,
                        "attention.key_length": t.hd_global, "attention.value_length": t.hd_global,
                        "attention.key_length_swa": t.hd_local, "attention.value_length_swa": t.hd_local,
                        "attention.sliding_window": t.window, "attention.shared_kv_layers": len(pattern),
                        "embedding_length_per_layer_input": 0, "rope.dimension_count": t.hd_global,
                        "rope.dimension_count_swa": t.hd_local}.items():
        w.add_uint32(k + name, value)
    w.add_array(k + "attention.head_count_kv", [t.kv_local if c == "s" else t.kv_global for c in pattern])
    w.add_array(k + "attention.sliding_window_pattern", [c == "s" for c in pattern])
    w.add_float32(k + "attention.layer_norm_rms_epsilon", t.eps)
    w.add_float32(k + "rope.freq_base", t.theta_global)
    w.add_float32(k + "rope.freq_base_swa", t.theta_local)
    w.add_name(os.path.basename(path)[:-5])
    w.add_file_type(0)
    tiny_gguf.add_tokenizer(w, t.vocab)

    def put(name, x):
        w.add_tensor(name, np.ascontiguousarray(x.detach().numpy(), dtype=np.float32))

    put("token_embd.weight", model.model.embed_tokens.weight)
    put("output_norm.weight", model.model.norm.weight)
    put("nextn.pre_projection.weight", model.pre_projection.weight)
    put("nextn.post_projection.weight", model.post_projection.weight)
    freqs = np.full(t.hd_global // 2, 1e30, dtype=np.float32)
    freqs[:int(0.25 * t.hd_global // 2)] = 1.0
    w.add_tensor("rope_freqs.weight", freqs)
    own = tiny_configs.Tiny("own", pattern, experts=0, hidden=width, dense=dense)
    for i, layer in enumerate(model.model.layers):
        for name, x in tiny_gguf.layer_tensors(layer, own, pattern[i]).items():
            put(f"blk.{i}.{name}", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def masks_of(t, n, offset):
    """What the rows of tokens offset, offset + 1 .. see of n keys: those before them, with a window as many as have room beside their own."""
    row, key = torch.arange(offset, n)[:, None], torch.arange(n)[None, :]
    before, near = key < row, key > row - t.window
    return {kind: torch.where(seen, 0.0, -1e9)[None, None] for kind, seen in (("full_attention", before), ("sliding_attention", before & near))}


def texts_of(t, target, g, n):
    """Texts that the target goes on with, greedily and by chance, from random beginnings."""
    torch.manual_seed(int(torch.randint(0, 1 << 30, (1,), generator=g)))
    begin = torch.randint(5, t.vocab, (n, 4), generator=g)
    with torch.no_grad():
        return torch.cat([target.generate(begin[i::2], max_new_tokens=44, min_new_tokens=44, do_sample=i == 1, pad_token_id=0)
                          for i in range(2)])


def train(t, target, model, seed, steps):
    """Learns the target's texts, so that some drafts are right."""
    g = torch.Generator().manual_seed(seed)
    texts = texts_of(t, target, g, 512)
    best = torch.optim.Adam(model.parameters(), lr=4e-3)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(best, steps)
    for step in range(steps):
        rows = texts[torch.randint(0, len(texts), (32,), generator=g)]
        with torch.no_grad():
            out = target(rows, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
            pair = torch.cat([target.get_input_embeddings()(rows[:, 1:]), out.hidden_states[-1][:, :-1]], dim=-1)
        n = rows.shape[1]
        last = model.model(input_ids=None, inputs_embeds=model.pre_projection(pair), attention_mask=masks_of(t, n, 1),
                           position_ids=torch.arange(1, n)[None], shared_kv_states=dict(out.shared_kv_states), use_cache=False,
                           logits_to_keep=torch.arange(n - 1))
        logits = model.lm_head(last.last_hidden_state)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, t.vocab), rows[:, 2:].reshape(-1))
        best.zero_grad()
        loss.backward()
        best.step()
        rate.step()
        if step % 100 == 0 or step + 1 == steps:
            right = float((logits.argmax(-1) == rows[:, 2:]).float().mean())
            print(f"step {step}: loss {loss.item():.3f}, {right:.1%} right", flush=True)


@torch.no_grad()
def draft(t, target, model, prompt):
    """The token that the target goes on with, then the likeliest of each draft, and the drafts' logits [DRAFTS][vocab]."""
    out = target(torch.tensor([prompt]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    keys = {kind: (k[:, :, -(t.window - 1):], v[:, :, -(t.window - 1):]) if kind == "sliding_attention" else (k, v)
            for kind, (k, v) in dict(out.shared_kv_states).items()}
    assert all(k.shape[2] == (min(len(prompt), t.window - 1) if kind == "sliding_attention" else len(prompt))
               for kind, (k, _) in keys.items()), {kind: k.shape for kind, (k, _) in keys.items()}
    hidden, token, logits = out.hidden_states[-1][:, -1:], out.logits[:, -1:].argmax(dim=-1), [out.logits[0, -1]]
    for _ in range(DRAFTS):
        pair = torch.cat([target.get_input_embeddings()(token), hidden], dim=-1)
        step = model(inputs_embeds=pair, position_ids=torch.tensor([[len(prompt)]]), attention_mask=None,
                     shared_kv_states=keys, use_cache=False)
        hidden, token = step.last_hidden_state, step.logits.argmax(dim=-1)
        logits.append(step.logits[0, 0])
    top = torch.stack(logits).topk(2).values
    tokens = [int(x.argmax()) for x in logits]
    return tokens, torch.stack(logits[1:]), 0.0 if NEVER & set(tokens) else float((top[:, 0] - top[:, 1]).min())


def find_prompt(t, target, model, n, g):
    """One where no draft is a close call."""
    for _ in range(100):
        prompt = torch.randint(5, t.vocab, (n,), generator=g).tolist()
        tokens, logits, margin = draft(t, target, model, prompt)
        if margin > MARGIN:
            return prompt, tokens, logits
    raise SystemExit(f"no prompt of {n} tokens without a close call")


def make(name, target_name, pattern, width, dense, steps):
    t, target = target_of(target_name)
    w, g = t.window, torch.Generator().manual_seed(5)
    model = build(t, pattern, width, dense, 9000)
    if steps:
        train(t, target, model, 1, steps)
    lines, floats = [], []
    for n in (1, w - 2, w - 1, w, w + 1, 2 * w + 3, 40):
        prompt, tokens, logits = find_prompt(t, target, model, n, g)
        lines += ["prompt " + ",".join(map(str, prompt)), f"draft {tokens[0]} " + ",".join(map(str, tokens[1:]))]
        floats.append(logits.numpy().astype(np.float64).reshape(-1))
    write(os.path.join(OUT, name + ".gguf"), t, pattern, width, dense, model)
    n = len(floats[0])
    golden_floats.write(os.path.join(OUT, name), np.concatenate(floats), [(i * n, n) for i in range(len(floats))])
    head = ["weft-golden-assistant 1", f"gguf {name}.gguf", f"target {target_name}.gguf", f"n_vocab {t.vocab}", f"n_drafts {DRAFTS}",
            f"n_floats {n * len(floats)}"]
    with open(os.path.join(OUT, name + ".cases.txt"), "w", encoding="ascii") as f:
        f.write("\n".join(head + lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    for row in TABLE:
        make(*row)
