# SPDX-License-Identifier: MIT
"""Writes the trained weights as GGUF files: the diffusion model in Q8_0, the same weights as
`gemma4`, smaller, and the drafter.

python3 export.py CHECKPOINT      writes weft-demo.gguf and weft-demo-ar.gguf beside this file
python3 export.py --drafter CHECKPOINT    writes weft-demo-draft.gguf beside this file
python3 export.py --random        all three with untrained weights
"""

import argparse
import os

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q

from evaluate import load
from model import Config, Demo, drafter
from tokenizer import BOS, EOS, MASK, PAD, UNK, Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATE = """{{- bos_token -}}
{%- set think = enable_thinking is defined and enable_thinking -%}
{%- set declared = tools is defined and tools -%}
{%- set system = messages[0]['role'] in ['system', 'developer'] -%}
{%- set rest = messages[1:] if system else messages -%}
{%- if think or declared or system -%}
{{- '<|turn>system\\n' -}}
{%- if think -%}{{- '<|think|>\\n' -}}{%- endif -%}
{%- if system -%}{{- messages[0]['content'] | trim -}}{%- endif -%}
{%- if declared -%}
{{- ('\\n' if system else '') + 'Tools:' -}}
{%- for tool in tools -%}
{%- set f = tool['function'] -%}
{{- '\\n' + f['name'] + '(' -}}
{%- if f['parameters'] is mapping and f['parameters']['properties'] is mapping -%}
{%- for k, v in f['parameters']['properties'].items() -%}
{{- ('' if loop.first else ', ') + k -}}
{%- if v is mapping and v['type'] is string -%}{{- ': ' + v['type'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- ')' -}}
{%- if f['description'] -%}{{- ': ' + f['description'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for m in rest -%}
{{- '<|turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' -}}
{%- if m['content'] -%}{{- m['content'] | trim -}}{%- endif -%}
{%- if m['tool_calls'] -%}
{%- for c in m['tool_calls'] -%}
{%- if m['content'] or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + c['function']['name'] + '", "arguments": ' -}}
{{- c['function']['arguments'] | tojson -}}{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}{%- if not think -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}"""


