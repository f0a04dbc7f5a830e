# SPDX-License-Identifier: MIT
"""Checks tokenizers/* with a second, plain implementation that reads only the GGUF files.

    python check_tokenizers.py
"""

import os

import gguf
import regex

import make_tokenizers
import tok_text

OUT = make_tokenizers.OUT
SPACE = "\u2581"


class Vocab:
    def __init__(self, name):
        r = gguf.GGUFReader(os.path.join(OUT, name + ".gguf"))

        def key(k):
            f = r.fields.get("tokenizer.ggml." + k)
            return None if f is None else f.contents()

        self.model, self.pre = key("model"), key("pre")
        self.tokens, self.types, self.scores = key("tokens"), key("token_type"), key("scores")
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.ranks = {}
        for i, m in enumerate(key("merges") or []):
            at = m.index(" ", 1)
            self.ranks.setdefault((m[:at], m[at + 1:]), i)
        if self.model == "gpt2":
            printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
            self.alphabet, n = {b: chr(b) for b in printable}, 0
            for b in range(256):
                if b not in self.alphabet:
                    self.alphabet[b], n = chr(0x100 + n), n + 1

    def cut(self, text, parse_special):
        """Parts of the text: strings, and ids of the special tokens between them."""
        kinds = (4, 3, 2) if parse_special else (4,)
        return tok_text.cut_at(text, {t: self.ids[t] for t, k in zip(self.tokens, self.types) if k in kinds})

    def merge(self, symbols, rank):
        symbols = list(symbols)
        while True:
            best = None
            for i in range(len(symbols) - 1):
                k = rank(symbols[i], symbols[i + 1])
                if k is not None and (best is None or k < best[0]):
                    best = (k, i)
            if best is None:
                return symbols
            i = best[1]
            symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]

    def by_rank(self, a, b):
        return self.ranks.get((a, b))

    def by_score(self, a, b):
        i = self.ids.get(a + b)
        return None if i is None or self.types[i] not in (1, 4, 5) else -self.scores[i]

    def bytes_of(self, symbol):
        return [self.ids[f"<0x{b:02X}>"] for b in symbol.encode("utf-8")]

    def gemma4(self, text):
        out = []
        for run in regex.findall(r"[^\n]+|[\n]+", text.replace(" ", SPACE)):
            if run[0] == "\n" and run in self.ids:
                out.append(self.ids[run])
                continue
            for s in self.merge(run, self.by_rank):
                out += [self.ids[s]] if s in self.ids else self.bytes_of(s)
        return out

    def gpt2(self, text):
        pieces = [text]
        for pattern in make_tokenizers.PRES[self.pre]:
            cut = []
            for p in pieces:
                at = 0
                for m in regex.finditer(pattern, p):
                    cut += [p[at:m.start()], m.group()]
                    at = m.end()
                cut.append(p[at:])
            pieces = [p for p in cut if p]
        out = []
        for p in pieces:
            mapped = "".join(self.alphabet[b] for b in p.encode("utf-8"))
            if self.pre == "llama-bpe" and mapped in self.ids:
                out.append(self.ids[mapped])
                continue
            out += [self.ids[s] for s in self.merge(mapped, self.by_rank)]
        return out

    def llama(self, text):
        out = []
        for s in self.merge((" " + text).replace(" ", SPACE), self.by_score):
            i = self.ids.get(s)
            out += [i] if i is not None and self.types[i] == 1 else self.bytes_of(s)
        return out

    def encode(self, text, parse_special):
        out = []
        for p in self.cut(text, parse_special):
            out += [p] if isinstance(p, int) else getattr(self, self.model)(p)
        return out


def ids_of(field):
    return [] if field == "-" else [int(x) for x in field.split(",")]


def check(name, kind, texts):
    vocab, wrong = Vocab(name), 0
    with open(os.path.join(OUT, f"{name}.{kind}.txt"), encoding="ascii") as f:
        rows = [line.split() for line in f]
    if ["^"] in rows:
        with open(os.path.join(OUT, f"bpe-{make_tokenizers.BASE_PRE}.{kind}.txt"), encoding="ascii") as f:
            rows = [same.split() if row == ["^"] else row for row, same in zip(rows, f)]
    assert len(rows) == len(texts)
    for text, (plain, special) in zip(texts, rows):
        special = plain if special == "=" else special
        for parse_special, want in ((False, plain), (True, special)):
            got = vocab.encode(text, parse_special)
            if got != ids_of(want):
                wrong += 1
                if wrong <= 3:
                    print(f"  {name} {kind} {text!r}\n    want {want}\n    got  {join(got)}")
    print(f"{name} {kind}: {len(rows)} strings, {wrong} differ", flush=True)
    return wrong


def join(ids):
    return ",".join(map(str, ids))


def main():
    with open(os.path.join(OUT, "strings.txt"), encoding="ascii") as f:
        texts = [b"" if x == "-\n" else bytes.fromhex(x) for x in f]
    with open(os.path.join(OUT, "broken.txt"), encoding="ascii") as f:
        broken = [tok_text.repaired(bytes.fromhex(x)) for x in f]
    texts = [x.decode("utf-8") for x in texts]
    wrong = 0
    for name in ["gemma4"] + ["bpe-" + p for p in make_tokenizers.PRES] + ["llama"]:
        wrong += check(name, "ids", texts)
        if os.path.exists(os.path.join(OUT, name + ".broken.txt")):
            wrong += check(name, "broken", broken)
    if wrong:
        raise SystemExit(f"{wrong} rows differ")


if __name__ == "__main__":
    main()
