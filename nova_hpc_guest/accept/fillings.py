# SPDX-License-Identifier: Apache-2.0
"""The values of words in braces of a probe's command, as far as no machine is needed for them."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .probes import Probe

#: Texts of programs, which have braces of their own.
_PROGRAMS: Final = ("dgemm", "clock_program", "all_reduce")


def fill_word(word: str, fillings: Mapping[str, str]) -> str:
    """Replace the names in braces; a text of a program is only taken as a whole."""
    for name, value in fillings.items():
        if word == f"{{{name}}}":
            return value
    if "\n" in word and "{" not in word:
        return word
    for name, value in fillings.items():
        if name not in _PROGRAMS:
            word = word.replace(f"{{{name}}}", value)
    return word


def load_program(name: str) -> str:
    """Load the text of a program beside this module, in a directory or in the one file."""
    data = pkgutil.get_data(__package__ or "", name)
    if data is None:
        raise OSError(f"{name} is not part of this copy of the command")
    return data.decode("ascii")


def find_best_blas() -> str | None:
    """Return the path of this machine's best BLAS, whatever the environment names; else None."""
    for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib"):
        for pattern in ("*/openblas-*/libblas.so.3", "libopenblas.so.0", "*/blis-*/libblas.so.3"):
            matches = sorted(Path(folder).glob(pattern))
            if matches:
                return str(matches[0])
    return None


def find_default_port(probe: Probe) -> int:
    """Return the TCP port at which another machine answers a probe."""
    return 5201 if probe.tool == "iperf3" else 18515
