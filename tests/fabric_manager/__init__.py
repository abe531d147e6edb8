# SPDX-License-Identifier: Apache-2.0
"""A recorded contract of NVIDIA Fabric Manager: a shared library, compiled for tests.

It was written from NVIDIA's user guide and was not compared with the real
product. See ``libnvfm.c`` for what it can be told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("libnvfm.c")

#: The table of a node with four GPUs: all, two pairs, single ones.
FOUR = {0: (1, 2, 3, 4), 1: (1, 3), 2: (2, 4), 3: (1,), 4: (2,), 5: (3,), 6: (4,)}


def library() -> str:
    """Path of the library; the test is skipped where there is no C compiler."""
    if not _built or not _built[-1].exists():  # some tests have a /tmp of their own
        _built.append(_build())
    return str(_built[-1])


_built: list[Path] = []


def _build() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("NOVA_HPC_NO_SKIP"):
            pytest.fail("no C compiler: install gcc")
        pytest.skip("no C compiler")
    path = Path(tempfile.mkdtemp(prefix="nova-hpc-nvfm-"), "libnvfm.so.1")
    argv = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(path), str(_SOURCE)]
    subprocess.run(argv, check=True)
    return path


class FabricManager:
    """The manager of one node; its state is a file, which is also its address."""

    def __init__(
        self,
        folder: Path,
        gpus: Mapping[int, str],
        partitions: Mapping[int, Iterable[int]] | None = None,
    ) -> None:
        self.path = folder / "fabric-manager"
        lines = ["mode shared"]
        lines += [f"gpu {number} {address} 12" for number, address in gpus.items()]
        for key, members in (FOUR if partitions is None else partitions).items():
            lines.append(f"part {key} 0 {' '.join(map(str, members))}")
        self._write(lines)

    def _write(self, lines: Iterable[str]) -> None:
        self.path.write_text("".join(f"{line}\n" for line in lines))

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def set(self, word: str, *values: object) -> None:
        """Say one thing of the manager anew, e.g. ``set("mode", "bare")``."""
        self.clear(word)
        self._write([*self._lines(), " ".join([word, *map(str, values)])])

    def clear(self, word: str) -> None:
        """Take back what was said."""
        self._write(line for line in self._lines() if line.split()[0] != word)

    @property
    def active(self) -> set[int]:
        """Ids of the active partitions."""
        parts = [line.split() for line in self._lines() if line.startswith("part ")]
        return {int(words[1]) for words in parts if words[2] == "1"}

    def activate(self, *ids: int) -> None:
        """What an operator does with another tool: these, and no others, are active."""
        lines = []
        for line in self._lines():
            words = line.split()
            if words[0] == "part":
                words[2] = str(int(int(words[1]) in ids))
            lines.append(" ".join(words))
        self._write(lines)

    def restart(self) -> None:
        """Its process ends and is started again with ``--restart``."""
        self.activate()
        self.set("mode", "restarted")

    def start_afresh(self) -> None:
        """Its process ends and is started again, with a new fabric."""
        self.activate()
        self.set("mode", "shared")

    def calls(self) -> list[str]:
        """What it was told since this was last asked."""
        log = self.path.with_name(f"{self.path.name}.calls")
        found = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return found
