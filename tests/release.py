#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/release.sh: a copy of this tree that is fit for a release passes, and each thing that may not be is refused with its line."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def git(folder, *words):
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, "-C", folder, *words], capture_output=True, text=True, check=True).stdout


def edit(folder, name, pattern, replacement):
    path = os.path.join(folder, name)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    changed, n = re.subn(pattern, replacement, text, count=1, flags=re.M)
    assert n == 1, (name, pattern)
    with open(path, "w", encoding="utf-8") as f:
        f.write(changed)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a change")


def copy_tree(folder):
    """The files of the working tree, in a history of their own."""
    names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in filter(None, names):
        if os.path.isfile(os.path.join(ROOT, name)):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
    git(folder, "init", "-q")
    commit(folder)


def make_fit(folder):
    """A tag's version, and records that were measured at this commit."""
    version = re.search(r"^project\(weft VERSION ([0-9.]+)", open(os.path.join(folder, "CMakeLists.txt"), encoding="utf-8").read(), re.M)[1]
    path = os.path.join(folder, "CHANGELOG.md")
    text = open(path, encoding="utf-8").read()
    with open(path, "w", encoding="utf-8") as f:
        f.write(re.sub(r"^## Unreleased\n", "" if f"## {version}" in text.split("\n## ")[1] else f"## {version}\n", text, flags=re.M))
    head = git(folder, "rev-parse", "HEAD").strip()
    for name in glob.glob(os.path.join(folder, "bench/results/*.json*")):
        with open(name, encoding="utf-8") as f:
            text = f.read()
        with open(name, "w", encoding="utf-8") as f:
            f.write(re.sub(r'"commit": ?("[^"]*"|\[[^]]*\])', json.dumps("commit") + ": " + json.dumps(head), text))
    edit(folder, "tests/proof/defaults.json", r'^ *"awaited": \[[^]]*\]', ' "awaited": []')
    commit(folder)
    return version


def ask(folder, tools):
    """(exit status, lines), with programs of the style in place, which find nothing."""
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(["bash", os.path.join(folder, "tests/release.sh")], capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def refuses(folder, tools, words, wants="1 reasons"):
    code, lines, errors = ask(folder, tools)
    said = [line for line in lines if line.startswith("release: ")][:-1]
    assert code == 1 and len(said) == 1 and words in said[0], (words, code, lines, errors)
    assert f"is not fit for a release: {wants}" in lines[-1], lines


def main():
    with tempfile.TemporaryDirectory() as place:
        folder, tools = os.path.join(place, "tree"), os.path.join(place, "tools")
        os.makedirs(tools)
        for tool in ("clang-tidy", "clang-format-14"):
            with open(os.path.join(tools, tool), "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\necho version 14.0\n")
            os.chmod(os.path.join(tools, tool), 0o755)
        os.makedirs(folder)
        copy_tree(folder)
        version = make_fit(folder)
        code, lines, errors = ask(folder, tools)
        assert code == 0 and lines == [f"release: {version} may be released, if every test passes"], (lines, errors)

        # What it says of the style was seen with and without a finding; the other faults are looked for beside a style that finds nothing.
        edit(folder, "base/check.c", r"\A", "/* no licence */\n")
        commit(folder)
        refuses(folder, tools, "tests/lint/lint.sh: 1 findings: lint: base/check.c: the first line names the licence")
        git(folder, "reset", "-q", "--hard", "HEAD^")
        with open(os.path.join(folder, "tests/lint/lint.sh"), "w", encoding="utf-8") as f:
            f.write("exit 0\n")
        commit(folder)

        def undo():
            git(folder, "reset", "-q", "--hard", "HEAD^")

        edit(folder, "README.md", "^# weft", "# weft, changed")
        refuses(folder, tools, "README.md")
        git(folder, "checkout", "-q", "README.md")
        edit(folder, "CHANGELOG.md", "^## ", "## Unreleased\n\n- Something new.\n\n## ")
        commit(folder)
        code, lines, errors = ask(folder, tools)
        assert code == 1 and any("begins with 'Unreleased'" in line for line in lines) and any("not released" in line for line in lines), (lines, errors)
        undo()
        edit(folder, "CMakeLists.txt", f"VERSION {re.escape(version)}", "VERSION 99.0.0")
        commit(folder)
        refuses(folder, tools, f"CHANGELOG.md begins with '{version}', the version of CMakeLists.txt is 99.0.0")
        undo()
        git(folder, "tag", f"v{version}")
        refuses(folder, tools, f"v{version} is a tag already")
        git(folder, "tag", "-d", f"v{version}")
        edit(folder, "bench/results/h200.json", '"device"', '"no_device"')
        commit(folder)
        refuses(folder, tools, "bench/records.py check: bench/results/h200.json: it has no device")
        undo()
        edit(folder, "tests/proof/defaults.json", r'^ *"awaited": \[\]', '  "awaited": ["proof-moon.json"]')
        commit(folder)
        refuses(folder, tools, "proofs of defaults are awaited: proof-moon.json", wants="it awaits a run on a card, and nothing else")
        undo()
        edit(folder, "kernels/cuda/row_ops.cu", r"\Z", "// changed\n")
        commit(folder)
        refuses(folder, tools, "records of cards are older than the kernels", wants="it awaits a run on a card, and nothing else")
        undo()
        os.remove(os.path.join(tools, "clang-tidy"))
        if shutil.which("clang-tidy") is None:
            refuses(folder, tools, "clang-tidy is not installed")
    print("release: a fit tree passes, and each fault was refused")


if __name__ == "__main__":
    main()
