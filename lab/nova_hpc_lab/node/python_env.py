# SPDX-License-Identifier: Apache-2.0
"""Python for the node, without packages that a compute never loads, and for the tenant's guest.

In software emulation, a complete Python takes longer to unpack than the guest's boot. So the
node's own interpreter runs ``nova-hpc-guest`` once, and the guest gets only the files that were
loaded by then.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node.debian import PYTHON

#: The environment's folder inside the node.
PREFIX: Final = "/opt/nova-hpc/venv"
#: The folder of the project's own packages, on the configuration disk.
PROJECT: Final = "/opt/nova-hpc/config/project"

# The project's own distributions, whose packages are on the configuration disk.
_OWN: Final = ("nova-hpc", "nova-hpc-common", "nova-hpc-guest", "nova-hpc-tools")
# Distributions that a compute node imports.
_ROOTS: Final = ("nova", "libvirt-python", "pymysql", "python-memcached")
# Only the consoles' proxies need numpy, which is as large as all other packages together.
_LEFT_OUT: Final = frozenset({"numpy", *_OWN})
_TESTS: Final = ("nova/tests/", "nova/locale/")

_SCRIPTS: Final = {
    "nova-compute": "nova.cmd.compute",
    "privsep-helper": "oslo_privsep.daemon:helper_main",
    "nova-hpc": "nova_hpc_tools.main",
}

#: Path of the interpreter in the guest's archive.
INTERPRETER: Final = "usr/bin/python3.11"
_LOADER: Final = "lib64/ld-linux-x86-64.so.2"
#: Runs every part of the command on a machine without devices, then prints the loaded files.
#: Compiled modules get the places of their sources: Python also loads them from there, and
#: compiling is slow in emulation. Python needs the modules of the last import only after errors.
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


def distributions(venv: Path) -> dict[str, importlib.metadata.Distribution]:
    """Return name -> distribution, for all distributions that are copied to the node.

    The project itself is left out, but its requirements are included.

    :raises LabError: the environment lacks Nova, or has another Python than the node.
    """
    packages = site_packages(venv)
    installed = {
        _plain(found.metadata["Name"]): found
        for found in importlib.metadata.distributions(path=[str(packages)])
        if found.metadata["Name"]
    }
    if "nova" not in installed:
        raise LabError(
            f"the environment {venv} holds no Nova; install all that the lab needs: "
            "pip install nova_hpc*.whl"
        )
    chosen: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(name, "") for name in (*_ROOTS, *_OWN)]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        found = installed.get(name)
        if found is None or (name, extra) in seen:
            continue
        seen.add((name, extra))
        chosen[name] = found
        waiting.extend(_requires(found, extra))
    return {name: chosen[name] for name in sorted(chosen) if name not in _LEFT_OUT}


def site_packages(venv: Path) -> Path:
    """Return the folder of the environment's packages.

    :raises LabError: the environment was made for another version of Python than the node's.
    """
    folder = venv / "lib" / f"python{PYTHON[0]}.{PYTHON[1]}" / "site-packages"
    if not folder.is_dir():
        raise LabError(
            f"{folder} does not exist: the lab needs an environment of Python"
            f" {PYTHON[0]}.{PYTHON[1]}, which is what its nodes run (Debian 12's"
            " /usr/bin/python3 -m venv makes one)"
        )
    return folder


def copy(venv: Path, root: Path) -> None:
    """Copy the environment below *root*, compiled."""
    source = site_packages(venv)
    target = root / PREFIX[1:] / source.relative_to(venv)
    target.mkdir(parents=True, exist_ok=True)
    for found in distributions(venv).values():
        for name in _files(found):
            there = target / name
            there.parent.mkdir(parents=True, exist_ok=True)
            # Python compares times to see if a compiled file is up to date, so they are kept.
            shutil.copy2(source / name, there)
    (target / "nova-hpc-project.pth").write_text(f"{PROJECT}\n")
    _interpreter(root)
    compileall.compile_dir(
        target, quiet=2, maxlevels=40, stripdir=str(root), prependdir="/", workers=0
    )


def _files(found: importlib.metadata.Distribution) -> Iterator[PurePosixPath]:
    source = found.locate_file("")
    for name in _listed(found):
        # Scripts are outside ("../../../bin"); path files would load files that are not copied.
        if name.parts[0] == ".." or (len(name.parts) == 1 and name.suffix == ".pth"):
            continue
        if not str(name).startswith(_TESTS) and (Path(str(source)) / name).is_file():
            yield name
            # pip lists the compiled files, but uv compiles without listing them.
            if name.suffix == ".py":
                compiled = PurePosixPath(importlib.util.cache_from_source(str(name)))
                if (Path(str(source)) / compiled).is_file():
                    yield compiled


def _listed(found: importlib.metadata.Distribution) -> Iterator[PurePosixPath]:
    # Without the package wheel, pip installs an "egg-info". Its list has paths relative to itself,
    # and importlib.metadata would return its list of sources instead.
    text = found.read_text("installed-files.txt")
    if text is None:
        yield from (PurePosixPath(str(entry)) for entry in found.files or ())
        return
    for line in text.splitlines():
        name = PurePosixPath(line)
        if name.parts[:1] == ("..",):
            yield PurePosixPath(*name.parts[1:])


def _interpreter(root: Path) -> None:
    folder = root / PREFIX[1:] / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/usr/bin/python3")
    (folder.parent / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\n"
    )
    for name, entry in _SCRIPTS.items():
        module, _, function = entry.partition(":")
        script = folder / name
        script.write_text(
            f"#!{PREFIX}/bin/python\nimport sys\nfrom {module} import {function or 'main'} as run\n"
            'if __name__ == "__main__":\n    sys.exit(run())\n'
        )
        script.chmod(0o755)


def _requires(found: importlib.metadata.Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Yield needs of a distribution for one of its extras ("" for none), as (name, extra)."""
    for text in found.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for wanted in ("", *requirement.extras):
                yield _plain(requirement.name), wanted


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def for_guest(root: Path, command: bytes) -> dict[str, bytes]:
    """Collect the files that a guest needs to run *command*.

    :param root: a Debian root file system with Python, used with ``chroot``.
    :param command: the packed command, see :func:`nova_hpc_guest.build.single_file`.
    :returns: path without a leading slash -> content.
    :raises LabError: the command does not run there.
    """
    packed = root / "tmp" / "nova-hpc-guest"
    packed.write_bytes(command)
    try:
        traced = _inside(root, INTERPRETER, "-I", "-c", _TRACE, f"/{packed.relative_to(root)}")
    finally:
        packed.unlink()
    files: dict[str, str] = json.loads(traced)
    programs = [INTERPRETER, *(each for each in files if each.endswith(".so"))]
    libraries = {path for program in programs for path in _libraries(root, program)}
    files |= {each: each for each in (INTERPRETER, _LOADER, *libraries)}
    # Links are resolved inside the root file system.
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
