# SPDX-License-Identifier: Apache-2.0
"""The announcements of a guest on its console: its public key, its engines, its GPU.

cloud-init does the same with SSH host keys: no secret leaves the guest, and the user's client reads
the lines by Nova's API. Each line has the boot's id, since a console keeps lines of earlier boots.
A console keeps 100 KiB, so the lines are repeated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from .records import ENGINE, KEY, RELEASE

_MARK: Final = "nova-hpc-guest: gpu"
_LINE: Final = re.compile(
    re.escape(_MARK)
    + r" boot ([0-9a-f]{8}) (key|engine|memory|nolimit) (\S{1,60})(?: (\S{1,24}))?(?=\s|$)",
    re.ASCII,
)
#: Ends of a console's line; an announcement has to begin after one.
_ENDS: Final = ("\n", "\r")
_BOOT: Final = re.compile(r"([0-9a-f]{8})-[0-9a-f-]{27}", re.ASCII)
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Announced(NamedTuple):
    """The announcements of a guest's last boot on its console."""

    #: All public keys; a second one is another writer's line.
    keys: tuple[str, ...] = ()
    #: Engine -> release.
    engines: Mapping[str, str] = {}
    #: MiB of the GPU's memory; 0 if not announced.
    memory: int = 0
    #: Engines that cannot limit the memory of a slot there.
    unlimited: frozenset[str] = frozenset()
    #: Why the lines may be another writer's, in words; empty without a sign of that.
    doubt: str = ""


class KeyDoubtError(ValueError):
    """The public key that a guest has announced is uncertain; the text gives the reason."""


def format_announcements(
    boot: str,
    key: str,
    engines: Mapping[str, str],
    memory: int,
    unlimited: Collection[str] = (),
) -> list[str]:
    """Format the lines that a guest prints on its console.

    :param boot: the kernel's id of this boot.
    :param key: empty if it has none.
    :param engines: name of each engine -> its release.
    :param memory: of its GPU, in MiB; 0 if unknown.
    :param unlimited: engines that cannot limit the memory of a slot.
    """
    match = _BOOT.fullmatch(boot)
    start = f"{_MARK} boot {match[1] if match else '0' * 8}"
    lines = [f"{start} engine {name} {release}" for name, release in sorted(engines.items())]
    lines += [f"{start} nolimit {name}" for name in sorted(unlimited)]
    if memory:
        lines.append(f"{start} memory {memory}")
    if key:
        lines.append(f"{start} key {key}")
    return lines


def read_announcements(console: str) -> Announced:
    """Parse the announcements of the last boot in a console's text; others may write there.

    A guest begins a line for each, so an announcement within a line is a text of others, such as a
    user's name in a log. A boot does not return: if lines of two boots alternate, one boot is not
    the guest's.
    """
    boot, memory = "", 0
    boots: set[str] = set()
    begun: set[str] = set()
    keys: list[str] = []
    within: set[str] = set()
    engines: dict[str, str] = {}
    unlimited: set[str] = set()
    doubt = ""
    text = console.replace("\0", "")
    for match in _LINE.finditer(text):
        if match.start() and text[match.start() - 1] not in _ENDS:
            if match[2] == "key":
                within.add(match[3])
            continue
        if match[1] != boot:
            if match[1] in boots:
                doubt = f"says lines of boot {match[1]} again after those of another boot"
            boots.add(match[1])
            boot, keys, engines, memory, unlimited = match[1], [], {}, 0, set()
        begun.add(match[3])
        word, value, more = match[2], match[3], match[4] or ""
        if word == "key" and KEY.fullmatch(value) and value not in keys:
            keys.append(value)
        elif word == "engine" and ENGINE.fullmatch(value) and RELEASE.fullmatch(more):
            engines[value] = more
        elif word == "nolimit" and ENGINE.fullmatch(value):
            unlimited.add(value)
        elif word == "memory" and re.fullmatch(r"[1-9][0-9]{0,7}", value, re.ASCII):
            memory = int(value)
    if within - begun:
        doubt = "says a key within a line of other text"
    return Announced(tuple(keys), engines, memory, frozenset(unlimited), doubt)


def require_one_key(announced: Announced, name: str) -> str | None:
    """Return the one key that a guest has announced; None if it has announced none yet.

    :param name: of the server, for the error.
    :raises KeyDoubtError: two different keys in one boot, or other signs of a second writer.
    """
    if announced.doubt:
        raise KeyDoubtError(
            f"the console of {name} {announced.doubt}, so one of the keys may not be its own: look "
            "who writes there, and reboot it"
        )
    if len(announced.keys) > 1:
        raise KeyDoubtError(
            f"the console of {name} says two different keys in one boot, so one of them is not its "
            "own: look who writes there, and reboot it"
        )
    return announced.keys[0] if announced.keys else None
