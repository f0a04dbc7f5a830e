# SPDX-License-Identifier: MIT
"""Makes quant/TYPE.bin, quant/TYPE.hash and quant/index.txt with the gguf package's dequantiser.

    python make_quant.py [TYPE]...      of the named types all values are printed, a block on each line

A line of TYPE.hash is the hash of a block's values, bit for bit; of types whose zeros may have either sign (EITHER_ZERO) both count as +0.
Random valid blocks: every byte is free but the scales, which are kept finite and include zero, negative
and subnormal ones. The first blocks of a type have all other bytes 0x00, 0xFF, 0x0F, 0xF0, 0x55 and 0xAA.
"""

import os
import sys

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "quant")
BLOCKS = 64
EITHER_ZERO = ("Q2_K", "TQ1_0", "TQ2_0")  # a device holds them with a minimum
FEWER = 24  # of the types that came later
# offsets of the float16 scales inside a block
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
LATER = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0],
         "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [],
         "TQ1_0": [52], "TQ2_0": [64]}
LAST = 128  # blocks of NVFP4 with all codes that a scale can have, one of which says not a number elsewhere


def scales(r, n):
    x = np.exp2(r.uniform(-14, 4, n)) * r.choice([-1.0, 1.0], n)
    x[:6] = [0.0, -0.0, 6.0e-8, -5.0e-5, 1.0, 65504.0]
    return x.astype(np.float16)[r.permutation(n)]


def finite_halves(r, n):
    bits = r.integers(0, 1 << 16, n).astype(np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF
    bits[:8] = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF]
    return bits


def finite_bfloats(r, n):
    bits = r.integers(0, 1 << 16, n).astype(np.uint16)
    bits[(bits & 0x7F80) == 0x7F80] &= 0xBFFF
    bits[:8] = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F]
    return bits


def blocks_of(name, size, r):
    if name == "F16":
        return finite_halves(r, BLOCKS * 32).view(np.uint8).reshape(BLOCKS, 64)
    if name == "BF16":
        return finite_bfloats(r, BLOCKS * 32).view(np.uint8).reshape(BLOCKS, 64)
    raw = r.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in HALVES.get(name, []):
        raw[:, at:at + 2] = scales(r, BLOCKS).view(np.uint8).reshape(BLOCKS, 2)
    if name == "MXFP4":
        raw[:, 0] = r.integers(2, 250, BLOCKS)
        raw[:4, 0] = [0, 1, 2, 127]
    return raw


def later_blocks(name, size, r):
    raw = r.integers(0, 256, (FEWER, size), dtype=np.uint8)
    for i, byte in enumerate((0x00, 0xFF, 0x0F, 0xF0, 0x55, 0xAA)):
        raw[i] = byte
    for at in LATER[name]:
        raw[:, at:at + 2] = scales(r, FEWER).view(np.uint8).reshape(FEWER, 2)
    if name == "IQ1_M":  # the four upper nibbles of the last eight bytes are one half
        d = scales(r, FEWER).view(np.uint16)
        for j in range(4):
            raw[:, 49 + 2 * j] = raw[:, 49 + 2 * j] & 0x0F | (d >> (4 * j) & 15).astype(np.uint8) << 4
    return raw


def nvfp4_blocks(size, r):
    """Four scales in eight bits lead a block: each of 256 in two places, then all bytes the same in six blocks."""
    raw = r.integers(0, 256, (LAST, size), dtype=np.uint8)
    raw[:, :4] = np.concatenate([np.arange(256), r.permutation(256)]).reshape(LAST, 4)
    same = np.repeat(np.array((0x00, 0xFF, 0x7F, 0x7E, 0x88, 0x08), dtype=np.uint8)[:, None], size, axis=1)
    return np.concatenate([raw, same])


def hash_of(values):
    """FNV-1a of 64 bits over the bytes of the values."""
    h = 0xCBF29CE484222325
    for byte in values.tobytes():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    os.makedirs(OUT, exist_ok=True)
    r = np.random.default_rng(20)
    lines = ["weft-golden-quant 1"]
    for name in ("F16", "BF16", *HALVES, "MXFP4", *LATER, "NVFP4"):
        kind = gguf.GGMLQuantizationType[name]
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        if elems == 1:                         # F16, BF16: 32 values stand for one block
            elems, size = 32, 64
        if name == "NVFP4":
            raw = nvfp4_blocks(size, r)
        else:
            raw = later_blocks(name, size, r) if name in LATER else blocks_of(name, size, r)
        blocks = len(raw)
        if name == "F16":                      # the package's own F16 path wants typed rows
            out = gguf.dequantize(raw.view(np.float16), kind)
        else:
            out = gguf.dequantize(raw, kind)
        out = np.ascontiguousarray(out, dtype="<f4")
        assert out.size == blocks * elems and np.isfinite(out).all()
        raw.tofile(os.path.join(OUT, name + ".bin"))
        with open(os.path.join(OUT, name + ".hash"), "w", encoding="ascii") as f:
            hashed = (out + np.float32(0) if name in EITHER_ZERO else out).reshape(blocks, elems)
            f.writelines(f"{hash_of(block):016x}\n" for block in hashed)
        if name in sys.argv[1:]:
            np.savetxt(sys.stdout, out.reshape(blocks, elems), fmt="%.9g")
        lines.append(f"{name} {kind.value} {elems} {size} {blocks}")
        print(lines[-1])
    with open(os.path.join(OUT, "index.txt"), "w", encoding="ascii") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
