# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells at a terminal, without the package bash-completion."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nova_hpc_guest import command as guest
from nova_hpc_guest.completion import format_completion
from nova_hpc_tools.main import main

SHELLS = {"bash": ("--noprofile", "--norc", "-i"), "zsh": ("-f", "-i")}
#: Typed words before Tab -> the words behind it.
TYPED = {
    "nova-hpc doc": "tor",
    "nova-hpc device quar": "antine",
    "nova-hpc doctor --fl": "eet",
    "nova-hpc explain --flavor hpc.gpu4 --tre": "es",
    "nova-hpc-guest acc": "ept",
    "nova-hpc-guest gpu sl": "ot",
    "nova-hpc-guest accept --save-b": "aseline",
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of both commands, as they print them."""
    file = tmp_path_factory.mktemp("completion") / "script"
    with pytest.MonkeyPatch.context() as patched, file.open("w") as stream:
        for run in (main, guest.main):
            patched.setattr("sys.stdout", stream)
            assert run(["complete"]) == 0
    return file


def complete(shell: str, script: Path, typed: str) -> str:
    """What the shell writes behind typed words and a Tab."""
    child, terminal = pty.fork()
    if not child:
        os.environ.update(TERM="dumb", HOME=str(script.parent), PS1="> ")
        os.execvp(shell, [shell, *SHELLS[shell]])
    try:
        os.write(terminal, f"source {script}; echo re''ady\n".encode())
        read_until(terminal, "ready")
        os.write(terminal, f"{typed}\t".encode())
        return read_until(terminal, f"{typed}{TYPED[typed]}")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def read_until(terminal: int, end: str) -> str:
    """The output of a terminal up to a text, or of 30 seconds."""
    seen, latest = "", time.monotonic() + 30
    while end not in seen and time.monotonic() < latest:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_words(shell: str, script: Path, typed: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert f"{typed}{TYPED[typed]}" in complete(shell, script, typed)


def test_files_are_left_to_the_shell_and_hidden_options_are_left_out(script: Path) -> None:
    text = script.read_text()
    assert "complete -o default" in text
    assert "--metadata-url" not in text
    assert "_get_comp_words_by_ref" not in text


def test_a_word_of_a_command_is_no_command_of_the_shell(tmp_path: Path) -> None:
    text = format_completion("x", {"it's $(touch a)": ["--one", "two"]})
    done = subprocess.run(
        ["bash", "-c", f"{text}\n_x_offers '' \"it's\" '$(touch'"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, [*tmp_path.iterdir()]) == ("a)\n", "", [])
