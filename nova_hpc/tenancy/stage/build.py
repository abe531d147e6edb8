# SPDX-License-Identifier: Apache-2.0
"""Builds the initial RAM file system of service VMs from files of a machine.

``python3 -m nova_hpc.tenancy.stage.build FILE`` packs a static busybox, the system's
Python with the few modules that the checks need, this project's checks, and the files of the
options: kernel modules, the operator's programs, any other file. A few megabytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from nova_hpc.tenancy.stage import archive
from nova_hpc.tenancy.stage.archive import ArchiveError, CpioArchive

_HERE: Final = Path(__file__).parent
_PACKAGE: Final = _HERE.parents[1]
#: Files of this project, by their path in its package.
_OURS: Final = (
    "tenancy/stage/report.py",
    "tenancy/stage/inside/command.py",
    "tenancy/stage/inside/memory.py",
    "tenancy/hygiene/clean_amd.py",
    "tenancy/hygiene/clean_check.py",
    "tenancy/hygiene/clean_errors.py",
    "tenancy/hygiene/clean_nic.py",
    "tenancy/hygiene/clean_nvidia.py",
    "tenancy/hygiene/clean_nvme.py",
    "tenancy/hygiene/nvme_commands.py",
)
_LIBRARY: Final = "lib/nova-hpc"
#: Prints the files of Python that are needed. Compiled modules replace their sources:
#: Python accepts them there, and compiling takes time in a service VM.
_TRACE: Final = """
import importlib.util, os, sys
sys.path.insert(0, sys.argv[1])
# An error while it runs needs them, too.
import encodings.ascii, encodings.latin_1, encodings.utf_8, json, linecache, runpy, traceback
for name in sys.argv[2:]:
    importlib.import_module(name)
files = {}
for module in list(sys.modules.values()):
    source, compiled = getattr(module, "__file__", None), getattr(module, "__cached__", None)
    if source and os.path.exists(source) and not source.startswith(sys.argv[1]):
        if source.endswith(".py") and compiled and os.path.exists(compiled):
            files[source + "c"] = compiled
        else:
            files[source] = source
print(json.dumps(files))
"""


def build_stage_initrd(
    busybox: Path,
    python: Path,
    modules: Path | None = None,
    names: tuple[str, ...] = (),
    checks: dict[str, Path] | None = None,
    files: dict[str, Path] | None = None,
) -> bytes:
    """Return the archive, compressed.

    :param busybox: a static busybox.
    :param python: an interpreter of Python 3 with its standard library.
    :param modules: a folder ``/lib/modules/VERSION``.
    :param names: names of the kernel modules to load.
    :param checks: name -> an operator's program.
    :param files: path inside -> file.
    :raises ArchiveError: a file is missing.
    """
    try:
        target = archive.base_archive(busybox)
        if modules is not None and names:
            archive.add_modules(target, modules, names)
        else:
            target.file("modules/order", b"")
        _add_python(target, python)
        for place in _OURS:
            target.file(f"{_LIBRARY}/nova_hpc/{place}", (_PACKAGE / place).read_bytes())
        folders = {str(folder) for place in _OURS for folder in Path(place).parents}
        for folder in folders:
            # Empty, because the packages' own imports need a compute node.
            target.file(f"{_LIBRARY}/nova_hpc/{folder}/__init__.py".replace("/./", "/"), b"")
        for name, path in (checks or {}).items():
            target.file(f"checks/{name}", path.read_bytes(), 0o755)
        for place, path in (files or {}).items():
            target.file(place.lstrip("/"), path.read_bytes(), path.stat().st_mode & 0o777)
        target.file("init", (_HERE / "inside" / "init.sh").read_bytes(), 0o755)
    except OSError as error:
        raise ArchiveError(f"{error.filename}: {error.strerror}") from error
    return target.pack()


def _add_python(target: CpioArchive, python: Path) -> None:
    """Add the interpreter, the modules that the checks import, and their shared libraries."""
    modules = [f"nova_hpc.{place.removesuffix('.py').replace('/', '.')}" for place in _OURS]
    # Without installed packages: the service VM has only the standard library.
    argv = [str(python), "-I", "-S", "-B", "-c", _TRACE, str(_PACKAGE.parent), *modules]
    traced = _output_of_program(*argv)
    files: dict[str, str] = json.loads(traced)
    real = python.resolve()
    files[str(real)] = str(real)
    for program in [str(real), *(path for path in files if ".so" in Path(path).suffixes)]:
        for library in _linked_libraries_of(program):
            files[library] = str(Path(library).resolve())
    for place, source in sorted(files.items()):
        target.file(place.lstrip("/"), Path(source).read_bytes(), 0o755)
    target.file(f"{_LIBRARY}/python", str(real).encode())


def _linked_libraries_of(program: str) -> list[str]:
    """Return the libraries that a program is linked with, and its loader."""
    libraries = []
    for line in _output_of_program("ldd", program).splitlines():
        words = [word for word in line.split() if word.startswith("/")]
        libraries += words[-1:]
    return libraries


def _output_of_program(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ArchiveError(f"cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ArchiveError(f"{argv[0]} failed: {lines[-1]}")
    return done.stdout


def _parse_name_and_file(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=")
    if not mark or not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


def main(arguments: list[str] | None = None) -> int:
    """Write the file; return 0, or 2 after one line that names the error."""
    parser = argparse.ArgumentParser(
        prog="python3 -m nova_hpc.tenancy.stage.build",
        description="Make the initial RAM file system of service VMs.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="where to write it")
    parser.add_argument("--busybox", type=Path, default=Path("/bin/busybox"), help="a static one")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"))
    parser.add_argument("--modules", type=Path, metavar="FOLDER", help="/lib/modules/VERSION")
    parser.add_argument("--module", action="append", default=[], metavar="NAME")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        type=_parse_name_and_file,
        metavar="NAME=FILE",
        help="a program",
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        type=_parse_name_and_file,
        metavar="PATH=FILE",
        help="any file",
    )
    options = parser.parse_args(arguments)
    if options.module and options.modules is None:
        parser.error("--module needs --modules")
    try:
        made = build_stage_initrd(
            options.busybox,
            options.python,
            options.modules,
            tuple(options.module),
            dict(options.check),
            dict(options.add),
        )
        options.file.write_bytes(made)
    except ArchiveError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{parser.prog}: {options.file}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
