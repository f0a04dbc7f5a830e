# SPDX-License-Identifier: MIT
"""Writes kernels/codebooks.c from the tables of the gguf package.

    python make_codebooks.py

The lists were chosen by training when the types were made: no formula gives them, they are part of the format. An entry
holds the places of its numbers in the short list of magnitudes that the type uses: eight of two bits, or four of four
bits, the first in the lowest bits.
"""

import os
import subprocess

import numpy as np
from gguf import quants

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "kernels", "codebooks.c")
HEAD = """/* SPDX-License-Identifier: MIT */
/* Written by tests/golden/make_codebooks.py; do not edit. */
#include "kernels/codebooks.h"
"""


def main():
    lines = [HEAD]
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        kind = getattr(quants, name)
        kind.init_grid()
        magnitudes = np.array(kind.grid_map, dtype=np.float32)
        grid = kind.grid.reshape(kind.grid_shape)
        places = np.argmin(np.abs(grid[..., None] - magnitudes), axis=-1)
        assert (magnitudes[places] == grid).all()
        step = 16 // grid.shape[1]
        codes = (places << (step * np.arange(grid.shape[1]))).sum(axis=-1)
        lines.append(f"\n/* {', '.join(str(int(m)) for m in kind.grid_map)} */\n")
        lines.append(f"const uint16_t codebook_{name.lower()}[{len(codes)}] = {{\n")
        for i in range(0, len(codes), 16):
            lines.append("    " + ", ".join(str(c) for c in codes[i:i + 16]) + ",\n")
        lines.append("};\n")
    with open(OUT, "w", encoding="ascii") as f:
        f.write("".join(lines))
    subprocess.run(["clang-format", "-i", OUT], check=True)


if __name__ == "__main__":
    main()
