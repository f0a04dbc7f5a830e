# SPDX-License-Identifier: MIT
"""Makes models/dg-mxfp4.*: dg-base with wider experts, which are stored as MXFP4.

    python make_mxfp4.py

The package gguf quantises the experts and says what the stored blocks mean. A second file, which is not kept, holds these
values in F32 and everything else byte for byte. In both files the embeddings are BF16, because weft keeps keys and values of a file
in BF16 unless all of it is F32. The expected logits and residual streams are those of the float64 pass of check_models.py
over that plain file with such keys and values, for the cases of dg-base. Needs gguf and numpy alone.
"""

import os
import tempfile

import gguf
import numpy as np

import check_models
import golden_floats

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "models")
BF16 = gguf.GGMLQuantizationType.BF16
N_FF = 32              # dg-base has 16, which is no whole block
MIN_ROUTER_GAP = 1e-4  # in router logits, between the last chosen expert and the next


def copy_keys(reader, w):
    """All keys but those that the writer makes itself; experts are wider."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        value = N_FF if name.endswith(".expert_feed_forward_length") else field.contents()
        w.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def draw_experts(reader, seed):
    """Random experts of the new width, as large as the old ones."""
    rng, out = np.random.default_rng(seed), {}
    for x in reader.tensors:
        if "_exps.weight" not in x.name:
            continue
        n_in, n_out, n_mats = (int(n) for n in x.shape)
        shape = (n_mats, 2 * N_FF, n_in) if "gate_up" in x.name else (n_mats, n_out, N_FF)
        out[x.name] = rng.normal(0, np.std(x.data), shape).astype(np.float32)
    return out


def write(path, reader, experts, stored):
    w = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    copy_keys(reader, w)
    for x in reader.tensors:
        if x.name == "token_embd.weight":
            w.add_tensor(x.name, gguf.quants.quantize(np.array(x.data), BF16), raw_dtype=BF16)
        elif x.name not in experts:
            w.add_tensor(x.name, np.array(x.data).reshape([int(n) for n in x.shape[::-1]]))
        elif stored:
            w.add_tensor(x.name, experts[x.name], raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            w.add_tensor(x.name, experts[x.name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Run(check_models.Run):
    """Keys and values in BF16; keeps the smallest gap that decided which experts were taken."""
    gap = float("inf")

    def kept(self, x):
        return gguf.quants.dequantize(gguf.quants.quantize(x.astype(np.float32), BF16), BF16).astype(np.float64)

    def experts(self, i, a):
        m = self.m
        z = check_models.rms(a, m.eps) * m.get(i, "ffn_gate_inp.scale") / m.width ** 0.5
        z = np.sort(z @ m.get(i, "ffn_gate_inp.weight").T, axis=-1)
        Run.gap = min(Run.gap, (z[:, -m.top_k] - z[:, -m.top_k - 1]).min())
        return super().experts(i, a)


def expected(model, head, ops):
    """The floats of all cases, at the offsets that dg-base has them."""
    vocab, floats, run, stream = int(head["n_vocab"]), np.zeros(int(head["n_floats"]), dtype="<f4"), None, None
    for word, rest in ops:
        if word == "case":
            run = Run(model, ())
            continue
        if word == "hidden":
            floats[int(rest[0]):][:stream.size] = stream.reshape(-1)
            continue
        rows, at = int(rest[0]), int(rest[1])
        tokens = [int(x) for x in rest[-1].split(",")]
        if word == "encode":
            got, stream = run.encode(tokens)
        else:
            prev = None if rest[2] == "none" else floats[int(rest[2]):][:rows * vocab].reshape(rows, vocab)
            got, stream = run.canvas(tokens, prev, float(rest[3]))
        floats[at:at + rows * vocab] = got.reshape(-1)
    return floats


def main():
    base = gguf.GGUFReader(os.path.join(OUT, "dg-base.gguf"))
    head, ops, _ = check_models.load_cases("dg-base")
    kind = gguf.GGMLQuantizationType.MXFP4
    for seed in range(1, 100):
        experts = {n: gguf.quants.quantize(v, kind) for n, v in draw_experts(base, seed).items()}
        means = {n: gguf.quants.dequantize(v, kind) for n, v in experts.items()}
        write(os.path.join(OUT, "dg-mxfp4.gguf"), base, experts, True)
        Run.gap = float("inf")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plain.gguf")
            write(path, base, means, False)
            floats = expected(check_models.Model(path), head, ops)
        if Run.gap >= MIN_ROUTER_GAP:
            break
    with open(os.path.join(OUT, "dg-base.cases.txt"), encoding="ascii") as f:
        lines = f.read().splitlines(keepends=True)
    end = lines.index("case prompt-15\n")  # the cases before it are kept
    n = int(lines[end + 1].split()[2])
    golden_floats.write(os.path.join(OUT, "dg-mxfp4"), floats[:n],
                        [b for b in check_models.blocks_of(head, ops) if b[0] < n], check_models.fed(ops))
    with open(os.path.join(OUT, "dg-mxfp4.cases.txt"), "w", encoding="ascii") as f:
        for line in lines[:end]:
            word = line.split()[0]
            own = {"n_floats": f"n_floats {n}\n", "gguf": "gguf dg-mxfp4.gguf\ntolerance 1e-3 ref\n", "twin": "", "seed": f"seed {seed}\n"}
            f.write(own.get(word, line))
    print(f"seed {seed}, router gap {Run.gap:.1e}, {n} floats")


if __name__ == "__main__":
    main()
