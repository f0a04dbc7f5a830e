# SPDX-License-Identifier: MIT
"""Makes tokenizers/*: three small tokenizers as GGUF files without tensors, strings, and expected ids.

    python make_tokenizers.py

Ids come from the reference libraries: `tokenizers` for the gemma4 and byte-level ones, `sentencepiece` for
llama. README.md states the format.
"""

import io
import json
import os

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

import tok_text

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "tokenizers")
COUNT = 2200
SPACE = "\u2581"
T = gguf.TokenType

GEMMA_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|think|>"]
GEMMA_USER = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"]
BPE_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BPE_USER = ["<tool_call>", "</tool_call>"]
LLAMA_CONTROL = ["<unk>", "<s>", "</s>"]
SPECIALS = GEMMA_CONTROL + GEMMA_USER + BPE_CONTROL + BPE_USER + LLAMA_CONTROL[1:]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
# of o200k_base, as tokenizer.json of openai/gpt-oss-20b has it
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
UPPER_NO_HAN, LOWER_NO_HAN = (x[:-1] + r"&&[^\p{Han}]]" for x in (UPPER, LOWER))
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# letters with case of deepseek-llm's tokenizer.json, in hexadecimal
CASED = """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5
3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15
1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc
1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d
212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d a680-a69b
a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb
10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"""
CASED = "".join("-".join(chr(int(end, 16)) for end in run.split("-")) for run in CASED.split())
PRES = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "llama-bpe": [SHORT + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "qwen2": [SHORT + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "qwen35": [SHORT + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL],
    "gpt-4o": [r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SUFFIX + r"|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" +
               SUFFIX + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL],
    "tekken": [r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + r"*|\p{N}|" +
               r" ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL],
    # as the tokenizer of moonshotai/Kimi-K2-Instruct has it
    "kimi-k2": [r"\p{Han}+|[^\r\n\p{L}\p{N}]?" + UPPER_NO_HAN + "*" + LOWER_NO_HAN + "+" + SUFFIX + r"|[^\r\n\p{L}\p{N}]?" +
                UPPER_NO_HAN + "+" + LOWER_NO_HAN + "*" + SUFFIX + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "starcoder": [r"\p{N}", GPT2],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+",
                       "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
    # the third pattern has a range from : to ~, and so letters, too
    "deepseek-llm": [r"[\r\n]", r"\s?[" + CASED + "]+",
                     r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
                     "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                    r"""| ?[\p{P}\p{S}]+[\r\n]*""" + TAIL],
}
STORED = ("llama-bpe", "qwen2")  # as files; the others differ in their key of the pre-tokenizer alone
BASE_PRE = "gpt-2"  # the lines that others have in common with it are stored once
BASES = {"deepseek-llm": "deepseek-coder", "kimi-k2": "gpt-4o"}  # nearer ones, which have it for theirs


# ------------------------------------------------------------------------------------ output

def join(ids):
    return ",".join(str(i) for i in ids) or "-"


def write_strings(name, items):
    with open(os.path.join(OUT, name), "w", encoding="ascii") as f:
        f.writelines((x.hex() or "-") + "\n" for x in items)


def write_ids(name, rows, base=None):
    """base: the rows of another tokenizer; `^` stands for a line that is the same there."""
    with open(os.path.join(OUT, name), "w", encoding="ascii") as f:
        for i, (plain, special) in enumerate(rows):
            same = base is not None and base[i] == (plain, special)
            f.write("^\n" if same else f"{join(plain)} {'=' if special == plain else join(special)}\n")


def write_gguf(name, arch, model, tokens, types, merges=None, scores=None, pre=None, **keys):
    w = gguf.GGUFWriter(os.path.join(OUT, name), arch)
    w.add_name(name.removesuffix(".gguf"))
    w.add_tokenizer_model(model)
    if pre is not None:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    if scores is not None:
        w.add_token_scores(scores)
    w.add_token_types(types)
    if merges is not None:
        w.add_token_merges(merges)
    for key, value in keys.items():
        getattr(w, "add_" + key)(value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


# ------------------------------------------------------------------------------------ gemma4

def run_merges(token, limit):
    """Merges that build every run of 2..limit equal tokens: doubling first, then larger parts first."""
    out = [(1 << k, 1 << k) for k in range(5) if 2 << k <= limit]
    for top in (16, 8, 4, 2):
        for total in range(top + 1, min(2 * top, limit + 1)):
            low = (total - top) & -(total - top)
            out.append((total - low, low))
    seen = set()
    return [f"{token * a} {token * b}" for a, b in out if not (a, b) in seen and not seen.add((a, b))]


def gemma_vocabulary(lines):
    """A BPE trained with words split at spaces; then runs of newlines, spaces and tabs, two merges that
    cross a word boundary, and bytes. No token mixes a newline with something else; digits stay single."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Replace(" ", SPACE)
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\n+"), "isolated"), pre_tokenizers.Split(SPACE, "merged_with_next"),
        pre_tokenizers.Split(Regex(r"[0-9]"), "isolated"), pre_tokenizers.Split(Regex(r"\s+"), "isolated")])
    tok.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=700, show_progress=False))
    trained = merges_of(tok)
    chars = sorted({c for line in lines for c in line.replace(" ", SPACE)} | {"\t"})
    merges = run_merges("\n", 31) + run_merges(SPACE, 31) + ["\t \t"]
    merges += [m for m in trained if m not in set(merges)]
    merges += [f"{SPACE}of {SPACE}the", f"{SPACE}in {SPACE}the"]
    pieces, seen = [], set()
    for p in [m.replace(" ", "", 1) for m in merges] + chars:
        if p not in seen:
            seen.add(p)
            pieces.append(p)
    for m in merges:
        for part in m.split(" "):
            if part not in seen:
                raise SystemExit(f"merge part {part!r} has no token")
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    tokens = GEMMA_CONTROL + GEMMA_USER + byte_tokens + pieces
    types = [T.CONTROL] * len(GEMMA_CONTROL) + [T.USER_DEFINED] * len(GEMMA_USER)
    types += [T.BYTE] * 256 + [T.NORMAL] * len(pieces)
    types[tokens.index("<unk>")] = T.UNKNOWN
    return tokens, types, merges


def merges_of(tok):
    merges = json.loads(tok.to_str())["model"]["merges"]
    return [m if isinstance(m, str) else " ".join(m) for m in merges]


def gemma_tokenizer(tokens, merges, added):
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)},
                               [tuple(m.split(" ")) for m in merges],
                               unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.normalizer = normalizers.Replace(" ", SPACE)
    tok.add_tokens([AddedToken(t, normalized=False) for t in added])
    return tok


