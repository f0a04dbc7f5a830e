# SPDX-License-Identifier: MIT
"""Writes a GGUF file again with its matrices in another type, for measurements of quality: weft has no quantiser.

python3 bench/requantise.py IN.gguf OUT.gguf TYPE      (needs the package gguf; TYPE: F32, Q8_0, Q5_1, Q4_0, ...)

Keys are copied. A matrix takes the type; vectors and routers stay F32. The values are those of IN's blocks, so F32 is
the original of every other type that is made of the same file. One vector is BF16 in every file: weft keeps keys and values in F32
for a file of F32 alone, and files that are compared should differ in their weights only.
"""

import sys

import gguf
import numpy as np


def copy_keys(reader, writer):
    for field in reader.fields.values():
        kind = field.types[0]
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        if field.name == "general.file_type":
            continue
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def main():
    source, target, wanted = sys.argv[1:4]
    kind = gguf.GGMLQuantizationType[wanted]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_keys(reader, writer)
    for tensor in reader.tensors:
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        is_matrix = values.ndim > 1 and "ffn_gate_inp" not in tensor.name
        own = kind if is_matrix else gguf.GGMLQuantizationType.F32
        if tensor.name == "output_norm.weight":
            own = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
