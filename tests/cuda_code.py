#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/cuda_code.py FOLDER [ARCHITECTURE]: what the CUDA modules of a build have inside is what they say that they were
built for: machine code or PTX of these architectures and of no other, and no more than so many MiB for each. With a second word the assembler translates the
portable module's PTX for that architecture, which finds what the compiler lets pass (cuobjdump unpacks it). Where the toolkit's
cuobjdump is, what it lists of a module (--list-elf, --list-ptx) must be the same. The reader of fatbins is shown on files
that are made here, so something is tested where no module is, too."""
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'bench'))
from machine_code import ENTRY_CUBIN, ENTRY_PTX, FATBIN_MAGIC, THIS_CARD, THIS_FAMILY, code_of  # noqa: E402

MOST_MIB = 64  # a kind of code of one architecture: Hopper's machine code takes 41, its PTX a few
MOST_MIB_PACKED = 6  # the same where there are many, which are packed: seven of the portable set take 24 with the code and symbols of the host


def fatbin(entries):
    body = b''
    for kind, card, flags in entries:
        head = bytearray(64)
        struct.pack_into('<HHIQ', head, 0, kind, 0x101, len(head), 8)
        struct.pack_into('<I', head, 28, card)
        struct.pack_into('<Q', head, 40, flags | 0x11)
        body += bytes(head) + b'whatever'
    return struct.pack('<IHHQ', FATBIN_MAGIC, 1, 16, len(body)) + body


def module(*fatbins):
    """A file with them in its section .nv_fatbin, beside one with the names."""
    names, content = b'\0.nv_fatbin\0.shstrtab\0', b''.join(fatbins)
    head = bytearray(64)
    head[:6] = b'\x7fELF\x02\x01'
    struct.pack_into('<Q', head, 40, 64)
    struct.pack_into('<HHH', head, 58, 64, 3, 2)
    at = 64 + 3 * 64
    rows = [(0,) * 10, (1, 1, 0, 0, at, len(content), 0, 0, 1, 0), (12, 3, 0, 0, at + len(content), len(names), 0, 0, 1, 0)]
    return bytes(head) + b''.join(struct.pack('<IIQQQQIIQQ', *row) for row in rows) + content + names


def test_the_reader():
    one = [(ENTRY_CUBIN, 90, THIS_CARD), (ENTRY_PTX, 80, 0x8000)]
    table = [((one,), [['90a'], ['80']]), ((), [[], []]),
             ((one, [(ENTRY_CUBIN, 120, THIS_CARD | 0x1000000), (ENTRY_CUBIN, 100, THIS_FAMILY | 0x1000000)], one), [['100f', '120a', '90a'], ['80']])]
    with tempfile.TemporaryDirectory() as folder:
        for fatbins, wanted in table:
            path = os.path.join(folder, 'module')
            with open(path, 'wb') as file:
                file.write(module(*map(fatbin, fatbins)))
            assert code_of(path) == wanted, (code_of(path), wanted)


def listed_of(tool, path):
    """What the toolkit's own reader lists of a module, as code_of says it."""
    lists = [subprocess.run([tool, option, path], capture_output=True, text=True, check=False).stdout for option in ('--list-elf', '--list-ptx')]
    return [sorted(set(re.findall(r'\.sm_(\d+[af]?)\.', text))) for text in lists]


def faults_of(path):
    with open(path, 'rb') as file:
        built = re.search(rb'built for (\d+[0-9a-z,-]*)', file.read())
    if built is None:
        return ['it does not say what it was built for']
    parts = built[1].decode().split(',')
    wanted = [sorted({re.sub('-.*', '', part) for part in parts if not part.endswith(end)}) for end in ('-virtual', '-real')]
    found, mib = code_of(path), os.path.getsize(path) / 2**20
    print(f'{path}, {mib:.1f} MiB, built for {",".join(parts)}: machine code of {found[0]}, PTX of {found[1]}')
    faults = [] if found == wanted else [f'it has {found} where {wanted} was asked for']
    tool = shutil.which('cuobjdump', path=os.environ.get('PATH', '') + ':/usr/local/cuda/bin')
    if tool is not None and listed_of(tool, path) != found:
        faults.append(f'cuobjdump lists {listed_of(tool, path)}, and the module has {found}')
    n = len(found[0] + found[1])
    most = (MOST_MIB_PACKED if n > 3 else MOST_MIB) * n
    return faults if mib <= most else faults + [f'it has {mib:.1f} MiB, more than {most}']


def assemble(path, card):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(['cuobjdump', '--extract-ptx', 'all', os.path.abspath(path)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return [f'{name} is not for {card}' for name in sorted(os.listdir(folder))
                if subprocess.run(['ptxas', f'-arch={card}', name, '-o', 'code'], cwd=folder, check=False).returncode != 0]


def main(folder, card=None):
    test_the_reader()
    modules = sorted(glob.glob(os.path.join(folder, 'libweft-cuda*.so')))
    faults = [f'{path}: {fault}' for path in modules for fault in faults_of(path)]
    if card is not None:
        faults += assemble(os.path.join(folder, 'libweft-cuda-portable.so'), card)
    print('\n'.join(faults) or f'{len(modules)} modules have the code that they name')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
