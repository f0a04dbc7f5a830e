# SPDX-License-Identifier: MIT
"""Writes a GGUF file again with its matrices in another type, for measurements of quality: weft has no quantiser.

python3 bench/requantise.py IN.gguf OUT.gguf TYPE      (needs the package gguf; TYPE: F32, Q8_0, Q5_1, Q4_0, ..., Q4_K, Q5_K, Q6_K, Q4_K_M)

Keys are copied. A matrix takes the type; vectors and routers stay F32. The values are those of IN's blocks, so F32 is
the original of every other type that is made of the same file. One vector is BF16 in every file: weft keeps keys and values in F32
for a file of F32 alone, and files that are compared should differ in their weights only.

The package writes the types of 32 numbers; those of 256 are written here, each scale by least squares over a range of guesses.
Rows that are no multiple of 256 take the type that files have in its place (FALLBACK). Q4_K_M is Q4_K, but for values, down projections
and embeddings, which are Q6_K.
"""

import sys

import gguf
import numpy as np

K = gguf.GGMLQuantizationType
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
FINER = ("attn_v", "ffn_down", "token_embd")  # of Q4_K_M


def type_of(name, shape, wanted):
    """The type that a matrix of this name and shape has in a file of the wanted type."""
    if wanted == "Q4_K_M":
        wanted = "Q6_K" if any(word in name for word in FINER) else "Q4_K"
    return K[FALLBACK[wanted]] if wanted in FALLBACK and shape[-1] % 256 else K[wanted]


def fit_affine(x, most):
    """scale and least of x ~ scale * code - least, code 0 .. most, for each row: the best of some ranges by least squares, in which
    large numbers weigh more."""
    weight = np.sqrt((x * x).mean(-1, keepdims=True)) + np.abs(x) + 1e-30
    low = np.minimum(x.min(-1, keepdims=True), 0.0)
    span = np.maximum(x.max(-1, keepdims=True) - low, 1e-30)
    total, sum_x = weight.sum(-1), (weight * x).sum(-1)
    best = [np.full(x.shape[0], np.inf), np.zeros(x.shape[0]), np.zeros(x.shape[0])]
    for more in np.arange(-1.0, 1.05, 0.1):
        code = np.clip(np.rint((x - low) * (most + more) / span), 0, most)
        sum_c, sum_cc, sum_cx = (weight * code).sum(-1), (weight * code * code).sum(-1), (weight * code * x).sum(-1)
        apart = total * sum_cc - sum_c * sum_c
        scale = np.where(apart > 0, (total * sum_cx - sum_c * sum_x) / np.maximum(apart, 1e-30), 0.0)
        least = (scale * sum_c - sum_x) / total
        alone = sum_cx / np.maximum(sum_cc, 1e-30)  # where the least would be above 0, it is 0
        scale, least = np.where(least < 0, alone, scale), np.maximum(least, 0.0)
        error = (weight * (scale[:, None] * code - least[:, None] - x) ** 2).sum(-1)
        better = (error < best[0]) & (scale > 0)
        best = [np.where(better, new, old) for new, old in zip((error, scale, least), best)]
    return best[1], best[2]


def fit_scale(x, most):
    """scale of x ~ scale * code, code -most .. most - 1, for each row, as fit_affine does."""
    largest = np.take_along_axis(x, np.abs(x).argmax(-1)[:, None], -1)
    largest = np.where(np.abs(largest) < 1e-30, 1e-30, largest)
    weight, best = x * x, [np.full(x.shape[0], np.inf), np.zeros(x.shape[0])]
    for more in np.arange(-0.9, 0.95, 0.1):
        code = np.clip(np.rint(-(most + more) * x / largest), -most, most - 1)
        scale = (weight * code * x).sum(-1) / np.maximum((weight * code * code).sum(-1), 1e-30)
        error = (weight * (scale[:, None] * code - x) ** 2).sum(-1)
        better = error < best[0]
        best = [np.where(better, new, old) for new, old in zip((error, scale), best)]
    return best[1]


def half(x):
    return x.astype(np.float16)


