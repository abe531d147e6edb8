# SPDX-License-Identifier: Apache-2.0
"""The emulator of the node, in the cache."""

import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import emulator
from nova_hpc_lab.state import Paths

#: In the place of mmdebstrap: a "loader" that prints what it was started with.
PROGRAM = """#!{python}
import pathlib, sys
pathlib.Path("{log}").open("a").write(" ".join(sys.argv[1:]) + sys.stdin.read())
root = pathlib.Path(sys.argv[-2], "usr/lib/x86_64-linux-gnu")
root.mkdir(parents=True)
loader = root / "ld-linux-x86-64.so.2"
loader.write_text("#!/bin/sh\\necho $*\\n")
loader.chmod(0o755)
"""


@pytest.fixture
def paths(tmp_path, tmp_path_factory, monkeypatch):
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, log=tmp_path / "calls"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return Paths.from_environment(
        {
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_STATE_HOME": str(tmp_path_factory.mktemp("s")),
        }
    )


def test_it_is_unpacked_once_and_started_by_its_own_loader(paths, tmp_path):
    told = []
    for _ in range(2):
        emulator.prepare(paths, lambda text, done: told.append(text))
    assert told == ["QEMU for the node (only once)"]
    calls = (tmp_path / "calls").read_text()
    assert "--variant=extract" in calls
    assert "qemu-system-x86/trixie-backports" in calls
    assert " trixie-backports main\n" in calls
    found = emulator.find(paths)
    said = subprocess.run([*found.argv(), "-x"], capture_output=True, text=True, check=True).stdout
    assert said.split() == [
        "--library-path",
        f"{found.root}/usr/lib/x86_64-linux-gnu",
        f"{found.root}/usr/bin/qemu-system-x86_64",
        *("-L", f"{found.root}/usr/share/qemu", "-L", f"{found.root}/usr/share/seabios"),
        "-x",
    ]


def test_a_damaged_one_is_unpacked_again(paths):
    emulator.prepare(paths, lambda text, done: None)
    loader = emulator.find(paths).argv()[0]
    with Path(loader).open("a") as stream:
        stream.write("damage")
    told = []
    emulator.prepare(paths, lambda text, done: told.append(text))
    assert len(told) == 1


def test_without_it_the_user_is_told_what_to_run(paths):
    with pytest.raises(LabError, match="nova-hpc lab up"):
        emulator.find(paths)
