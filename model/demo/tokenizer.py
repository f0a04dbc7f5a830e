# SPDX-License-Identifier: MIT
"""The demo vocabulary: a byte-fallback BPE in the form of Gemma 4, about a thousand tokens.

The law of encoding: special tokens are cut out first; in plain text every space becomes U+2581; the
text is cut into runs of newlines and runs of anything else; a newline run that is a token is
emitted whole; every other run starts as code points and the adjacent pair with the lowest merge
rank merges, leftmost first, until none is left; a symbol outside the vocabulary becomes byte
tokens. There is no word split: merges may see a whole line.

The trained merges never join a space to what stands before it and never join digits, so a run may
be encoded word by word with a cache; `encode` does so and `encode_slow` does not. `main` checks
that they agree.
"""

import argparse
import heapq
import json
import os
import random
import re
from collections import Counter

import tasks

SPACE = "▁"
SPECIALS = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<mask>",
    "<|tool_response>",
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "<|turn>",
    "<turn|>",
)
PAD, EOS, BOS, UNK, MASK = range(5)
USER_DEFINED = (
    "<|tool_response>",
    "<|channel>",
    "<channel|>",
)  # cut out of any text; the others only of templates
NORMAL, CONTROL, DEFINED, BYTE = 1, 3, 4, 6
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vocab.json")


def declare(tools):
    """Tools as the template declares them: a line each, name(argument: type): description."""
    lines = ["Tools:"]
    for tool in tools:
        f = tool["function"]
        arguments = f["parameters"]["properties"].items()
        line = f["name"] + "(" + ", ".join(f"{k}: {v['type']}" for k, v in arguments) + ")"
        lines.append(line + (": " + f["description"] if "description" in f else ""))
    return "\n".join(lines)


class Tokenizer:
    def __init__(self, tokens, types, merges):
        self.tokens, self.types, self.merges = tokens, types, [tuple(m) for m in merges]
        self.ids = {t: i for i, t in enumerate(tokens)}
        self.ranks = {m: i for i, m in enumerate(self.merges)}
        self.byte = [self.ids[f"<0x{b:02X}>"] for b in range(256)]
        self.turn, self.turn_end = self.ids["<|turn>"], self.ids["<turn|>"]
        self.channel, self.channel_end = self.ids["<|channel>"], self.ids["<channel|>"]
        self.special = re.compile(
            "(" + "|".join(map(re.escape, sorted(SPECIALS, key=len, reverse=True))) + ")"
        )
        self.defined = re.compile("(" + "|".join(map(re.escape, USER_DEFINED)) + ")")
        self.cache = {}

    @classmethod
    def load(cls, path=PATH):
        with open(path, encoding="utf-8") as f:
            d = json.load(f)
        return cls(d["tokens"], d["types"], d["merges"])

    def save(self, path=PATH):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(
                {"tokens": self.tokens, "types": self.types, "merges": self.merges},
                f,
                ensure_ascii=False,
                separators=(",\n", ":"),
            )
            f.write("\n")

    def __len__(self):
        return len(self.tokens)

    def merge(self, run):
        """Merges one run: a heap of (rank, place) over a linked list of symbols."""
        sym, nxt, prv = list(run), list(range(1, len(run) + 1)), list(range(-1, len(run) - 1))
        alive = [True] * len(sym)
        heap = []

        def offer(i):
            j = nxt[i] if i >= 0 else len(sym)
            if i >= 0 and j < len(sym) and (sym[i], sym[j]) in self.ranks:
                heapq.heappush(heap, (self.ranks[(sym[i], sym[j])], i, sym[i], sym[j]))

        for i in range(len(sym) - 1):
            offer(i)
        while heap:
            _, i, a, b = heapq.heappop(heap)
            j = nxt[i]
            if not alive[i] or sym[i] != a or j >= len(sym) or sym[j] != b:
                continue
            sym[i], alive[j], nxt[i] = a + b, False, nxt[j]
            if nxt[i] < len(sym):
                prv[nxt[i]] = i
            offer(prv[i])
            offer(i)
        out = []
        for s, live in zip(sym, alive):
            if not live:
                continue
            if s in self.ids:
                out.append(self.ids[s])
            else:
                out.extend(self.byte[b] for b in s.encode())
        return out

    def plain(self, text, split):
        out = []
        for run in re.findall(r"[^\n]+|\n+", text.replace(" ", SPACE)):
            if run[0] == "\n" and run in self.ids:
                out.append(self.ids[run])
                continue
            for part in re.findall(f"{SPACE}*[^{SPACE}]+|{SPACE}+", run) if split else [run]:
                got = self.cache.get(part) if split else None
                if got is None:
                    got = self.merge(part)
                    if split and len(self.cache) < 200000:
                        self.cache[part] = got
                out.extend(got)
        return out

    def encode(self, text, special=False, split=True):
        """Tokens of a text. `special` also cuts control tokens out of it (templates only)."""
        out = []
        for i, piece in enumerate((self.special if special else self.defined).split(text)):
            out.extend([self.ids[piece]] if i % 2 else self.plain(piece, split))
        return out

    def encode_slow(self, text, special=False):
        return self.encode(text, special, split=False)

    def decode(self, ids):
        data = b""
        for i in ids:
            if self.types[i] == BYTE:
                data += bytes([int(self.tokens[i][3:5], 16)])
            elif self.types[i] == NORMAL:
                data += self.tokens[i].replace(SPACE, " ").encode()
        return data.decode(errors="replace")

    def render(self, messages, generate=True, tools=None):
        """A chat as token ids, as the template prints it, with the calls of an assistant in its
        content. With `generate` the model's turn is open at the end."""
        out = [BOS]
        if tools:
            n = messages[0]["role"] == "system"
            said = messages[0]["content"].strip() + "\n" if n else ""
            messages = [{"role": "system", "content": said + declare(tools)}] + messages[n:]
        for m in messages:
            role = "model" if m["role"] == "assistant" else m["role"]
            out.append(self.turn)
            out.extend(self.encode(role + "\n"))
            out.extend(self.encode(m["content"].strip()))
            out.append(self.turn_end)
            out.extend(self.encode("\n"))
        if generate:
            out.append(self.turn)
            out.extend(self.encode("model\n"))
            out.append(self.channel)
            out.extend(self.encode("thought\n"))
            out.append(self.channel_end)
        return out


