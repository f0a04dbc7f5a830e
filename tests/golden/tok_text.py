# SPDX-License-Identifier: MIT
"""Text that we generate: a corpus to train the small tokenizers on, and the strings of the goldens.

Only characters that Unicode 3.2 already had (and a few older emoji) appear, so that libraries with different
tables of character classes agree.
"""

import random
import unicodedata

NOUNS = """river stone paper engine window garden letter market bridge signal number pattern kettle harbour mirror
needle orchard pocket quarry ribbon shadow tunnel valley winter yard anchor basket candle danger""".split()
VERBS = """carries opens finds counts moves turns holds writes reads joins splits warms covers measures follows
answers repeats returns watches builds""".split()
ADJS = """quiet green narrow early broken second heavy simple distant golden empty patient common rapid cold""".split()
SMALL = "the a of and to in is that it for on with as was at by this from or an be not are".split()
CONTRACTIONS = """I'm you're he's she'll we've they'd isn't don't it's I'll WE'RE YOU'VE He'D O'Brien 'twas rock'n'roll
ma'am y'all've 's 't 're 've 'm 'll 'd 'S 'RE 'Ll x's's don''t it\u2019s""".split()
WORDS = {
    "greek": [
        "\u03bb\u03cc\u03b3\u03bf\u03c2", "\u03c0\u03cc\u03bb\u03b7", "\u03bd\u03b5\u03c1\u03cc",
        "\u03ba\u03b1\u03b9", "\u03b8\u03ac\u03bb\u03b1\u03c3\u03c3\u03b1"
    ],
    "cyrillic": [
        "\u0440\u0435\u043a\u0430", "\u0433\u043e\u0440\u043e\u0434", "\u0438", "\u0434\u043e\u043c",
        "\u0432\u0440\u0435\u043c\u044f", "\u0451\u043b\u043a\u0430"
    ],
    "latin": [
        "caf\xe9", "na\xefve", "stra\xdfe", "\xfcber", "\u0142\xf3d\u017a", "\u010desk\xfd", "pi\xf1ata",
        "\xc6sir", "\u0130stanbul", "\u1ec7"
    ],
    "han": [
        "\u6cb3\u6d41", "\u57ce\u5e02", "\u65f6\u95f4", "\u4e2d\u6587", "\u6a4b", "\u7a93"
    ],
    "kana": [
        "\u3072\u3089\u304c\u306a", "\u30ab\u30bf\u30ab\u30ca", "\u30c6\u30b9\u30c8", "\u3092", "\u30fc"
    ],
    "hangul": [
        "\uac15", "\ub3c4\uc2dc", "\uc2dc\uac04", "\ud55c\uad6d\uc5b4"
    ],
    "arabic": [
        "\u0646\u0647\u0631", "\u0645\u062f\u064a\u0646\u0629", "\u0648\u0642\u062a",
        "\u0643\u062a\u0627\u0628"
    ],
    "hebrew": [
        "\u05e0\u05d4\u05e8", "\u05e2\u05d9\u05e8", "\u05d6\u05de\u05df"
    ],
    "hindi": [
        "\u0928\u0926\u0940", "\u0936\u0939\u0930", "\u0938\u092e\u092f",
        "\u0939\u093f\u0928\u094d\u0926\u0940"
    ],
    "thai": [
        "\u0e41\u0e21\u0e48\u0e19\u0e49\u0e33", "\u0e40\u0e21\u0e37\u0e2d\u0e07"
    ],
}
EMOJI = [
    "\U0001f600", "\U0001f680", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u2764\ufe0f", "\U0001f1e9\U0001f1f0", "\u2603", "\U0001f40d", "\u270c\U0001f3fb", "#\ufe0f\u20e3",
    "\U0001f4a9"
]
MARKS = [
    "e\u0301", "n\u0303", "a\u0308\u0304", "o\u0302\u0301", "\u0301x", "q\u0323\u0307",
    "\u0915\u094d\u0937", "\u05d1\u05bc", "\u064e\u0645", "Z\u0351\u036b", "1\u0301", " \u0301", "A\u030a",
    "\u212b", "\u1100\u1161\u11a8", "\ufb01", "\uff21"
]
SPACES = [
    " ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\xa0", "\u3000",
    "\u2009", "\u2028", "\x85", "\x0b", "\x0c", "\u200b", "\ufeff", " \n", "\n ", "\t ", " \t", "  \n  ",
    "\u1680", "\u202f"
]
CODE = [
    "for (int i = 0; i < n; ++i) {\n  sum += x[i] * y[i];\n}",
    "def f(a, b=1):\n    return a ** b  # power\n", "if(x!=NULL&&y==0x1F){p->q=~z;}",
    "SELECT * FROM t WHERE a<>'b' AND c>=1.5e-3;", "<div class=\"a\">&amp;</div>",
    "{\"key\": [1, 2.5, null, true], \"s\": \"a\\nb\"}", "x = [i for i in range(10) if i % 2]\n\n\n",
    "#include <stdio.h>\n", "path/to/file-name_v2.tar.gz",
    "user@example.org https://example.org/a?b=c&d=%20#e", "\treturn $x =~ s/a|b/c/gr;\r\n",
    "$5.00 + 10% = ^_^ `tick` ~tilde~ |pipe| \\back", "a+b<c>=d|e~f^g$h",
    "i++; --j; k<<=2; /* note */ // end"
]
DIGITS = [
    "0", "7", "42", "123", "1234", "12345", "123456", "1234567", "1,234,567.89", "3.14159", "-17", "1e10",
    "2024-05-06", "00:59:07", "0x1F", "\u0663\u0664", "\xbd", "\xb2", "\u2163", "\u0967\u0968\u0969",
    "10th", "v2", "4\xbd", "\uff11\uff12"
]


