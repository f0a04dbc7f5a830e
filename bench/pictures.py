#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pictures of docs/performance.md, drawn by gnuplot from records of bench/results.

  bench/pictures.py          draws them anew into docs/pictures (needs gnuplot: apt-get install gnuplot-nox)
  bench/pictures.py check    each picture shows the figures of its records; exit status 1 if not

A picture holds, as its description, the records and figures that it was drawn from; check compares these with the records of today.
"""
import html
import os
import re
import statistics
import subprocess
import sys

import records

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS, FOLDER = os.path.join(ROOT, "bench/results"), os.path.join(ROOT, "docs/pictures")
WEFT, FAST, OTHER, SECOND = "#b3421b", "#e08b3c", "#7a8794", "#b4bcc4"


def read(folder, name):
    """The rows of a record that is an object with a list of them."""
    (record,) = records.read(os.path.join(folder, name))
    return record["rows"] if "rows" in record else record["records"]


def decode(folder):
    """Lines: sequences at once, and tokens a second of all."""
    rows = read(folder, "h200-peer-llama.json")
    for model, title in (("qwen3-30b-a3b q4_k_m", "Qwen3-30B-A3B Q4_K_M"), ("llama-2-7b q4_0", "Llama-2-7B Q4_0")):
        for engine in ("weft", "llama.cpp"):
            points = sorted((int(row["work"].split()[1]), row["median"]) for row in rows
                            if row["model"] == model and row["engine"] == engine and row["work"].startswith("S_TG ") and row["graphs"])
            yield f"{engine}, {title}", points


def serving(folder):
    """Bars: a load, and tokens a second under it."""
    loads = {"32 clients": "32 clients, token by token", "128 clients": "128 clients, token by token",
             "512 clients": "512 clients, token by token",
             "128 clients, found prefixes": "128 clients, token by token, found prefix",
             "96 clients, mixed lengths": "96 clients, prompts of 64 to 2048, answers of 32 to 256",
             "128 clients, of 64 tenants": "128 clients of 64 tenants, each with 1024 tokens in common"}
    (record,) = records.read(os.path.join(folder, "h200-serving-beside.json"))
    for engine, title in (("vllm", "vLLM 0.33, FP8"), ("weft", "weft, 8 bits, Q4_K_M")):
        yield title, [(label, statistics.median(row["tokens_per_s"] for row in record["loads"] if (row["engine"], row["name"]) == (engine, name)))
                      for label, name in loads.items()]


def drafts_by_rows(folder):
    """Lines: rows of a sequence in a step, its last token and the guesses behind it; times the tokens a second of no drafts."""
    (record,) = records.read(os.path.join(folder, "h200-drafts.json"))
    for n, right in ((1, 0.9), (1, 0.8), (1, 0.6), (8, 0.8), (8, 0.6)):
        points = sorted((row["depth"] + 1, row["times"]) for row in record["fixed"]["rows"] if row["n_parallel"] == n and row["right"] == right)
        yield f"{n} sequence{'s' if n > 1 else ''}, {right * 100:.0f} % right", [(1, 1.0)] + points


def drafts_by_rule(folder):
    """Lines: sequences at once; times the tokens a second of no drafts, where the rule says how many guesses there are."""
    for right in (0.8, 0.6):
        points = sorted((row["n_parallel"], row["times"]) for row in read(folder, "h200-drafts.json") if row["right"] == right)
        yield f"{right * 100:.0f} % right", points


def blocks(series):
    """Data for gnuplot, a block for each series."""
    lines = []
    for at, (_, points) in enumerate(series):
        broken = [(f'"{label}"'.replace(" clients", r" clients\n").replace(", ", "") if isinstance(label, str) else label, value) for label, value in points]
        lines += [f"$s{at} << END"] + [f"{label} {value}" for label, value in broken] + ["END"]
    return lines


def script_of_lines(series, x="sequences at once", end=70, styles=((WEFT, 7, 1), (OTHER, 7, 1), (WEFT, 6, 2), (OTHER, 6, 2))):
    plots = [f'$s{at} using 1:2 with linespoints lw 2 pt {point} ps 0.7 dt {dash} lc rgb "{colour}" title "{title}"'
             for at, ((title, _), (colour, point, dash)) in enumerate(zip(series, styles))]
    return ['set logscale x 2', f'set xrange [0.9:{end}]', f'set xlabel "{x}"', 'set key left top', "plot " + ", ".join(plots)]


def script_of_rows(series):
    return script_of_lines(series, "rows of a sequence in a step", 10, ((WEFT, 7, 1), (FAST, 7, 1), (SECOND, 7, 1), (FAST, 6, 2), (SECOND, 6, 2)))


def script_of_rule(series):
    return script_of_lines(series, end=140, styles=((FAST, 7, 1), (SECOND, 7, 1)))


def script_of_bars(series):
    plots = [f'$s{at} using 2:xtic(1) lc rgb "{colour}" title "{title}"' for at, ((title, _), colour) in enumerate(zip(series, (OTHER, WEFT, FAST)))]
    return ["set bmargin 4", "set style data histograms", "set style histogram clustered gap 1", "set style fill solid", "set xtics scale 0 font ',10'",
            "set key left top", "plot " + ", ".join(plots)]


TOKENS, TIMES = "tokens a second, all together", "times the tokens of no drafts"
PICTURES = {
    "decode.svg": ("Decode on one H200, after prompts of 512 (h200-peer-llama.json)", decode, script_of_lines, TOKENS),
    "serving.svg": ("Serving on one H200, DiffusionGemma 26B-A4B (h200-serving-beside.json)", serving, script_of_bars, TOKENS),
    "drafts-rows.svg": ("Drafts of so many guesses, one H200, 26B Q4_K_M, an oracle that costs nothing (h200-drafts.json)", drafts_by_rows, script_of_rows, TIMES),
    "drafts-rule.svg": ("Drafts where they gain, one H200, 26B Q4_K_M, an oracle that costs nothing (h200-drafts.json)", drafts_by_rule, script_of_rule, TIMES),
}


def describe(title, series):
    return title + ": " + "; ".join(f"{name}: " + ", ".join(f"{label} {value}" for label, value in points) for name, points in series)


def tidy(drawn):
    """Without symbols that nothing shows, empty groups, what is so by default, and blanks: half of what gnuplot writes."""
    drawn = re.sub(r' stroke-linecap="butt" stroke-linejoin="miter"| stroke-width="1.00"', "", drawn)
    while True:
        shown = set(re.findall(r"xlink:href='#(\w+)'", drawn))
        less = re.sub(r"\s*<(\w+)\b[^<>]*\bid='(gp\w+)'[^<>]*/>", lambda m: m[0] if m[2] in shown else "", drawn)
        less = re.sub(r"<g\b[^<>]*>\s*</g>", "", less)
        if less == drawn:
            break
        drawn = less
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[ \t]+", " ", drawn))


def draw(name, folder):
    title, figures, script_of, measure = PICTURES[name]
    series = list(figures(folder))
    lines = ['set terminal svg size 860,380 noenhanced font "sans-serif,12" background "white"', f'set title "{title}"', f'set ylabel "{measure}"',
             "set yrange [0:*]", 'set grid y lc rgb "#dddddd"', "set border 3", "set tics nomirror"] + blocks(series) + script_of(series)
    drawn = subprocess.run(["gnuplot"], input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True).stdout
    drawn = re.sub(r"<title>.*?</title>\s*<desc>.*?</desc>", lambda _: f"<title>{html.escape(title)}</title>\n<desc>{html.escape(describe(title, series))}</desc>",
                   drawn, count=1, flags=re.S)
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as f:
        f.write(tidy(drawn))


def faults(results=RESULTS, folder=FOLDER):
    """What pictures show that their records do not say, in words."""
    for name, (title, figures, _, _) in PICTURES.items():
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                said = re.search(r"<desc>(.*?)</desc>", f.read(), flags=re.S)
        except FileNotFoundError:
            said = None
        if said is None or html.unescape(said[1]) != describe(title, list(figures(results))):
            yield f"docs/pictures/{name} does not show what its records say: python3 bench/pictures.py draws it anew"


def main():
    if sys.argv[1:] == ["check"]:
        found = list(faults())
        print("\n".join(found) or f"{len(PICTURES)} pictures show what their records say")
        sys.exit(1 if found else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    for name in PICTURES:
        draw(name, RESULTS)


if __name__ == "__main__":
    main()
