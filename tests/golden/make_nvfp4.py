# SPDX-License-Identifier: MIT
"""Makes models/qwen3-nvfp4.*, qwen3moe-nvfp4.* and ar-nvfp4.*: qwen3-base, qwen3moe-base and ar-moe-v with wider rows,
stored as NVFP4 with the scales that makers of such files put beside the matrices.

    python make_nvfp4.py

As the converters do it, a matrix X.weight is divided by one factor (experts: by one each) that puts its largest number at
the top of what NVFP4 holds; X.scale holds the factor, X.input_scale one that only matters to who makes rows numbers of four
bits, and what multiplies an expert's answer is folded into ffn_down_exps.scale. A factor of one is not written. The package
gguf says what the stored blocks mean. The expected floats are those of the float64 passes of check_llama.py
and check_models.py over a file with these values, times their factors, in F32; keys and values are BF16, because weft keeps
them so of a file that is not all F32. Needs what check_models.py needs.
"""

import os
import tempfile

import gguf
import numpy as np

import check_llama
import check_models
import golden_floats

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "models")
BF16, NVFP4 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.NVFP4
WIDTH = 64             # of the residual stream, the MLP and experts: rows of one block
TOP = 6 * 448          # the largest number that a block holds
FLOATS_MAX = 12000     # of expected logits; the cases after that are left out
MIN_ROUTER_GAP = 1e-4  # in router logits, between the last chosen expert and the next
WIDENED = (".embedding_length", ".feed_forward_length", ".expert_feed_forward_length")
INPUTS = ("attn_q", "attn_k", "attn_v", "token_embd", "output", "ffn_gate_inp")  # whose outputs keep their number


def shape_of(name, old):
    """Widened, as [matrices, outputs, inputs] or shorter."""
    stem = name.split(".")[-2]
    if len(old) == 1:
        return old if stem in ("attn_q_norm", "attn_k_norm", "rope_freqs", "layer_output_scale", "ffn_down_exps") else (WIDTH,)
    if stem in INPUTS:
        return (*old[:-1], WIDTH)
    return (*old[:-2], WIDTH, old[-1] if stem == "attn_output" else WIDTH)


def draw(reader, rng):
    """Random tensors of the new shapes, as large as the old ones."""
    out = {}
    for x in reader.tensors:
        old = np.array(x.data, dtype=np.float64).reshape([int(n) for n in x.shape[::-1]])
        shape = shape_of(x.name, old.shape)
        if old.ndim == 1:
            value = old if shape == old.shape else rng.uniform(old.min(), old.max(), shape)
        else:
            value = rng.normal(0, old.std() * (old.shape[-1] / shape[-1]) ** 0.5, shape)
        out[x.name] = value.astype(np.float32)
    return out


