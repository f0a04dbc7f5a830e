#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/install.py BUILD: what `cmake --install` leaves can be moved and used: the program finds its demo models, programs in C and C++ find the
library by pkg-config and by find_package, every header compiles alone, the service names what is there, and nothing names the build."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CMAKE = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(weft 0.3 REQUIRED)
add_executable(user generate.c)
target_link_libraries(user PRIVATE weft::weft)
"""


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def find(folder, pattern):
    (path,) = glob.glob(os.path.join(folder, pattern), recursive=True)
    return path


def compile_headers(prefix, work):
    """Each alone, as others include it, with no folder but the one that compilers look into."""
    include = os.path.join(prefix, "include")
    headers = [os.path.relpath(p, include) for p in glob.glob(f"{include}/**/*.h", recursive=True)]
    assert len(headers) == 4, headers
    compilers = [["cc", "-x", "c", "-std=c99"]] + ([["c++", "-x", "c++", "-std=c++11"]] if shutil.which("c++") else [])
    for header in headers:
        with open(os.path.join(include, header), encoding="utf-8") as f:
            for name in re.findall(r'#include "(.*?)"', f.read()):
                assert os.path.exists(os.path.join(include, os.path.dirname(header), name)), (header, name)
        for compiler in compilers:
            run(*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I", include, "-", input=f"#include <{header}>\n", cwd=work)


def service_where_installed(build, prefix):
    """The service starts what is there, with a configuration that is there and names a model that is there; one that was changed stays."""
    service, conf = os.path.join(prefix, "lib/systemd/system/weft.service"), os.path.join(prefix, "etc/weft/weft.conf")
    with open(service, encoding="utf-8") as f:
        assert f"\nExecStart={prefix}/bin/weft serve --config {conf}\n" in f.read(), prefix
    run(f"{prefix}/bin/weft", "doctor", "--config", conf, "--port", "0")
    if shutil.which("systemd-analyze"):
        run("systemd-analyze", "verify", "--man=no", service)
    with open(conf, "a", encoding="utf-8") as f:
        f.write("context = 1024\n")
    run("cmake", "--install", build, "--prefix", prefix)
    with open(conf, encoding="utf-8") as f:
        assert f.read().endswith("context = 1024\n"), conf


def half_a_build(work):
    """Where only the program was built, as `./dev build` does, nothing is installed, and the line says what to do."""
    run("cmake", "-S", ROOT, "-B", f"{work}/bare", "-DWEFT_TESTS=OFF", "-DWEFT_CUDA=OFF")
    done = subprocess.run(["cmake", "--install", f"{work}/bare", "--prefix", f"{work}/none"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "nothing was installed" in " ".join(done.stderr.split()) and not os.path.exists(f"{work}/none"), done


def main():
    build = os.path.abspath(sys.argv[1])
    demo = os.path.join(ROOT, "model/demo/weft-demo.gguf")
    with tempfile.TemporaryDirectory() as work:
        first, prefix = os.path.join(work, "first"), os.path.join(work, "moved here")
        run("cmake", "--install", build, "--prefix", first)
        service_where_installed(build, first)
        half_a_build(work)
        os.rename(first, prefix)
        library = os.path.dirname(find(prefix, "lib/**/libweft.so"))
        where = os.environ | {"LD_LIBRARY_PATH": library, "PKG_CONFIG_PATH": os.path.join(library, "pkgconfig")}

        compile_headers(prefix, work)
        example = os.path.join(prefix, "share/doc/libweft-dev/examples/generate.c")
        flags = run("pkg-config", "--cflags", "--libs", "weft", env=where)
        run("sh", "-c", f"cc -o by-pkg-config '{example}' {flags}", cwd=work)
        assert "7 23 41" in run(f"{work}/by-pkg-config", demo, "Sort from low to high: 41 7 23", env=where)
        user = os.path.join(work, "user")
        os.makedirs(user)
        shutil.copy(example, user)
        with open(os.path.join(user, "CMakeLists.txt"), "w", encoding="utf-8") as f:
            f.write(CMAKE)
        run("cmake", "-S", user, "-B", f"{user}/build", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", f"{user}/build")
        assert "7 23 41" in run(f"{user}/build/user", demo, "Sort from low to high: 41 7 23")

        program = os.path.join(prefix, "bin/weft")
        link = os.path.join(work, "weft")
        os.symlink(program, link)
        version = run(program, "--version").split()[1]
        assert version in run("pkg-config", "--modversion", "weft", env=where)
        said = run(link, "demo")
        assert "10 23 41 68 77 95" in said and f"Try it:  {link} chat" in said, said
        for pattern in ("share/man/man1/weft.1", "share/man/man1/weft-serve.1", "share/man/man5/weft.conf.5", "share/bash-completion/completions/weft",
                        "share/doc/weft/copyright", "share/doc/weft/docs/operations.md", "share/doc/weft/examples/weft.conf", "etc/weft/weft.conf",
                        f"lib/**/libweft.so.{'.'.join(version.split('.')[:2])}"):
            find(prefix, pattern)
        if os.path.exists(os.path.join(build, "libweft-cuda.so")): # of this version alone, and found from the program
            assert find(prefix, "lib/**/libweft-cuda.so").endswith(f"/weft/{version}/libweft-cuda.so")
            assert "libweft-cuda.so is neither" not in run(program, "--version")
        else:
            assert f"weft/{version}/" in run(program, "--version")
        for path in glob.glob(f"{prefix}/**/*", recursive=True):
            if os.path.isfile(path) and not re.search(r"\.so|/bin/weft$", path): # the debug information of which names sources
                with open(path, "rb") as f:
                    assert build.encode() not in f.read(), path
    print("install: moved, the program, the library, headers, pkg-config, find_package and the service work")


if __name__ == "__main__":
    main()
