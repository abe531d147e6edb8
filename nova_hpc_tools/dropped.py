# SPDX-License-Identifier: Apache-2.0
"""Commands that an earlier release had, and the commands that replace them.

For one release, each name is refused with a usage error that contains its replacement, or still
runs with a warning. The names are not entry points, so the help and the completion of a shell do
not list them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

#: Dropped command -> the command lines that replace it.
DROPPED: Final[Mapping[str, str]] = {
    "fabric plan": "nova-hpc capacity --flavor FLAVOR --members N, or "
    "nova-hpc explain --flavor FLAVOR --count N",
    "inventory fleet": "nova-hpc doctor --fleet DIR",
    "device reserved": "nova-hpc device list --reserved",
    "nvlink check": "nova-hpc doctor --nvlink",
    "nvlink list": "nova-hpc device list --nvlink",
}
#: First words of a command that still runs -> the words that replace them. A unit of systemd runs
#: this one when Fabric Manager starts, and systemd stops the manager if the command fails.
RENAMED: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("nvlink", "restore"): ("doctor", "--restore-nvlink"),
}


def list_replacements(words: Sequence[str], commands: Collection[str]) -> Iterator[str]:
    """Yield refusals for a command that was removed, with its replacement, one line each.

    :param words: the first words of the command line, without options.
    :param commands: names of the commands that exist. If none of them begins with *words*, each
        dropped command that does is refused.
    """
    typed = f"{' '.join(words)} "
    is_free = not any(f"{name} ".startswith(typed) for name in commands)
    for name, replacement in DROPPED.items():
        if typed.startswith(f"{name} ") or (is_free and f"{name} ".startswith(typed)):
            yield f"{name} was dropped; use {replacement}"
