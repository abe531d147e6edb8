# SPDX-License-Identifier: Apache-2.0
"""Texts that users of Nova, guests and maps can write, each to do something to who reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: What stands for the file that shows that something was run.
MARKER: Final = "@MARKER@"

#: What it is to do -> the text. None is a name of a host.
TEXTS: Final[dict[str, str]] = {
    # Ansible runs templates of names and of variables.
    "template": "{{ lookup('pipe', 'touch @MARKER@') }}",
    "template with a name before it": "n1{{ lookup('pipe', 'touch @MARKER@') }}",
    "statement of a template": "{% if lookup('pipe', 'touch @MARKER@') %}n1{% endif %}",
    "python in a template": "{{ cycler.__init__.__globals__.os.system('touch @MARKER@') }}",
    "tag of YAML": "!!python/object/apply:os.system ['touch @MARKER@']",
    "mapping of YAML": "n1: {ansible_connection: local}",
    "variable of an inventory": "n1 ansible_connection=local ansible_shell_executable=@MARKER@",
    # Words of Slurm, MPI and pdsh.
    "state of Slurm": "x State=DOWN Reason=gone",
    "node and program of Slurm": "x\nSlurmUser=root\nProlog=@MARKER@",
    "include of Slurm": "x\ninclude @MARKER@",
    "all nodes": "n1,ALL",
    "range": "n[0-9999999]",
    "list": "n1,n2",
    "slots": "host slots=4096",
    "comment": "n1 # slots=0",
    "exclusion of pdsh": "-n1",
    "pattern of pdsh": "/.*/",
    "user": "root@n1",
    "module of pdsh": "exec:n1",
    "port": "n1:22",
    # Options and shells.
    "option of ssh": "-oProxyCommand=touch @MARKER@",
    "short option": "-h",
    "long option": "--help",
    "command": "$(touch @MARKER@)",
    "command between backticks": "`touch @MARKER@`",
    "command after a quote": '"; touch @MARKER@; "',
    "command after an apostrophe": "'; touch @MARKER@; '",
    "command on a line of its own": "n1\ntouch @MARKER@",
    "background": "n1 & touch @MARKER@ &",
    "variable": "${IFS}touch${IFS}@MARKER@",
    "home": "~root",
    "wildcards": "*?[a-z]",
    "backslash": "n1\\",
    # Paths of requests.
    "another request": "../servers/1d3e5d2a-7a0f-4f0e-9c59-0b54a3b6f7a1",
    "two dots": "..",
    "query": "n1?all_tenants=1",
    # Sheets.
    "formula": '=HYPERLINK("http://x.invalid/"&A1,"n1")',
    "formula that begins with a plus": "+cmd|' /C calc'!A0",
    "formula that begins with an at": "@SUM(1+1)",
    "formula behind a tab": "\t=1+1",
    "more columns": 'n1","10.0.0.9',
    # Markup.
    "end of markup": "[/nope]",
    "markup": "[red]n1[/red] [link=http://x.invalid]n2[/link]",
    "elements": "</text><script>alert(1)</script>&lt;",
    # Terminals.
    "colour": "\x1b[31mn1\x1b[0m",
    "title of the window": "\x1b]0;n1\x07",
    "clipboard": "\x1b]52;c;dG91Y2g=\x07",
    "eraser": "n2\x1b[2K\x1b[1A\rn1",
    "control of eight bits": "\x9b31mn1",
    "device control": "\x90q\x9cn1",
    "return": "wrong\rright",
    "backspace": "wrong\b\b\b\b\bright",
    "line end": "n1\nState: ACTIVE",
    "line ends of Unicode": "n1\u2028n2\u2029n3\x85n4\x0bn5\x0cn6",
    "right to left": "n1\u202egpj.exe\u202c",
    "isolate": "\u2066n1\u2069\u2067n2",
    "no width": "n\u200b1\ufeff",
    "tags": "n1\U000e0041",
    "half of a pair": "n1\ud800",
    "zero": "n1\x00n2",
    "delete": "n1\x7f",
    # What is no name of a host for other reasons.
    "nothing": "",
    "letters of other scripts": "\u043f1",
    "underscore": "n_1",
    "dot at the end": "n1.",
    "dot at the beginning": ".n1",
    "hyphen at the end": "n1-",
    "long part": "n" * 64,
    "long": ".".join(["n" * 60] * 5),
    "address": "127.0.0.1",
    "address as one number": "2130706433",
    "address in hexadecimal digits": "0x7f.1",
    "this machine": "localhost",
    "space": "n1 n2",
}


def texts(marker: Path | str = "/nonexistent/ran") -> list[str]:
    """All of them; those that run something make the file *marker*."""
    return [text.replace(MARKER, str(marker)) for text in TEXTS.values()]


def obeyed(text: str) -> list[str]:
    """Characters of a whole output that a terminal would obey or hide."""
    return [hex(ord(each)) for each in text if not (each.isprintable() or each == "\n")]
