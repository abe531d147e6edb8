# SPDX-License-Identifier: Apache-2.0
"""The tools of this machine, and their versions."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from .probes import TOOLS, Tool
from .tools import run_tool

_LIMIT: Final = 5.0
#: Paths at which another Python may be found.
_PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
_BLAS: Final = (
    "libblas.so.3",
    "libcblas.so.3",
    "libopenblas.so.0",
    "libmkl_rt.so.2",
    "libblis.so.4",
)
_HAS_MPI: Final = "import mpi4py; print(mpi4py.__version__)"
_HAS_BLAS: Final = (
    "import ctypes, sys\nfor name in sys.argv[1:]:\n    try:\n        ctypes.CDLL(name).cblas_dgemm"
    "\n    except (OSError, AttributeError):\n        continue\n"
    "    print('library', name)\n    break\n"
)


class ToolState(NamedTuple):
    """One installed tool of this machine, with its version, and whether this project tested it."""

    name: str
    #: None if it prints none, or one that is not understood.
    version: str | None
    #: The readers of its output were tested with this version.
    tried: bool


class Toolbox(NamedTuple):
    """The programs that probes run, as found on the machine that is measured."""

    states: Mapping[str, ToolState]
    python: str
    mpi_python: str | None
    blas: str | None
    tc: str | None

    def has(self, name: str) -> bool:
        """Return whether the tool with this name is installed."""
        return name in self.states

    def list_shapers(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """List the queues of this machine that have a rate, as ``kind device``."""
        if self.tc is None:
            return ()
        done = run_tool([self.tc, "qdisc", "show"], environment, _LIMIT)
        kinds = "tbf|htb|netem|cake|hfsc"
        lines = re.findall(rf"^qdisc ({kinds}) \S+ dev (\S+)", done.output, re.MULTILINE)
        return tuple(f"{kind} {device[:15]}" for kind, device in lines)

    def list_versions(self) -> dict[str, str]:
        """Return tool -> version, ``?`` if it prints none."""
        return {name: state.version or "?" for name, state in sorted(self.states.items())}


def find_tools(environment: Mapping[str, str]) -> Toolbox:
    """Look for every tool on PATH and run it for its version."""
    path = environment.get("PATH")
    states: dict[str, ToolState] = {}
    for tool in TOOLS:
        place = shutil.which(tool.name, path=path)
        if place is not None and tool.name not in ("python3", "mpi4py", "blas"):
            states[tool.name] = _ask_version(tool, place, environment)
    python = sys.executable or shutil.which("python3", path=path) or ""
    mpi_python = None
    for place in (python, *_PYTHONS) if "mpirun" in states else ():
        done = run_tool([place, "-c", _HAS_MPI], environment, _LIMIT) if place else None
        match = re.match(r"(\d+\.\d+(?:\.\d+)?)", done.output) if done is not None else None
        if done is not None and done.problem is None and match:
            mpi_python = place
            states["mpi4py"] = ToolState("mpi4py", match[1], match[1].startswith("3.1"))
            break
    version = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
    states["python3"] = ToolState("python3", version, True)
    blas = None
    if python:
        done = run_tool([python, "-I", "-S", "-c", _HAS_BLAS, *_BLAS], environment, _LIMIT)
        match = re.search(r"^library (\S+)$", done.output, re.MULTILINE)
        if done.problem is None and match:
            blas = match[1]
            states["blas"] = ToolState("blas", None, True)
    return Toolbox(states, python, mpi_python, blas, shutil.which("tc", path=path))


def _ask_version(tool: Tool, place: str, environment: Mapping[str, str]) -> ToolState:
    if not tool.version:
        return ToolState(tool.name, None, False)
    done = run_tool([place, *tool.version], environment, _LIMIT)
    # Some tools print their version and exit with a status of failure.
    match = None if done.at_limit else re.search(tool.pattern, done.output)
    version = match[1] if match else None
    tried = version is not None and version.startswith(tool.tried) if tool.tried else False
    return ToolState(tool.name, version, tried)
