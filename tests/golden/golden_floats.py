# SPDX-License-Identifier: MIT
"""The expected floats of a golden model: models/NAME.q24, three quarters of float32's bytes at an error that no test sees.

Runs of at most 256 floats: how many as 16 bits, the least value and a step as float32, then a number of 24 bits for each float:
value = least + step * number. A run is part of one block, which tests judge as one by 2e-4 of its range; a float is off by at most
1e-7 of that range. tests/support/golden_floats.h reads the same."""
import numpy as np

RUN, MOST = 256, (1 << 24) - 1


def write(base, floats, blocks):
    """blocks: (offset, count) of what a test judges as one, ascending and without a gap."""
    floats, end = np.asarray(floats, dtype=np.float64), 0
    with open(base + ".q24", "wb") as f:
        for at, n in blocks:
            assert at == end, (base, at, end)
            end = at + n
            for start in range(at, end, RUN):
                run = floats[start:min(start + RUN, end)]
                least = np.float32(run.min())
                step = np.float32((run.max() - float(least)) / MOST)
                number = np.rint((run - float(least)) / (float(step) or 1.0)).clip(0, MOST).astype("<u4")
                f.write(np.uint16(len(run)).tobytes() + least.tobytes() + step.tobytes())
                f.write(number.reshape(-1, 1).view(np.uint8)[:, :3].tobytes())
    assert end == len(floats), (base, end, len(floats))


def read(base, n):
    with open(base + ".q24", "rb") as f:
        data = f.read()
    floats, at, start = np.zeros(n), 0, 0
    while at < len(data):
        count = int(np.frombuffer(data, "<u2", 1, at)[0])
        least, step = np.frombuffer(data, "<f4", 2, at + 2).astype(np.float64)
        low, middle, high = np.frombuffer(data, np.uint8, 3 * count, at + 10).reshape(count, 3).astype(np.float64).T
        floats[start:start + count] = least + step * (low + 256 * middle + 65536 * high)
        start, at = start + count, at + 10 + 3 * count
    assert start == n, (base, start, n)
    return floats