def tensors(model, diffusion):
    """(name, array, is a matrix) in file order. Arrays have the input dimension last, as GGUF
    rows want it."""

    def get(p):
        return p.detach().float().cpu().numpy()

    yield "token_embd.weight", get(model.embed), True
    yield "output_norm.weight", get(model.out_norm), False
    cfg = model.cfg
    hd = cfg.head_dim["f"]
    turned = int(cfg.rotated["f"] * hd / 2)
    yield (
        "rope_freqs.weight",
        np.array([1.0] * turned + [1e30] * (hd // 2 - turned), dtype=np.float32),
        False,
    )
    if diffusion:
        yield "self_cond_pre_norm.weight", get(model.sc_norm), False
        for name in ("gate", "up", "down"):
            yield f"self_cond_{name}.weight", get(getattr(model, "sc_" + name)), True
    names = (
        ("attn_norm.weight", "attn_norm"),
        ("attn_q.weight", "wq"),
        ("attn_k.weight", "wk"),
        ("attn_v.weight", "wv"),
        ("attn_output.weight", "wo"),
        ("attn_q_norm.weight", "q_norm"),
        ("attn_k_norm.weight", "k_norm"),
        ("post_attention_norm.weight", "post_attn_norm"),
        ("ffn_norm.weight", "ffn_norm"),
        ("ffn_gate.weight", "gate"),
        ("ffn_up.weight", "up"),
        ("ffn_down.weight", "down"),
        ("post_ffw_norm_1.weight", "post_norm_1"),
        ("pre_ffw_norm_2.weight", "pre_norm_2"),
        ("post_ffw_norm_2.weight", "post_norm_2"),
        ("post_ffw_norm.weight", "post_norm"),
        ("ffn_gate_inp.weight", "router"),
        ("ffn_gate_inp.scale", "router_scale"),
        ("ffn_gate_up_exps.weight", "gate_up"),
        ("ffn_down_exps.weight", "exp_down"),
        ("ffn_down_exps.scale", "expert_scale"),
        ("layer_output_scale.weight", "dec_scalar" if diffusion else "enc_scalar"),
    )
    for i, block in enumerate(model.blocks):
        for name, attr in names:
            p = getattr(block, attr)
            if p is not None:  # not every layer has V, and the drafter has no experts
                yield f"blk.{i}.{name}", get(p), p.dim() > 1 and attr != "router"
        if diffusion:
            yield f"blk.{i}.enc_layer_output_scale.weight", get(block.enc_scalar), False


def metadata(w, cfg, tok, diffusion, context):
    a = w.arch
    full = [k == "f" for k in cfg.layers]
    kind = "" if diffusion else ", autoregressive" if cfg.experts else ", drafter"
    w.add_name("weft demo" + kind)
    w.add_license("mit")
    for key, value in (
        ("block_count", len(cfg.layers)),
        ("context_length", context),
        ("embedding_length", cfg.hidden),
        ("feed_forward_length", cfg.dense_size),
        ("attention.head_count", cfg.heads),
        ("attention.key_length", cfg.head_dim["f"]),
        ("attention.value_length", cfg.head_dim["f"]),
        ("attention.key_length_swa", cfg.head_dim["s"]),
        ("attention.value_length_swa", cfg.head_dim["s"]),
        ("attention.sliding_window", cfg.window),
        ("attention.shared_kv_layers", 0),
        ("embedding_length_per_layer_input", 0),
        ("rope.dimension_count", cfg.head_dim["f"]),
        ("rope.dimension_count_swa", cfg.head_dim["s"]),
        ("vocab_size", cfg.vocab),
    ):
        w.add_uint32(f"{a}.{key}", value)
    if cfg.experts:
        w.add_uint32(f"{a}.expert_feed_forward_length", cfg.expert_size)
        w.add_uint32(f"{a}.expert_count", cfg.experts)
        w.add_uint32(f"{a}.expert_used_count", cfg.top_k)
    w.add_array(f"{a}.attention.head_count_kv", [cfg.kv_heads[k] for k in cfg.layers])
    w.add_array(f"{a}.attention.sliding_window_pattern", [not f for f in full])
    for key, value in (
        ("attention.layer_norm_rms_epsilon", cfg.eps),
        ("rope.freq_base", cfg.theta["f"]),
        ("rope.freq_base_swa", cfg.theta["s"]),
        ("final_logit_softcapping", cfg.softcap),
    ):
        w.add_float32(f"{a}.{key}", value)
    if diffusion:
        w.add_bool(f"{a}.attention.causal", False)
        w.add_uint32("diffusion.canvas_length", cfg.canvas)
        w.add_uint32("diffusion.eb_max_steps", 48)
        w.add_float32("diffusion.eb_t_min", 0.4)
        w.add_float32("diffusion.eb_t_max", 0.8)
        w.add_float32("diffusion.eb_entropy_bound", 0.1)
        w.add_uint32("diffusion.eb_stability_threshold", 1)
        w.add_float32("diffusion.eb_confidence_threshold", 0.005)
    w.add_string("tokenizer.ggml.model", "gemma4")
    w.add_array("tokenizer.ggml.tokens", tok.tokens)
    w.add_array("tokenizer.ggml.scores", [-float(i) for i in range(len(tok))])
    w.add_array("tokenizer.ggml.token_type", tok.types)
    w.add_array("tokenizer.ggml.merges", [" ".join(m) for m in tok.merges])
    for key, value in (
        ("bos", BOS),
        ("eos", EOS),
        ("unknown", UNK),
        ("padding", PAD),
        ("mask", MASK),
    ):
        w.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    w.add_bool("tokenizer.ggml.add_space_prefix", False)
    w.add_bool("tokenizer.ggml.add_bos_token", True)
    w.add_string("tokenizer.chat_template", TEMPLATE)


def write(path, model, tok, diffusion, matrix_type, embed_type, context=2048):
    w = gguf.GGUFWriter(path, "diffusion-gemma" if diffusion else "gemma4")
    metadata(w, model.cfg, tok, diffusion, context)
    w.add_file_type(
        gguf.LlamaFileType.MOSTLY_Q8_0 if matrix_type == Q.Q8_0 else gguf.LlamaFileType.MOSTLY_Q5_0
    )
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, data, is_matrix in tensors(model, diffusion):
        kind = (
            Q.F32 if not is_matrix else embed_type if name == "token_embd.weight" else matrix_type
        )
        w.add_tensor(name, gguf.quants.quantize(data, kind) if is_matrix else data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return os.path.getsize(path)


def main():
    ap = argparse.ArgumentParser(description="write the demo model as GGUF")
    ap.add_argument("checkpoint", nargs="?")
    ap.add_argument("--drafter", metavar="CHECKPOINT", help="that of the drafter")
    ap.add_argument("--random", action="store_true", help="untrained weights")
    ap.add_argument("--out", default=HERE)
    args = ap.parse_args()
    tok = Tokenizer.load()
    if args.random:
        torch.manual_seed(1)
        model, small = Demo(Config(vocab=len(tok))), Demo(drafter(len(tok)))
    else:
        model = load(args.checkpoint) if args.checkpoint else None
        small = load(args.drafter) if args.drafter else None
    for name, one, diffusion, kind in (
        ("weft-demo.gguf", model, True, Q.Q8_0),
        ("weft-demo-ar.gguf", model, False, Q.Q5_0),
        ("weft-demo-draft.gguf", small, False, Q.Q8_0),
    ):
        if one is None:
            continue
        n = sum(p.numel() for n, p in one.named_parameters() if one.cfg.canvas or "dec_" not in n)
        size = write(os.path.join(args.out, name), one, tok, diffusion, kind, Q.Q8_0)
        print(f"{name}: {n} parameters, {size} bytes")


if __name__ == "__main__":
    main()