def codes_of(x, scale, least, low, high):
    """Codes of x under scales that were rounded; 0 where a scale is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        code = np.rint((x + least[..., None]) / scale[..., None])
    return np.clip(np.where(np.isfinite(code), code, 0), low, high).astype(np.int64)


def pack_affine(values, bits):
    """Blocks of Q4_K (4 bits) and Q5_K (5)."""
    x = values.reshape(-1, 8, 32).astype(np.float64)
    scale, least = (a.reshape(-1, 8) for a in fit_affine(x.reshape(-1, 32), (1 << bits) - 1))
    d, dmin = half(scale.max(-1) / 63), half(least.max(-1) / 63)
    with np.errstate(divide="ignore", invalid="ignore"):
        sixes = [np.clip(np.nan_to_num(np.rint(a / b.astype(np.float64)[:, None]), posinf=0), 0, 63).astype(np.uint8)
                 for a, b in ((scale, d), (least, dmin))]
    code = codes_of(x, d.astype(np.float64)[:, None] * sixes[0], dmin.astype(np.float64)[:, None] * sixes[1], 0, (1 << bits) - 1)
    s, m = sixes
    packed = np.concatenate((s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4), -1)
    low = (code[:, 0::2] & 15 | (code[:, 1::2] & 15) << 4).reshape(-1, 128).astype(np.uint8)
    parts = [d[:, None].view(np.uint8), dmin[:, None].view(np.uint8), packed]
    if bits == 5:
        parts.append(((code >> 4) << np.arange(8)[None, :, None]).sum(1).astype(np.uint8))
    return np.concatenate([*parts, low], -1).reshape(*values.shape[:-1], -1)


def pack_six(values):
    """Blocks of Q6_K."""
    x = values.reshape(-1, 16, 16).astype(np.float64)
    scale = fit_scale(x.reshape(-1, 16), 32).reshape(-1, 16)
    d = half(np.take_along_axis(scale, np.abs(scale).argmax(-1)[:, None], -1)[:, 0] / -128)
    with np.errstate(divide="ignore", invalid="ignore"):
        eights = np.clip(np.nan_to_num(np.rint(scale / d.astype(np.float64)[:, None]), posinf=0), -128, 127).astype(np.int8)
    own = d.astype(np.float64)[:, None] * eights
    code = (codes_of(x, own, np.zeros_like(own), -32, 31) + 32).reshape(-1, 2, 4, 32)
    low = np.concatenate((code[:, :, 0] & 15 | (code[:, :, 2] & 15) << 4, code[:, :, 1] & 15 | (code[:, :, 3] & 15) << 4), -1)
    high = (code >> 4 << np.array([0, 2, 4, 6])[None, None, :, None]).sum(2)
    parts = [low.reshape(-1, 128).astype(np.uint8), high.reshape(-1, 64).astype(np.uint8), eights.view(np.uint8), d[:, None].view(np.uint8)]
    return np.concatenate(parts, -1).reshape(*values.shape[:-1], -1)


def quantise(values, kind):
    """The bytes of values in a type."""
    if kind == K.Q6_K:
        return pack_six(values)
    if kind in (K.Q4_K, K.Q5_K):
        return pack_affine(values, 4 if kind == K.Q4_K else 5)
    return gguf.quants.quantize(values, kind)


def copy_keys(reader, writer):
    for field in reader.fields.values():
        kind = field.types[0]
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        if field.name == "general.file_type":
            continue
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def write_again(source, target, wanted, change=None):
    """change: a function of a dict of all values by name, which may alter them before they are stored."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_keys(reader, writer)
    values = {t.name: np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32) for t in reader.tensors}
    if change is not None:
        change(values)
    for name, value in values.items():
        is_matrix = value.ndim > 1 and "ffn_gate_inp" not in name
        own = type_of(name, value.shape, wanted) if is_matrix else K.F32
        if name == "output_norm.weight":
            own = K.BF16
        writer.add_tensor(name, quantise(value, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    source, target, wanted = sys.argv[1:4]
    write_again(source, target, wanted)


if __name__ == "__main__":
    main()
