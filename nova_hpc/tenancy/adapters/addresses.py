"""Addresses of virtual functions that no port gives one: GUIDs and MACs. Pure.

An address is computed from the server's UUID and the number of the function
among those of the server, so it is the same on every host and after every
restart, and nobody has to ask anybody for it. It begins with the cloud's prefix,
whose bits say "of one interface" and "locally administered" (EUI-48 and EUI-64,
IEEE Std 802-2014 clause 8), so it is never one of a manufacturer; the rest is a
hash of both. Any two of n GUIDs of a cloud are the same with a probability of
n*n/2**57 where the prefix has one octet (7e-6 for a million), any two of n MACs
with n*n/2**41; on one node it is excluded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Final

import attrs

_TEXT: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){0,2}", re.ASCII)
_GUID_OCTETS: Final = 8
_MAC_OCTETS: Final = 6
_MULTICAST: Final = 1
_LOCAL: Final = 2


class PrefixError(ValueError):
    """A text that is no prefix of local addresses; it says why."""


@attrs.frozen
class Prefix:
    """The first octets of every address of a cloud."""

    octets: bytes

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """Read one to three octets, e.g. ``0e`` or ``0e:5a``.

        :raises PrefixError: it is none, or not one of local addresses.
        """
        text = text.strip().lower()
        if not _TEXT.fullmatch(text):
            raise PrefixError(f"{text[:40]!r} is not one to three octets like 0e or 0e:5a")
        octets = bytes.fromhex(text.replace(":", ""))
        if octets[0] & _MULTICAST or not octets[0] & _LOCAL:
            raise PrefixError(
                f"{text!r} does not begin local addresses of single interfaces: the second digit "
                "has to be 2, 6, a or e"
            )
        return cls(octets)

    def begins(self, address: int | str) -> bool:
        """Whether a GUID (a number) or a MAC is one of this cloud."""
        if isinstance(address, int):
            return address.to_bytes(_GUID_OCTETS, "big").startswith(self.octets)
        return bytes.fromhex(address.replace(":", "")).startswith(self.octets)


def guid(prefix: Prefix, server: str, index: int, use: str, taken: Collection[int]) -> int:
    """A GUID that is not in use on this node.

    :param server: UUID of the server.
    :param index: number of the function among those of the server, from 0.
    :param use: ``node`` or ``port``.
    :param taken: GUIDs that others have here.
    """
    return _draw(prefix, _GUID_OCTETS, f"{server}/{index}/{use}", taken)


def mac(prefix: Prefix, server: str, index: int, taken: Collection[str]) -> str:
    """A MAC address that is not in use on this node; see :func:`guid`."""
    numbers = {int(each.replace(":", ""), 16) for each in taken}
    number = _draw(prefix, _MAC_OCTETS, f"{server}/{index}/mac", numbers)
    return ":".join(f"{octet:02x}" for octet in number.to_bytes(_MAC_OCTETS, "big"))


def _draw(prefix: Prefix, octets: int, name: str, taken: Collection[int]) -> int:
    attempt = 0
    while True:
        size = octets - len(prefix.octets)
        text = f"{name}/{attempt}".encode()
        rest = hashlib.blake2b(text, digest_size=size, person=b"nova-hpc").digest()
        found = int.from_bytes(prefix.octets + rest, "big")
        if found not in taken:
            return found
        attempt += 1