def sentence(r):
    words = []
    for _ in range(r.randint(2, 7)):
        words += [r.choice(SMALL), r.choice(ADJS), r.choice(NOUNS), r.choice(VERBS)][r.randint(0, 2):]
    text = " ".join(words)
    return text[0].upper() + text[1:] + r.choice([".", ".", "!", "?", ",", ";", ":", "..."])


def foreign(r):
    words = WORDS[r.choice(sorted(WORDS))]
    return " ".join(r.choice(words) for _ in range(r.randint(1, 3)))


def corpus():
    r = random.Random(11)
    lines = []
    for _ in range(4000):
        lines.append(" ".join(sentence(r) for _ in range(r.randint(1, 3))))
    for _ in range(500):
        lines.append(foreign(r) + r.choice([", ", " ", ". "]) + sentence(r))
        lines.append(r.choice(CODE))
        lines.append(" ".join(r.choice(x) for x in (DIGITS, NOUNS, CONTRACTIONS, MARKS, EMOJI)))
    return lines


def assigned():
    """Code points with a class in Unicode 3.2, without surrogates and private use."""
    old = unicodedata.ucd_3_2_0
    out = []
    for c in range(1, 0x20000):
        kind = old.category(chr(c))
        if kind in ("Cn", "Cs", "Co") or kind != unicodedata.category(chr(c)):
            continue
        out.append(c)
    return out


def piece(r, specials):
    kind = r.randrange(12)
    if kind < 3:
        return r.choice([sentence(r), r.choice(NOUNS), r.choice(SMALL) + " " + r.choice(NOUNS)])
    if kind == 3:
        return "".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ") for _ in range(r.randint(1, 8)))
    if kind == 9 and r.random() < 0.5:
        special = r.choice(specials)
        return special if r.random() < 0.7 else special[:-1] + r.choice(["", "|", ">", " >"])
    table = {4: DIGITS, 5: CONTRACTIONS, 6: SPACES, 7: EMOJI, 8: MARKS, 9: CODE}
    return r.choice(table[kind]) if kind in table else foreign(r)


def fixed_strings(specials):
    out = [""] + [chr(c) for c in range(1, 128)] + ["\0", "a\0b"]
    out += SPACES + MARKS + EMOJI + CONTRACTIONS + DIGITS + CODE + specials
    for n in list(range(1, 36)) + [63, 64, 65]:
        out += ["\n" * n, " " * n]
    for n in (2, 3, 5, 8, 31, 32, 33):
        out += ["a" + "\n" * n + "b", "a" + " " * n + "b", " " * n + "\n" + " " * n, "\t" * n, "\r\n" * n,
                "7" * n, "a" * n, "=" * n, "\n" * n + " x"]
    out += ["one of the rivers in the valley of the stone", "of the", " of the", "in the in the", " of  the",
            "out of theory in these", "end of\nthe line in\tthe book"]
    out += ["a" * 400, " " * 300 + "x", "ab" * 200, "\u6cb3" * 120, "the " * 80, "1" * 200, "\U0001f600" * 40]
    return out


def strings(specials, count):
    """The same for every tokenizer: the fixed ones, and every second one of those that `count` at least are filled up with."""
    r = random.Random(12)
    points = assigned()
    out = fixed_strings(specials)
    n_fixed = len(out)
    while len(out) < count - 250:
        out.append(r.choice(["", " "]).join(piece(r, specials) for _ in range(r.randint(1, 4))))
    while len(out) < count:
        n = r.randint(1, 10)
        out.append("".join(chr(r.choice(points)) + r.choice(["", "", " "]) for _ in range(n)))
    return out[:n_fixed] + out[n_fixed::2]


BROKEN = [b"\x80", b"\xff", b"a\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82A", b"\xf0\x9f\x98", b"\xf0\x9f\x98 x", b"\xc0\xaf",
          b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"ok \xfe\xff ok", b"\xc3\xa9\xa9",
          b"\xbf\xbf\xbf", b"the \xe6\xb2 river", b"\n\x80\n", b" \xc3 ", b"1\xf02\xe13\xc24", b"\xef\xbf\xbd", b"\xf0\x9f\x9a\x80\xf0"]


def repaired(raw):
    """Every byte that is no part of a well-formed sequence becomes one U+FFFD."""
    out, i = [], 0
    while i < len(raw):
        for n in (1, 2, 3, 4):
            try:
                out.append(raw[i:i + n].decode("utf-8"))
                i += n
                break
            except UnicodeDecodeError:
                continue
        else:
            out.append("\ufffd")
            i += 1
    return "".join(out)


def cut_at(text, ids):
    """Parts of the text: strings, and the ids of the tokens between them; of two that fit the longer cuts first."""
    parts = [text] if text else []
    for t in sorted(ids, key=len, reverse=True):
        cut = []
        for p in parts:
            if isinstance(p, int):
                cut.append(p)
                continue
            for i, q in enumerate(p.split(t)):
                cut += ([ids[t]] if i else []) + ([q] if q else [])
        parts = cut
    return parts
