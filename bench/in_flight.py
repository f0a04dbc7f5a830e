#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Looks through machine code for writes to registers that a product of the matrix units, still in flight, reads as its left operand
(wgmma reads them after it was issued, until the wait that ends it). The compiler does not see to that where a kernel's text
overwrites them, nor where the next round of a loop does. The code is read from top to bottom, as laid out, and the body of every loop
twice in a row; a kernel without such writes is not proven right by it.
Prints each such product; exit code 1 if there is one.

usage: cuobjdump -sass libweft-cuda.so | in_flight.py
"""
import re
import sys

NO_WRITE = ("ST", "SYNCS", "BRA", "ISETP", "RED", "R2UR", "UBLK", "FSETP", "BAR")  # their first register is read


def scan(code):
    """The products whose operands are written in flight: {address: the write}."""
    groups, group, read, found = [], [], {}, {}  # read: by which product, a register
    for at, text in code:
        if text.startswith("HGMMA"):
            if left := re.match(r"R(\d+)", text.split(",")[1].strip()):
                registers = range(int(left[1]), int(left[1]) + 4)
                group.append((registers, at))
                read |= {r: at for r in registers}
            if "gsb0" in text:
                groups, group = groups + [group], []
        elif m := re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x(\d)", text):
            groups = groups[-int(m[1]):] if int(m[1]) else []
            read = {r: product for registers, product in sum(groups, group) for r in registers}
        elif (m := re.match(r"(\S+)\s+R(\d+)\b", text)) and not m[1].startswith(NO_WRITE):
            n = 4 if ".128" in m[1] else 2 if ".64" in m[1] or "WIDE" in m[1] or m[1] == "CS2R" else 1
            for register in range(int(m[2]), int(m[2]) + n):
                if register in read:
                    found.setdefault(read[register], f"{at:x} {text}")
    return found


def loops(code):
    """The code between a branch back and where it goes, if there are products in it."""
    index = {at: i for i, (at, _) in enumerate(code)}
    for i, (at, text) in enumerate(code):
        m = re.match(r"BRA.* (?:0x)?([0-9a-f]+)$", text)
        first = index.get(int(m[1], 16)) if m else None
        if first is not None and first <= i and any(t.startswith("HGMMA") for _, t in code[first:i]):
            yield code[first:i + 1]


kernels, n_products, n_loops, n_found = {}, 0, 0, 0
for line in sys.stdin:
    if m := re.search(r"Function : (\S+)", line):
        code = kernels.setdefault(m[1], [])
    elif m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(.*?)\s*;", line):
        code.append((int(m[1], 16), m[2].strip()))
for kernel, code in kernels.items():
    found = scan(code)
    for body in loops(code):
        found |= scan(body * 2)
        n_loops += 1
    for product, write in found.items():
        print(f"{kernel}: the product at {product:x} may still run at {write}")
    n_products += sum(text.startswith("HGMMA") for _, text in code)
    n_found += len(found)
print(f"{n_products} products of the matrix units in {n_loops} loops, {n_found} with operands that are overwritten in flight")
sys.exit(1 if n_found or n_products == 0 else 0)