def make_gemma(lines, texts, broken):
    tokens, types, merges = gemma_vocabulary(lines)
    plain = gemma_tokenizer(tokens, merges, GEMMA_USER)
    special = gemma_tokenizer(tokens, merges, GEMMA_CONTROL + GEMMA_USER)

    def rows(items):
        return [(plain.encode(x).ids, special.encode(x).ids) for x in items]

    write_gguf("gemma4.gguf", "gemma4", "gemma4", tokens, types, merges=merges, scores=[0.0] * len(tokens),
               bos_token_id=tokens.index("<bos>"), eos_token_id=tokens.index("<eos>"),
               unk_token_id=tokens.index("<unk>"), pad_token_id=tokens.index("<pad>"),
               mask_token_id=tokens.index("<mask>"), add_bos_token=True, add_space_prefix=False)
    write_ids("gemma4.ids.txt", rows(texts))
    write_ids("gemma4.broken.txt", rows(broken))
    for n in list(range(1, 32)):
        for c in ("\n", SPACE):
            ids = plain.encode(c * n).ids
            if ids != [tokens.index(c * n)]:
                raise SystemExit(f"a run of {n} {c!r} is not one token: {ids}")
    print(f"gemma4: {len(tokens)} tokens, {len(merges)} merges")


# ------------------------------------------------------------------------------------ byte level

def bpe_tokenizer(vocab, merges, pre, added):
    whole = pre in ("llama-bpe", "tekken")
    tok = Tokenizer(models.BPE(vocab, merges, ignore_merges=whole))
    steps = [pre_tokenizers.Split(Regex(x), "isolated") for x in PRES[pre]]
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.add_tokens([AddedToken(t, normalized=False) for t in added])
    return tok


