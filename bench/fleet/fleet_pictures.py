# SPDX-License-Identifier: MIT
"""The pictures of docs/fleet.md, from the record that plan.py makes.

Law: a picture is a function of the record, to the byte, so that `plan.py check` sees one that is older than its record."""
import json
import math
import os
import re

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 70, 170, 40, 50
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def text(x, y, anchor, words):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def page(height, lines):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
                      f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *lines, "</svg>"]) + "\n"


class Axis:
    """Values to places: even, by powers of ten (log), or one place for each value (names)."""

    def __init__(self, values, start, end, log=False, names=False, low=None):
        self.start, self.end, self.log, self.names = start, end, log, sorted(set(values)) if names else None
        if log:
            self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        else:
            self.low, self.high = 0 if low is None else low, max(values)

    def place(self, value):
        if self.names:
            return self.start + (self.names.index(value) + 0.5) / len(self.names) * (self.end - self.start)
        v = math.log10(value) if self.log else value
        return self.start + (v - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        if self.names:
            return self.names
        if self.log:
            return [10.0 ** v for v in range(self.low, self.high + 1)]
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(s for s in (1, 2, 5, 10) if s * power >= raw * 0.8) * power
        return [step * i for i in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


def chart(title, x_name, y_name, lines, x_axis, y_axis):
    """lines: [(name, [(x, y)])]"""
    rule = '<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" stroke="#ddd"/>'
    out = []
    for v in x_axis.ticks():
        out += [rule.format(x_axis.place(v), HEIGHT - BOTTOM, x_axis.place(v), TOP), text(x_axis.place(v), HEIGHT - BOTTOM + 16, "middle", f"{v:g}")]
    for v in y_axis.ticks():
        out += [rule.format(LEFT, y_axis.place(v), WIDTH - RIGHT, y_axis.place(v)), text(LEFT - 6, y_axis.place(v) + 4, "end", f"{v:g}")]
    middle = (LEFT + WIDTH - RIGHT) / 2
    out += [text(middle, TOP - 16, "middle", title), text(middle, HEIGHT - 10, "middle", x_name),
            f'<g transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)">', text(0, 0, "middle", y_name), "</g>"]
    for i, (name, points) in enumerate(lines):
        at = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        out.append(f'<path fill="none" stroke-width="1.5" stroke="{COLORS[i]}" d="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in at) + '"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLORS[i]}"/>' for x, y in at]
        out += [f'<path d="M{WIDTH - RIGHT + 14} {TOP + 10 + 16 * i}h18" stroke-width="3" stroke="{COLORS[i]}"/>',
                text(WIDTH - RIGHT + 38, TOP + 14 + 16 * i, "start", name)]
    return page(HEIGHT, out)


def bars(title, rows):
    """rows: [(name, number)]"""
    most, out = max(n for _, n in rows), [text(WIDTH / 2, 24, "middle", title)]
    for i, (name, n) in enumerate(rows):
        y, width = 44 + 26 * i, 330 * n / most
        out += [text(240, y + 13, "end", name), f'<rect x="250" y="{y}" width="{width:.1f}" height="18" fill="{COLORS[0]}"/>',
                text(256 + width, y + 13, "start", f"{n:g}")]
    return page(56 + 26 * len(rows), out)


def option(row, name, default):
    found = re.findall(rf"--{name} (\S+)", row["words"])
    return found[-1] if found else default


def rows_of(rows, table):
    return [r for r in rows if r["table"] == table]


def draw_events(rows):
    plain = [r for r in rows_of(rows, "events") + rows_of(rows, "routers") if "event_bytes_per_s" in r and "--kv-mib" not in r["words"]]
    plain.sort(key=lambda r: r["replicas"])
    lines = [("bytes", "event_bytes_per_s"), ("blocks", "event_blocks_per_s"), ("events", "events_per_s")]
    lines = [(f"{name} a second", [(r["replicas"], r[key]) for r in plain]) for name, key in lines]
    values = [y for _, points in lines for _, y in points]
    return chart("cache events that a router reads", "replicas, each with 12 requests a second", "a second", lines,
                 Axis([r["replicas"] for r in plain], LEFT, WIDTH - RIGHT, log=True), Axis(values, HEIGHT - BOTTOM, TOP, log=True))


def draw_lag(rows):
    lagged = rows_of(rows, "index-lag") + [r for r in rows_of(rows, "routers") if r["replicas"] == 100 and "--router index" in r["words"]]
    lagged.sort(key=lambda r: int(option(r, "index-lag-ms", 0)))
    xs = [int(option(r, "index-lag-ms", 0)) for r in lagged]
    hashed = next(r for r in rows_of(rows, "routers") if r["replicas"] == 100 and "--router hash" in r["words"])
    lines = [("index: found", list(zip(xs, (r["hit_percent"] for r in lagged)))), ("index: credited", list(zip(xs, (r["credit_percent"] for r in lagged)))),
             ("hash: found", [(x, hashed["hit_percent"]) for x in xs])]
    values = [y for _, points in lines for _, y in points]
    return chart("prompt tokens found in caches, 100 replicas", "how late the index hears of blocks, ms", "%", lines,
                 Axis(xs, LEFT, WIDTH - RIGHT, names=True), Axis(values, HEIGHT - BOTTOM, TOP))


def draw_tier(rows):
    lines, xs = [], []
    for router in ("round-robin", "hash"):
        found = [(int(option(r, "host-mib", 0)) / 1024, r["over_least"]) for r in rows_of(rows, "tier") if option(r, "router", "") == router]
        lines.append((router, found))
        xs += [x for x, _ in found]
    values = [y for _, points in lines for _, y in points]
    return chart("prompt tokens computed, over the least", "host memory behind each pool of 4 GiB, GiB", "times", lines,
                 Axis(xs, LEFT, WIDTH - RIGHT, names=True), Axis(values, HEIGHT - BOTTOM, TOP, low=1))


def draw_buy(rows):
    return bars("replicas for 400 requests a second, 99 % of them good", [(r["what"], r["replicas"]) for r in rows_of(rows, "buy")])


PICTURES = {"fleet-events.svg": draw_events, "fleet-lag.svg": draw_lag, "fleet-tier.svg": draw_tier, "fleet-buy.svg": draw_buy}


def draw(record, folder, check):
    """Whether one is not what the record says; without check they are written."""
    with open(record, encoding="utf-8") as f:
        rows = json.load(f)["rows"]
    old = []
    for name, picture in PICTURES.items():
        path, svg = os.path.join(folder, name), picture(rows)
        if not check:
            with open(path, "w", encoding="utf-8") as f:
                f.write(svg)
            continue
        if not os.path.exists(path) or open(path, encoding="utf-8").read() != svg:
            old.append(name)
    for name in old:
        print(f"{os.path.join(folder, name)} is not what {record} says: bench/fleet/plan.py draw")
    return bool(old)
