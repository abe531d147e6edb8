# SPDX-License-Identifier: Apache-2.0
"""What a guest says of itself on its console: its public key, its engines, its GPU.

As cloud-init does with SSH host keys: no secret leaves the guest, and the user's client reads
the lines by Nova's API. Each line has the boot's id, since a console keeps what earlier boots
said. A console keeps 100 KiB, so the lines are repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from .records import ENGINE, KEY, RELEASE

_MARK: Final = "nova-hpc-guest: gpu"
_LINE: Final = re.compile(
    re.escape(_MARK)
    + r" boot ([0-9a-f]{8}) (key|engine|memory) (\S{1,60})(?: (\S{1,24}))?(?=\s|$)",
    re.ASCII,
)
_BOOT: Final = re.compile(r"([0-9a-f]{8})-[0-9a-f-]{27}", re.ASCII)
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Announced(NamedTuple):
    """What the last boot said."""

    #: All public keys; more than one is somebody else's line.
    keys: tuple[str, ...] = ()
    #: Engine -> release.
    engines: Mapping[str, str] = {}
    #: MiB of the GPU's memory; 0: not said.
    memory: int = 0


class KeyDoubtError(ValueError):
    """Which key is the guest's cannot be told; the text says why."""


def format_announcements(boot: str, key: str, engines: Mapping[str, str], memory: int) -> list[str]:
    """The lines of a guest.

    :param boot: what the kernel calls this boot.
    :param key: empty: it has none.
    """
    match = _BOOT.fullmatch(boot)
    start = f"{_MARK} boot {match[1] if match else '0' * 8}"
    lines = [f"{start} engine {name} {release}" for name, release in sorted(engines.items())]
    if memory:
        lines.append(f"{start} memory {memory}")
    if key:
        lines.append(f"{start} key {key}")
    return lines


def read_announcements(console: str) -> Announced:
    """What the last boot in a console's text said; others may have written into it."""
    boot, memory = "", 0
    keys: list[str] = []
    engines: dict[str, str] = {}
    for match in _LINE.finditer(console.replace("\0", "")):
        if match[1] != boot:
            boot, keys, engines, memory = match[1], [], {}, 0
        word, value, more = match[2], match[3], match[4] or ""
        if word == "key" and KEY.fullmatch(value) and value not in keys:
            keys.append(value)
        elif word == "engine" and ENGINE.fullmatch(value) and RELEASE.fullmatch(more):
            engines[value] = more
        elif word == "memory" and re.fullmatch(r"[1-9][0-9]{0,7}", value, re.ASCII):
            memory = int(value)
    return Announced(tuple(keys), engines, memory)


def require_one_key(announced: Announced, name: str) -> str | None:
    """The one key that a guest has said; None: it has said none yet.

    :param name: of the server, for the error.
    :raises KeyDoubtError: two different keys in one boot.
    """
    if len(announced.keys) > 1:
        raise KeyDoubtError(
            f"the console of {name} says two different keys in one boot, so one of them is not its "
            "own: look who writes there, and reboot it"
        )
    return announced.keys[0] if announced.keys else None
