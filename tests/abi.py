#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/abi.py BUILD [--write]: what programs that were linked with the library rely on is what tests/abi/NAME.txt says, NAME the name that they look
for (SONAME): the functions with their parameters, the size of each struct and where its members lie, the values of each enum.

A difference means that a program that was compiled with the headers before may crash with this library. While the version has no tag it is written
anew (--write); once it has one, raise the minor version in CMakeLists.txt, which changes the name, and write the list of that one."""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = ("weft.h", "base/asked.h", "base/prompt.h", "base/sampling.h")


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=True, **more).stdout


def declarations(text):
    """What stands between braces or semicolons of a struct or enum, without comments."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/|^\s*#.*?$", " ", text, flags=re.S | re.M))


def members(body):
    for one in filter(None, map(str.strip, body.split(";"))):
        function = re.search(r"\(\*(\w+)\)\s*\(.*\)$", one)
        if function:
            yield function[1]
            continue
        for part in one.split(","):
            yield re.search(r"(\w+)\s*(\[[^\]]*\]\s*)*$", part)[1]


def read_headers(folder):
    structs, enums, functions = [], [], {}
    for header in HEADERS:
        with open(os.path.join(folder, header), encoding="utf-8") as f:
            text = declarations(f.read())
        for body, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (\w+);", text):
            structs.append((name, list(members(body))))
        for body in re.findall(r"\benum(?: \w+)? \{([^}]*)\}", text):
            enums += [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
        for result, name, parameters in re.findall(r"WEFT_API ([^;(]*?)(\w+)\(([^;]*)\);", text):
            functions[name] = f"{result.strip()} {name}({parameters})"
    assert len(structs) > 10 and len(functions) > 20 and len(enums) > 10, "the headers were not understood"
    return structs, enums, functions


def measure(folder, structs, enums):
    """Lines that a program compiled with the headers prints."""
    lines = []
    for name, names in structs:
        lines.append(f'  printf("struct {name} size %zu\\n", sizeof({name}));')
        lines += [f'  printf("  {m} at %zu, %zu bytes\\n", offsetof({name}, {m}), sizeof((({name} *)0)->{m}));' for m in names]
    lines += [f'  printf("enum {e} %lld\\n", (long long){e});' for e in enums]
    source = "#include <stddef.h>\n#include <stdio.h>\n#include \"weft.h\"\nint main(void) {\n" + "\n".join(lines) + "\n  return 0;\n}\n"
    with tempfile.TemporaryDirectory() as place:
        program = os.path.join(place, "measure")
        run("cc", "-std=c11", "-I", folder, "-x", "c", "-", "-o", program, input=source)
        return run(program).splitlines()


def main():
    build, write = os.path.abspath(sys.argv[1]), "--write" in sys.argv[2:]
    library, folder = os.path.join(build, "libweft.so"), os.path.join(build, "include/weft")
    soname = re.search(r"SONAME\).*\[(.*?)\]", run("readelf", "-dW", library))[1]
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as f:
        version = re.search(r"^project\(weft VERSION (\d+\.\d+)\.", f.read(), re.M)[1]
    if soname != f"libweft.so.{version}":
        sys.exit(f"abi: the library calls itself {soname}, and the version is {version}")
    structs, enums, functions = read_headers(folder)
    symbols = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines() if line.split()[-2] in "TDB"}
    if symbols != set(functions):
        sys.exit(f"abi: only in the library or only in the headers: {' '.join(sorted(symbols ^ set(functions)))}")
    now = [f"function {functions[name]}" for name in sorted(functions)] + measure(folder, structs, enums)
    path = os.path.join(ROOT, "tests/abi", f"{soname}.txt")
    if write:
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(now) + "\n")
        print(f"abi: wrote {len(now)} lines to tests/abi/{soname}.txt")
        return
    if not os.path.exists(path):
        sys.exit(f"abi: there is no tests/abi/{soname}.txt: write it by python3 tests/abi.py {sys.argv[1]} --write")
    with open(path, encoding="utf-8") as f:
        before = f.read().splitlines()
    differs = [f"- {line}" for line in before if line not in set(now)] + [f"+ {line}" for line in now if line not in set(before)]
    if differs or before != now:
        print("\n".join(differs[:40] or ["the order differs"]))
        sys.exit(f"abi: {soname} is not what tests/abi/{soname}.txt says ({len(differs)} lines). Where v{version} is no tag yet: python3 tests/abi.py BUILD --write; "
                 "else raise the minor version in CMakeLists.txt")
    print(f"abi: {soname} has the {len(functions)} functions and {len(structs)} structs of its list")


if __name__ == "__main__":
    main()
