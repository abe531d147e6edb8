# SPDX-License-Identifier: Apache-2.0
"""Guests, firmware and services of the lab write what they like into its logs."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table

from nova_hpc_lab import commands, report
from nova_hpc_lab.progress import RichDisplay, Step, display
from tests.unit import hostile

_OWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_logs(tmp_path, monkeypatch, capsys):
    log = tmp_path / "console.log"
    log.write_bytes("\n".join(hostile.texts()).encode("utf-8", "surrogatepass") + b"\xff\n")
    cloud = SimpleNamespace(logs=lambda: {"hpc1": [log]})
    monkeypatch.setattr(commands._LabCommand, "existing", lambda self: cloud)
    command = commands.Logs(None, None)
    args = command.get_parser("logs").parse_args(["hpc1", "-n", "1000"])
    assert command.take_action(args) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) >= len(hostile.TEXTS)
    assert hostile.obeyed(out.replace("\t", "")) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_steps_are_shown_as_they_are(what, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream, text = Terminal(), hostile.TEXTS[what]
    step = Step("boot", "Boot", lambda _: None)
    with display(stream) as shown:
        assert isinstance(shown, RichDisplay)
        shown.begin(step)
        shown.note(step, text, None)
        shown.progress.refresh()
        shown.done(step, None)
    said = _OWN.sub("", stream.getvalue()).replace("\r", "").replace("\t", "")
    assert hostile.obeyed(said) == []


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_reports_have_no_markup_of_others(what):
    text = hostile.TEXTS[what]
    table = Table()
    table.add_column()
    table.add_row(f"[red]{report._plain(text)}[/red]")
    stream = io.StringIO()
    Console(file=stream, width=400).print(table)
    assert hostile.obeyed(stream.getvalue()) == []
