#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hashes the machine code of the kernels in a CUDA module (libweft-cuda.so, a .o or a .cubin), with names taken out.

  bench/machine_code.py FILE              one line per kernel: hash, architecture, name; then one line per architecture:
                                          hash, architecture, "all", number of kernels
  bench/machine_code.py --whole FILE      the last lines only
  bench/machine_code.py FILE OTHER        compares two modules: which kernels only one of them has; exit code 1 where the
                                          machine code of an architecture differs

A kernel's hash covers its instructions, registers, shared and local memory, parameters, the constants that it alone reads
and the places that the loader fills in. No name goes into it, nor the place in the file. The hash of an architecture covers
the hashes of its kernels, sorted, and of the data that they share. So renaming a function, a type or a file changes no
hash, and code for another card changes none of this one: what was measured on a card stays true of a module whose hash for
that card is the same. Cubins are read from the file itself; a compressed one is unpacked by cuobjdump."""
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile

FATBIN_MAGIC = 0xBA55ED50
ENTRY_PTX, ENTRY_CUBIN = 1, 2
COMPRESSED = 0x2000 | 0x8000  # flags of a fatbin's entry: LZ4, zstd
THIS_CARD, THIS_FAMILY = 0x100000, 0x200000
EM_CUDA = 190
SHT_NOBITS = 8
# Attributes of .nv.info (of the whole cubin) with a value for each kernel: stack frame, register count, least stack.
INFO_OF_KERNEL = {0x11: 'frame', 0x2F: 'registers', 0x12: 'stack'}


class Refused(Exception):
    pass


def sections(elf):
    """(name, type, link, info, content) of each section of a 64-bit ELF file."""
    at, = struct.unpack_from('<Q', elf, 40)
    size, count, names = struct.unpack_from('<HHH', elf, 58)
    rows = [struct.unpack_from('<IIQQQQIIQQ', elf, at + i * size) for i in range(count)]
    strings = rows[names][4]
    for name, kind, _, _, offset, n_bytes, link, info, _, entry in rows:
        end = elf.index(b'\0', strings + name)
        content = b'' if kind == SHT_NOBITS else elf[offset:offset + n_bytes]
        yield elf[strings + name:end].decode(), kind, link, info, content, n_bytes


def entries_of_fatbins(data):
    """Every entry of a run of fatbins: (kind, architecture as 90a, flags, content as it is stored)."""
    at = 0
    while (at := data.find(struct.pack('<I', FATBIN_MAGIC), at)) >= 0:
        _, header, n_bytes = struct.unpack_from('<HHQ', data, at + 4)
        entry, end = at + header, at + header + n_bytes
        while entry < end:
            kind, _, entry_header, size = struct.unpack_from('<HHIQ', data, entry)
            card, _, _, flags = struct.unpack_from('<IIIQ', data, entry + 28)
            only = 'a' if flags & THIS_CARD else 'f' if flags & THIS_FAMILY else ''
            yield kind, f'{card}{only}', flags, data[entry + entry_header:entry + entry_header + size]
            entry += entry_header + size
        at = end


def fatbins_of(elf):
    return [entry for name, *_, content, _ in sections(elf) if name in ('.nv_fatbin', '__nv_relfatbin')
            for entry in entries_of_fatbins(content)]


def code_of(path):
    """What a module has code for: architectures, as 90a, of its machine code and of its PTX."""
    with open(path, 'rb') as file:
        found = fatbins_of(file.read())
    return [sorted({card for kind, card, *_ in found if kind == wanted}) for wanted in (ENTRY_CUBIN, ENTRY_PTX)]


def unpack_by_tool(path):
    tool = shutil.which('cuobjdump')
    if tool is None:
        raise Refused(f'{path} holds compressed cubins: put cuobjdump on the PATH, or build with -Xfatbin=-compress-mode=none')
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tool, '-xelf', 'all', os.path.abspath(path)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return [open(os.path.join(folder, name), 'rb').read() for name in sorted(os.listdir(folder))]


def cubins(path):
    with open(path, 'rb') as file:
        elf = file.read()
    if elf[:4] != b'\x7fELF':
        raise Refused(f'{path} is no ELF file')
    if struct.unpack_from('<H', elf, 18)[0] == EM_CUDA:
        return [elf]
    found = [(flags, content) for kind, _, flags, content in fatbins_of(elf) if kind == ENTRY_CUBIN]
    if not found:
        raise Refused(f'{path} holds no machine code of a card')
    return unpack_by_tool(path) if any(flags & COMPRESSED for flags, _ in found) else [content for _, content in found]


def architecture(elf):
    """sm_90 and the like, from the flags of a cubin, whose layout changed with version 8 of its form."""
    flags, = struct.unpack_from('<I', elf, 48)
    return f'sm_{flags >> 8 & 0xFFFF}' if elf[8] >= 8 else f'sm_{flags & 0xFF}'


def facts_of_kernels(info, symbols):
    """By the number of a kernel's symbol: what the cubin says of it beside its code."""
    facts, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, n_bytes = struct.unpack_from('<BBH', info, at)
        at += 4
        if form != 4:  # the value stands in the header
            continue
        if attribute in INFO_OF_KERNEL and n_bytes == 8:
            symbol, value = struct.unpack_from('<II', info, at)
            facts.setdefault(symbols[symbol], []).append((INFO_OF_KERNEL[attribute], value))
        at += n_bytes
    return facts