def train(size, examples, seed):
    """Byte-pair training over words: a word may begin with one space, digits stay alone, symbols
    merge with symbols."""
    r = random.Random(seed)
    words = Counter()
    cut = re.compile(f"{SPACE}?[A-Za-z]+|[0-9]|{SPACE}?[^A-Za-z0-9{SPACE}\n]+")
    for _ in range(examples):
        messages, _ = tasks.conversation(r)
        for m in messages:
            role = "model" if m["role"] == "assistant" else m["role"]
            words.update(cut.findall((role + "\n" + m["content"]).replace(" ", SPACE)))
        words.update(("user", "model", "thought", "system"))
    tokens = list(SPECIALS) + [f"<0x{b:02X}>" for b in range(256)]
    types = [DEFINED if t in USER_DEFINED else CONTROL for t in SPECIALS] + [BYTE] * 256
    merges = []
    chars = [SPACE, "\t"] + [chr(c) for c in range(33, 127)]
    for runs, unit in (("\n", "\n"), (SPACE, SPACE)):  # runs of 1..4 newlines, 2..4 spaces
        grown = [unit * n for n in range(1 if unit == "\n" else 2, 5)]
        tokens += grown
        types += [NORMAL] * len(grown)
        merges += [(unit, unit), (unit * 2, unit * 2), (unit * 2, unit)]
    tokens += chars
    types += [NORMAL] * len(chars)
    parts = {w: list(w) for w in words}
    seen = set(tokens)
    while len(tokens) < size:
        pairs = Counter()
        for w, n in words.items():
            p = parts[w]
            for pair in zip(p, p[1:]):
                pairs[pair] += n
        (a, b), n = min(pairs.items(), key=lambda kv: (-kv[1], kv[0]))
        merges.append((a, b))
        if a + b not in seen:
            seen.add(a + b)
            tokens.append(a + b)
            types.append(NORMAL)
        for w, p in parts.items():
            i = 0
            while i + 1 < len(p):
                if p[i] == a and p[i + 1] == b:
                    p[i : i + 2] = [a + b]
                i += 1
    return Tokenizer(tokens, types, merges)


def check(tok, seed, n):
    """The cached encoder equals the plain one, and decoding gives the text back."""
    r = random.Random(seed)
    alphabet = "abc ABC 0123 \n\n\n..,;|{}\"'<>é½🦙\t  " + SPACE
    for _ in range(n):
        if r.random() < 0.5:
            text = tasks.conversation(r)[0][-1]["content"]
        else:
            text = "".join(r.choice(alphabet) for _ in range(r.randint(0, 60)))
        ids = tok.encode(text)
        assert ids == tok.encode_slow(text), text
        assert tok.decode(ids) == text.replace(SPACE, " "), text


def main():
    ap = argparse.ArgumentParser(description="train the vocabulary of the demo model")
    ap.add_argument("--size", type=int, default=1024)
    ap.add_argument("--examples", type=int, default=8000)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()
    tok = train(args.size, args.examples, args.seed)
    check(tok, 3, 3000)
    tok.save()
    print(f"{len(tok)} tokens, {len(tok.merges)} merges; last: {' '.join(tok.tokens[-12:])}")


if __name__ == "__main__":
    main()