def quantise(x):
    """Blocks of NVFP4: the largest of each sixteen becomes 6 times its scale; numbers go to the nearest that there is."""
    kind = gguf.quants.NVFP4
    x = np.ascontiguousarray(x, dtype=np.float32)
    sixteen = x.reshape(-1, 4, 16)
    codes = kind.fp32_to_ue4m3(np.abs(sixteen).max(axis=-1) / 6).astype(np.uint8)
    step = np.asarray(kind.ue4m3_to_fp32(codes), dtype=np.float32)[..., None]
    scaled = np.divide(sixteen, step, out=np.zeros_like(sixteen), where=step > 0)
    near = np.abs(scaled[..., None] - np.array(kind.kvalues, dtype=np.float32)).argmin(axis=-1).astype(np.uint8)
    packed = near[..., :8] | near[..., 8:] << 4
    blocks = np.concatenate([codes, packed.reshape(-1, 32)], axis=-1)
    return blocks.reshape(*x.shape[:-1], x.shape[-1] // 64 * 36)


def store(tensors, is_stored, rng):
    """The tensors of the file, as (array, type), and what they mean."""
    stored, plain = {}, dict(tensors)
    for name, value in tensors.items():
        base = name[:-len(".weight")]
        if name not in stored:
            stored[name] = (value, None)
        if value.ndim == 1 or not is_stored(name) or "ffn_gate_inp" in name or value.shape[-1] % 64 != 0:
            continue
        shape = (value.shape[0], 1, 1) if value.ndim == 3 else (1, 1)
        factor = np.abs(value).max(axis=tuple(range(value.ndim - 2, value.ndim)), keepdims=True) / np.float32(TOP)
        if base == "token_embd":
            factor = np.ones(shape, dtype=np.float32)  # rows are looked up: there is nothing to multiply
        factor = factor.reshape(shape)
        blocks = quantise(value / factor)
        stored[name] = (blocks, NVFP4)
        plain[name] = (gguf.quants.dequantize(blocks, NVFP4).reshape(value.shape) * factor).astype(np.float32)
        beside = factor.reshape(-1).astype(np.float32)
        if base.endswith("ffn_down_exps") and base + ".scale" in tensors:
            beside = beside * tensors[base + ".scale"]
        if base != "token_embd":
            stored[base + ".scale"] = (beside, None)
            stored[base + ".input_scale"] = (rng.uniform(1e-3, 1e-2, beside.shape).astype(np.float32), None)
    return stored, plain


def write(path, reader, tensors):
    w = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        value = WIDTH if name.endswith(WIDENED) else field.contents()
        w.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for name, (value, kind) in tensors.items():
        w.add_tensor(name, value, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def as_bf16(x):
    return gguf.quants.dequantize(gguf.quants.quantize(x.astype(np.float32), BF16), BF16).astype(np.float64)


class Gap:
    """The smallest gap that decided which experts were taken."""
    least = float("inf")


def note_gap(logits, top_k):
    z = np.sort(logits, axis=-1)
    Gap.least = min(Gap.least, (z[:, -top_k] - z[:, -top_k - 1]).min())


class LlamaRun(check_llama.Run):
    def kept(self, x):
        return as_bf16(x)

    def experts(self, i, h):
        note_gap(h @ self.m.get(i, "ffn_gate_inp.weight").T, self.m.top_k)
        return super().experts(i, h)


class GemmaRun(check_models.Run):
    def kept(self, x):
        return as_bf16(x)

    def experts(self, i, a):
        r = check_models.rms(a, self.m.eps) * self.m.get(i, "ffn_gate_inp.scale") / self.m.width ** 0.5
        note_gap(r @ self.m.get(i, "ffn_gate_inp.weight").T, self.m.top_k)
        return super().experts(i, a)


def expected(model, run_of, ops):
    """The lines of the cases and their floats."""
    lines, floats, at, run, stream = [], [], 0, None, None
    for word, rest in ops:
        if word == "case":
            if at > FLOATS_MAX:
                break
            run = run_of(model, ())
            lines.append(f"case {rest[0]}")
            continue
        if word == "encode":
            got, stream = run.encode([int(x) for x in rest[-1].split(",")])
            lines.append(f"encode {rest[0]} {at} {rest[-1]}")
        else:
            got = stream
            lines.append(f"hidden {at}")
        floats.append(got.reshape(-1))
        at += got.size
    return lines, np.concatenate(floats).astype("<f4")


def make(name, base, family, run_of, is_stored):
    reader = gguf.GGUFReader(os.path.join(OUT, base + ".gguf"))
    head, ops, _ = check_models.load_cases(base)
    for seed in range(1, 100):
        rng = np.random.default_rng(seed)
        stored, plain = store(draw(reader, rng), is_stored, rng)
        Gap.least = float("inf")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plain.gguf")
            write(path, reader, {n: (v, None) for n, v in plain.items()})
            lines, floats = expected(family.Model(path), run_of, ops)
        if Gap.least >= MIN_ROUTER_GAP:
            break
    write(os.path.join(OUT, name + ".gguf"), reader, stored)
    head |= {"gguf": name + ".gguf\ntolerance 1e-3 ref", "n_hidden": WIDTH, "n_floats": floats.size, "seed": seed}
    with open(os.path.join(OUT, name + ".cases.txt"), "w", encoding="ascii") as f:
        f.write("\n".join([f"{k} {v}" for k, v in head.items()] + lines) + "\n")
    golden_floats.write(os.path.join(OUT, name), floats, check_models.blocks_of(*check_models.read_cases(name)), ())
    n = sum(kind == NVFP4 for _, kind in stored.values())
    print(f"{name}: {n} matrices, seed {seed}, router gap {Gap.least:.1e}, {floats.size} floats")


def main():
    make("qwen3-nvfp4", "qwen3-base", check_llama, LlamaRun, lambda name: True)
    make("qwen3moe-nvfp4", "qwen3moe-base", check_llama, LlamaRun, lambda name: True)
    make("ar-nvfp4", "ar-moe-v", check_models, GemmaRun, lambda name: "_exps." in name)


if __name__ == "__main__":
    main()