def names_of_symbols(rows):
    table = {name: (link, content) for name, _, link, _, content, _ in rows}
    link, content = table['.symtab']
    strings = rows[link][4]
    names = []
    for at in range(0, len(content), 24):
        name, = struct.unpack_from('<I', content, at)
        names.append(strings[name:strings.index(b'\0', name)].decode())
    return names


def hash_kernel(name, table, facts):
    """Of everything that belongs to the kernel of this name; the names of its sections end in the kernel's."""
    digest = hashlib.sha256()
    for fact in sorted(facts.get(name, [])):
        digest.update(repr(fact).encode())
    for section in sorted(table):
        if section.startswith('.debug') or not section.endswith('.' + name):
            continue
        kind, content, n_bytes = table[section]
        prefix = section[:-len(name)]
        if prefix in ('.nv.info.', '.nv.callgraph.', '.nv.prototype.', '.nv.merc.nv.info.'):
            continue  # what they say of code follows from it; they number symbols
        if kind in (4, 9):  # relocations: where, of which kind and by how much, without the symbol's number
            step = 24 if kind == 4 else 16
            content = b''.join(content[i:i + 8] + content[i + 8:i + 12] + content[i + 16:i + step]
                               for i in range(0, len(content), step))
        digest.update(f'{prefix}{n_bytes}'.encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def kernels_of(elf):
    """{name: hash} of a cubin, and the hashes of data that all its kernels share."""
    rows = list(sections(elf))
    table = {name: (kind, content, n_bytes) for name, kind, _, _, content, n_bytes in rows}
    info = table.get('.nv.info', (0, b'', 0))[1]
    facts = facts_of_kernels(info, names_of_symbols(rows))
    names = [name[len('.text.'):] for name in table if name.startswith('.text.')]
    own = {name: hash_kernel(name, table, facts) for name in names}
    shared = [hashlib.sha256(content).hexdigest()[:16] for section, (_, content, n_bytes) in sorted(table.items())
              if n_bytes > 0 and section in ('.nv.constant3', '.nv.global.init')]
    return own, shared


def read_module(path):
    """By architecture: {name: hash} of all kernels, and the hash of all."""
    modules = {}
    for elf in cubins(path):
        own, shared = kernels_of(elf)
        kernels, data = modules.setdefault(architecture(elf), ({}, []))
        for name, value in own.items():
            while name in kernels:  # a static kernel of another file
                name += '+'
            kernels[name] = value
        data += shared
    return {arch: (kernels, hashlib.sha256('\n'.join(sorted(kernels.values()) + sorted(data)).encode()).hexdigest()[:16])
            for arch, (kernels, data) in sorted(modules.items()) if kernels}


def compare(one, other):
    same = True
    for arch in sorted(set(one) | set(other)):
        a, b = one.get(arch, ({}, '')), other.get(arch, ({}, ''))
        if a[1] == b[1]:
            print(f'{a[1]}  {arch}  the same: {len(a[0])} kernels')
            continue
        same = False
        print(f'{a[1] or "none"} {b[1] or "none"}  {arch}  differs: {len(a[0])} and {len(b[0])} kernels')
        for sign, mine, theirs in ('-', a[0], b[0]), ('+', b[0], a[0]):
            left = sorted(theirs.values())
            for name, value in sorted(mine.items()):
                if value in left:
                    left.remove(value)
                else:
                    print(f'{sign} {value}  {name}')
    return same


def main(arguments):
    whole = '--whole' in arguments
    paths = [argument for argument in arguments if argument != '--whole']
    if not 1 <= len(paths) <= 2 or any(path.startswith('-') for path in paths):
        sys.exit(__doc__)
    try:
        modules = [read_module(path) for path in paths]
    except (OSError, Refused) as reason:
        sys.exit(f'machine_code: {reason}')
    if len(paths) == 2:
        return 0 if compare(*modules) else 1
    for arch, (kernels, _) in modules[0].items():
        for name, value in sorted(kernels.items()) if not whole else []:
            print(f'{value}  {arch}  {name}')
    for arch, (kernels, value) in modules[0].items():
        print(f'{value}  {arch}  all  {len(kernels)}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
