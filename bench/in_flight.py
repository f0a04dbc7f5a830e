#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Looks through machine code for writes to registers that a product of the matrix units, still in flight, reads as its left operand
(wgmma reads them after it was issued, until the wait that ends it). The compiler does not see to that where a kernel's text
overwrites them. The code is read from top to bottom, as laid out; a kernel without such writes is not proven right by it.
Prints each such product; exit code 1 if there is one.

usage: cuobjdump -sass libweft-cuda.so | in_flight.py
"""
import re
import sys

NO_WRITE = ("ST", "SYNCS", "BRA", "ISETP", "RED", "R2UR", "UBLK", "FSETP", "BAR")  # their first register is read
groups, group, kernel, n_products, found = [], [], "", 0, {}
for line in sys.stdin:
    if m := re.search(r"Function : (\S+)", line):
        groups, group, kernel = [], [], m[1]
    if not (m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(.*?);", line)):
        continue
    at, text = m[1], m[2].strip()
    if text.startswith("HGMMA"):
        n_products += 1
        if left := re.match(r"R(\d+)", text.split(",")[1].strip()):
            group.append((set(range(int(left[1]), int(left[1]) + 4)), at))
        if "gsb0" in text:
            groups, group = groups + [group], []
    elif m := re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x(\d)", text):
        groups = groups[-int(m[1]):] if int(m[1]) else []
    elif (m := re.match(r"(\S+)\s+R(\d+)\b", text)) and not m[1].startswith(NO_WRITE):
        n = 4 if ".128" in m[1] else 2 if ".64" in m[1] or "WIDE" in m[1] or m[1] == "CS2R" else 1
        written = set(range(int(m[2]), int(m[2]) + n))
        for registers, product in sum(groups, group):
            if registers & written:
                found.setdefault((kernel, product), f"{at} {text}")
for (kernel, product), write in found.items():
    print(f"{kernel}: the product at {product} may still run at {write}")
print(f"{n_products} products of the matrix units, {len(found)} with operands that are overwritten in flight")
sys.exit(1 if found or n_products == 0 else 0)
