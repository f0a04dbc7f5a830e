#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_wheel.py --program FILE --version V --out DIR: the wheel `weft`, with the program inside and the client beside it, by the standard
library alone. The same inputs give the same bytes: files are sorted and have the time of SOURCE_DATE_EPOCH.

The program goes to where pip puts programs, the demo models to share/weft/demo of the same environment, where it looks for them. The tag says
which C library the program needs, which is read off it; libraries other than that of C must be linked into it."""
import argparse
import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OF_THE_SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def read_elf(program, *words):
    return subprocess.run(["readelf", "-W", *words, program], capture_output=True, text=True, check=True).stdout


def tag_of(program):
    needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", read_elf(program, "-d")))
    if needed - OF_THE_SYSTEM:
        sys.exit(f"make_wheel: {program} needs {', '.join(sorted(needed - OF_THE_SYSTEM))}, which a machine with pip may lack: give it weft_alone")
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", read_elf(program, "-V"))]
    machine = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}[re.search(r"Machine: +(.*)", read_elf(program, "-h"))[1].strip()]
    major, minor = max(versions)[:2]
    return f"py3-none-manylinux_{major}_{minor}_{machine}"


def licences():
    """Of the libraries that are linked into the program, as Debian's packages state them."""
    for name in ("libjansson-dev", "libpcre2-dev", "libssl-dev", "libxxhash-dev", "libjemalloc-dev", "zlib1g-dev", "libedit-dev", "libbsd-dev", "libmd-dev",
                 "libncurses-dev"):
        path = f"/usr/share/doc/{name}/copyright"
        if not os.path.exists(path):
            sys.exit(f"make_wheel: {path} is missing: the licence of what is linked into the program goes with it")
        with open(path, "rb") as f:
            yield f"licenses/{name}", f.read()


def read(path):
    with open(path, "rb") as f:
        return f.read()


def files_of(program, version, tag):
    """(name in the wheel, bytes, mode)"""
    info, data = f"weft-{version}.dist-info", f"weft-{version}.data"
    for path in sorted(glob.glob(os.path.join(HERE, "weft/*"))):
        if os.path.isfile(path):
            yield f"weft/{os.path.basename(path)}", read(path), 0o644
    yield f"{data}/scripts/weft", read(program), 0o755
    for name in ("weft-demo.gguf", "weft-demo-ar.gguf"):
        yield f"{data}/data/share/weft/demo/{name}", read(os.path.join(ROOT, "model/demo", name)), 0o644
    yield f"{info}/METADATA", "\n".join([
        "Metadata-Version: 2.1", "Name: weft", f"Version: {version}", "Summary: Server for language models, autoregressive and text-diffusion ones",
        "License: MIT", "Requires-Python: >=3.9", "Classifier: Operating System :: POSIX :: Linux", "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown", "", read(os.path.join(HERE, "README.md")).decode()]).encode(), 0o644
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644
    yield f"{info}/licenses/LICENSE", read(os.path.join(ROOT, "LICENSE")), 0o644
    for name, text in licences():
        yield f"{info}/{name}", text, 0o644


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True)
    p.add_argument("--version", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    tag = tag_of(a.program)
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]  # a zip begins in 1980
    path = os.path.join(a.out, f"weft-{a.version}-{tag}.whl")
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
        for name, data, mode in files_of(a.program, a.version, tag):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            add(name, data, mode)
        name = f"weft-{a.version}.dist-info/RECORD"
        add(name, "\n".join([*record, f"{name},,", ""]).encode(), 0o644)
    print(path)


if __name__ == "__main__":
    main()
