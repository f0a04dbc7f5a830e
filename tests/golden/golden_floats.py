# SPDX-License-Identifier: MIT
"""The expected floats of a golden model: models/NAME.q24, half of float32's bytes at an error that no test sees.

Runs of at most 256 floats: how many as 16 bits, the least value and a step as float32, then a number for each float:
value = least + step * number. The top bit of how many says that the numbers have 16 bits, else they have 24. A run is
part of one block, which tests judge as one by 2e-4 of its range; a float is off by at most 1e-7 of that range, with 16
bits by at most 8e-6, a 25th of what a test allows. What a test computes with, as the logits of a step that the next one
starts from, keeps 24 bits: the step makes a hundred times more of an error. tests/support/golden_floats.h reads the
same."""
import numpy as np

RUN, SHORT = 256, 1 << 15


def write(base, floats, blocks, fine=None):
    """blocks: (offset, count) of what a test judges as one, ascending and without a gap; fine: the offsets of those
    that keep 24 bits, None: all do."""
    floats, end = np.asarray(floats, dtype=np.float64), 0
    with open(base + ".q24", "wb") as f:
        for at, n in blocks:
            assert at == end, (base, at, end)
            end = at + n
            size = 3 if fine is None or at in fine else 2
            most = (1 << 8 * size) - 1
            for start in range(at, end, RUN):
                run = floats[start:min(start + RUN, end)]
                least = np.float32(run.min())
                step = np.float32((run.max() - float(least)) / most)
                number = np.rint((run - float(least)) / (float(step) or 1.0)).clip(0, most).astype("<u4")
                f.write(np.uint16(len(run) | (SHORT if size == 2 else 0)).tobytes() + least.tobytes() + step.tobytes())
                f.write(number.reshape(-1, 1).view(np.uint8)[:, :size].tobytes())
    assert end == len(floats), (base, end, len(floats))


def read(base, n):
    with open(base + ".q24", "rb") as f:
        data = f.read()
    floats, at, start = np.zeros(n), 0, 0
    while at < len(data):
        count = int(np.frombuffer(data, "<u2", 1, at)[0])
        size, count = (2 if count & SHORT else 3), count & ~SHORT
        least, step = np.frombuffer(data, "<f4", 2, at + 2).astype(np.float64)
        number = np.frombuffer(data, np.uint8, size * count, at + 10).reshape(count, size) @ 256.0 ** np.arange(size)
        floats[start:start + count] = least + step * number
        start, at = start + count, at + 10 + size * count
    assert start == n, (base, start, n)
    return floats
