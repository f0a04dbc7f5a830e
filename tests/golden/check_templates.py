# SPDX-License-Identifier: MIT
"""Renders well-known chat templates of others with model/text/jinja.h and with Python's jinja2, and wants the same text.

    python check_templates.py [--from FOLDER] PROGRAM      PROGRAM: build/test_golden_model_jinja
    python check_templates.py --write REPOSITORY COMMIT FOLDER

The templates are their authors' and are not kept here. templates.tsv names each by repository, commit and path, with the
SHA-256 of its text and of what jinja2 prints for the conversations of jinja_oracle.py (their own hash is in the first
line). A file is taken from FOLDER, where it has any name, or fetched from GitHub. Where jinja2 refuses a conversation,
weft must refuse it too. --write adds rows for all *.jinja under FOLDER, at their paths in the repository.

One known difference keeps a template out: jinja2 escapes for HTML what is added to a text that went through the filter
'safe'; weft's 'safe' changes nothing.
"""

import hashlib
import json
import os
import subprocess
import sys
import urllib.request

import jinja_oracle as oracle

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates.tsv")


def digest(data):
    return hashlib.sha256(data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()).hexdigest()


def expected(text):
    template = oracle.environment().from_string(text)
    return [oracle.render(template, values)[0] for _, values in oracle.conversations()]


def rendered(program, texts):
    """What PROGRAM prints, None where it refuses, for each template in turn."""
    lines = []
    for text in texts:
        lines.append({"template": text})
        lines += [{"values": values, "words": oracle.WORDS} for _, values in oracle.conversations()]
    done = subprocess.run([program, "-"], input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True,
                          text=True, check=True)
    out = [json.loads(line).get("text") for line in done.stdout.split("\n")[:-1]]
    n = len(oracle.conversations())
    return [out[i * n:(i + 1) * n] for i in range(len(texts))]


def fetched(repository, commit, path):
    with urllib.request.urlopen(f"https://raw.githubusercontent.com/{repository}/{commit}/{path}", timeout=60) as reply:
        return reply.read()


def files_under(folder):
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(".jinja"):
                path = os.path.join(place, name)
                with open(path, "rb") as f:
                    yield os.path.relpath(path, folder), f.read()


def rows():
    with open(LIST, encoding="utf-8") as f:
        lines = [line.rstrip("\n").split("\t") for line in f]
    return lines[0], lines[1:]


def write(repository, commit, folder):
    head, known = rows() if os.path.exists(LIST) else (None, [])
    head = ["conversations", str(len(oracle.conversations())), digest(oracle.conversations())]
    have = {row[3] for row in known}
    for path, data in sorted(files_under(folder)):
        if digest(data) not in have:
            have.add(digest(data))
            known.append([repository, commit, path, digest(data), digest(expected(data.decode()))])
    with open(LIST, "w", encoding="utf-8") as f:
        f.writelines("\t".join(row) + "\n" for row in [head, *known])


def main():
    args = sys.argv[1:]
    if args[:1] == ["--write"]:
        write(*args[1:])
        return
    local = {}
    if args[:1] == ["--from"]:
        local = {digest(data): data for _, data in files_under(args[1])}
        args = args[2:]
    head, known = rows()
    if head[2] != digest(oracle.conversations()):
        raise SystemExit("the conversations are not those of templates.tsv")
    texts = []
    for repository, commit, path, text_hash, _ in known:
        data = local.get(text_hash) or fetched(repository, commit, path)
        if digest(data) != text_hash:
            raise SystemExit(f"{repository} {path}: another file than the one that was compared")
        texts.append(data.decode())
    n_text = n_refused = n_wrong = 0
    for row, text, got in zip(known, texts, rendered(args[0], texts)):
        want = expected(text)
        if digest(want) != row[4]:
            raise SystemExit(f"{row[2]}: this jinja2 prints something else than the one that was compared")
        for (label, _), w, g in zip(oracle.conversations(), want, got):
            n_text += w is not None and w == g
            n_refused += w is None and g is None
            if w != g:
                n_wrong += 1
                print(f"{row[0]} {row[2]} {label}:\n{g!r}\nand jinja2\n{w!r}")
    print(f"{len(known)} templates, {n_text} equal texts, {n_refused} refused by both, {n_wrong} differ")
    raise SystemExit(n_wrong > 0)


if __name__ == "__main__":
    main()
