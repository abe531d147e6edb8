"""Python for the tenant's guest: just what the command for guests loads.

A whole Python would take longer to unpack in software emulation than the boot.
So the node's own interpreter runs the command once, and what it has loaded
by then is what the guest gets.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from nova_hpc_lab.errors import LabError

#: Where the guest's archive has the interpreter.
INTERPRETER: Final = "usr/bin/python3.11"

_LOADER: Final = "lib64/ld-linux-x86-64.so.2"

#: Runs every part of the command on a machine without devices, then says which
#: files were loaded. Compiled modules go where the sources are: Python takes
#: them there as well, and compiling is slow in emulation. The modules of the
#: last import are loaded only when something goes wrong.
_TRACE: Final = """
import contextlib, io, json, os, sys
sys.path.insert(0, sys.argv[1])
from nova_hpc_guest.command import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for words in (["check", "--root", "/tmp"], ["show", "--root", "/tmp"], ["--help"]):
        with contextlib.suppress(SystemExit):
            main(words)
import linecache, runpy, tokenize, traceback, encodings.ascii, encodings.cp437, encodings.latin_1
files = {}
for module in list(sys.modules.values()):
    source, compiled = getattr(module, "__file__", None), getattr(module, "__cached__", None)
    if source and os.path.exists(source):
        if source.endswith(".py") and compiled and os.path.exists(compiled):
            files[source + "c"] = compiled
        else:
            files[source] = source
print(json.dumps(files))
"""


def collect(root: Path, command: bytes) -> dict[str, bytes]:
    """What a guest needs to run *command*.

    :param root: a Debian root file system with Python, as for ``chroot``.
    :param command: the packed command, see :func:`nova_hpc.guest.build.single_file`.
    :returns: path without a leading slash -> content.
    :raises LabError: it does not run there.
    """
    packed = root / "tmp" / "nova-hpc-guest"
    packed.write_bytes(command)
    try:
        traced = _inside(root, INTERPRETER, "-I", "-c", _TRACE, "/tmp/nova-hpc-guest")
    finally:
        packed.unlink()
    files: dict[str, str] = json.loads(traced)
    programs = [INTERPRETER, *(each for each in files if each.endswith(".so"))]
    libraries = {path for program in programs for path in _libraries(root, program)}
    files |= {each: each for each in (INTERPRETER, _LOADER, *libraries)}
    # Links are followed as they lead inside.
    real = _inside(root, "usr/bin/readlink", "-f", *(f"/{each}" for each in files.values()))
    sources = dict(zip(files, real.splitlines(), strict=True))
    return {
        path.lstrip("/"): (root / source.lstrip("/")).read_bytes()
        for path, source in sorted(sources.items())
    }


def _libraries(root: Path, program: str) -> list[str]:
    listed = _inside(root, _LOADER, "--list", f"/{program.lstrip('/')}")
    return [words[2] for line in listed.splitlines() if (words := line.split())[1:2] == ["=>"]]


def _inside(root: Path, program: str, *words: str) -> str:
    argv = ["chroot", str(root), f"/{program}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"the command for guests does not run on the node: {done.stderr.strip()}")
    return done.stdout