def make_bpe(lines, texts, broken):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRES["llama-bpe"][0]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    vocab = tok.get_vocab()
    merges = merges_of(tok)
    tokens = sorted(vocab, key=vocab.get)
    # whole words that no merge reaches: only ignore_merges finds them
    extra = ["\u0120Brien", "\u0120SELECT", "stdio", "\u00b0", "\u0120\u0120\u0120\u0120\u0120"]
    tokens += [t for t in extra if t not in vocab]
    normal = len(tokens)
    tokens += BPE_CONTROL + BPE_USER
    types = [T.NORMAL] * normal + [T.CONTROL] * len(BPE_CONTROL) + [T.USER_DEFINED] * len(BPE_USER)
    ids = {t: i for i, t in enumerate(tokens)}
    pairs = [tuple(m.split(" ")) for m in merges]
    all_rows = {}
    for pre in sorted(PRES, key=lambda pre: (pre != BASE_PRE, pre in BASES)):
        plain = bpe_tokenizer(ids, pairs, pre, BPE_USER)
        special = bpe_tokenizer(ids, pairs, pre, BPE_CONTROL + BPE_USER)

        def rows(items):
            return [(plain.encode(x).ids, special.encode(x).ids) for x in items]

        if pre in STORED:
            write_gguf(f"bpe-{pre}.gguf", "qwen3moe", "gpt2", tokens, types, merges=merges, pre=pre,
                       bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"],
                       pad_token_id=ids["<|endoftext|>"], add_bos_token=pre == "llama-bpe")
        all_rows[pre] = rows(texts)
        write_ids(f"bpe-{pre}.ids.txt", all_rows[pre], all_rows[BASES.get(pre, BASE_PRE)] if pre != BASE_PRE else None)
        if pre in ("gpt-2", "qwen2"):
            write_ids(f"bpe-{pre}.broken.txt", rows(broken))
    print(f"bpe: {len(tokens)} tokens, {len(merges)} merges, {len(PRES)} pre-tokenizers")


# ------------------------------------------------------------------------------------ llama

def llama_special(sp, text):
    """Control tokens cut the text; every part between is encoded alone, with its own space prefix."""
    out = []
    for p in tok_text.cut_at(text, {t: sp.piece_to_id(t) for t in LLAMA_CONTROL}):
        out += [p] if isinstance(p, int) else sp.encode(p)
    return out


def make_llama(lines, texts, broken):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=900, byte_fallback=True,
        character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=True, split_digits=True, allow_whitespace_only_pieces=True, num_threads=1,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = sp.get_piece_size()
    tokens = [sp.id_to_piece(i) for i in range(n)]
    types = [T.UNKNOWN if sp.is_unknown(i) else T.CONTROL if sp.is_control(i) else
             T.BYTE if sp.is_byte(i) else T.NORMAL for i in range(n)]
    write_gguf("llama.gguf", "llama", "llama", tokens, types, scores=[sp.get_score(i) for i in range(n)],
               bos_token_id=1, eos_token_id=2, unk_token_id=0, add_bos_token=True, add_eos_token=False,
               add_space_prefix=True)

    def rows(items):
        return [(sp.encode(x), llama_special(sp, x)) for x in items]

    write_ids("llama.ids.txt", rows(texts))
    write_ids("llama.broken.txt", rows(broken))
    print(f"llama: {n} tokens")


def main():
    os.makedirs(OUT, exist_ok=True)
    lines = tok_text.corpus()
    texts = tok_text.strings(SPECIALS, COUNT)
    broken = [tok_text.repaired(x) for x in tok_text.BROKEN]
    write_strings("strings.txt", [x.encode("utf-8") for x in texts])
    write_strings("broken.txt", tok_text.BROKEN)
    make_gemma(lines, texts, broken)
    make_bpe(lines, texts, broken)
    make_llama(lines, texts, broken)
    print(f"{len(texts)} strings, {len(broken)} broken ones")


if __name__ == "__main__":
    main()
