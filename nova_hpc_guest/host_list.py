# SPDX-License-Identifier: Apache-2.0
"""The host list of a cluster, in the metadata of each member.

The user's client writes it, and members read it. Anyone in the project can change it, and its
words go into files of root's. So a list with any other form than it should have is refused.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: The item with the list; a longer list goes on in ``hpc_hosts_2`` and so on.
KEY: Final = "hpc_hosts"
#: The item with the public keys that a member was given.
KEYS_KEY: Final = "hpc_host_keys"
VERSION: Final = 1
READS: Final = (1,)
#: Longest value of an item (nova/api/validation/parameter_types.py, all releases).
LONGEST: Final = 255
#: Nova's default quota is 128 items for a server, and others need some.
MOST_ITEMS: Final = 99
_ROOM: Final = LONGEST - len("99:")

_NAME: Final = re.compile(r"[a-zA-Z](?:[a-zA-Z0-9-]{0,38}[a-zA-Z0-9])?", re.ASCII)
#: A public ed25519 key as OpenSSH writes it (RFC 8709, 4), without its type.
_PUBLIC: Final = r"AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}"
_PAIR: Final = re.compile(f"({_PUBLIC}) ({_PUBLIC})", re.ASCII)
_MOST_NUMBER: Final = 100_000
#: In place of a member's number: the head has none.
HEAD: Final = -1
_MOST_SLOTS: Final = 1 << 16


class WrongHostListError(ValueError):
    """A host list that must not be used; the text gives the reason."""


class PublicKeys(NamedTuple):
    """The public keys of members that one command has made."""

    #: Opens other members.
    login: str
    #: Of the member itself, as a host.
    host: str


class ListedHost(NamedTuple):
    """A member of a cluster, or its head: number, address and public keys."""

    number: int
    address: str
    keys: PublicKeys


class HostList(NamedTuple):
    """The members of a cluster; neighbours in the fabric follow one another."""

    cluster: str
    hosts: tuple[ListedHost, ...]
    #: Processes that each host has room for; 0 if unknown.
    slots: int = 0
    #: The server for login and the scheduler of jobs, which runs no jobs; None without one.
    head: ListedHost | None = None

    @property
    def everyone(self) -> tuple[ListedHost, ...]:
        """The head, if there is one, and the members."""
        return self.hosts if self.head is None else (self.head, *self.hosts)

    def name_of(self, host: ListedHost) -> str:
        """Return the host name of a member (cluster and number) or of the head."""
        return f"{self.cluster}-{'head' if host.number == HEAD else host.number}"


def write_host_list(hosts: HostList) -> str:
    """Format the list as one line of ASCII.

    :raises WrongHostListError: it is too long for a server's metadata.
    """
    pairs = list(dict.fromkeys(host.keys for host in hosts.everyone))
    data: dict[str, Any] = {
        "v": VERSION,
        "n": hosts.cluster,
        "s": hosts.slots,
        "k": [" ".join(pair) for pair in pairs],
        "m": [[host.number, host.address, pairs.index(host.keys)] for host in hosts.hosts],
    }
    if hosts.head is not None:
        data["h"] = [hosts.head.address, pairs.index(hosts.head.keys)]
    text = json.dumps(data, separators=(",", ":"))
    if len(text) > MOST_ITEMS * _ROOM:
        raise WrongHostListError(
            f"the host list of the cluster has {len(text)} characters, and {MOST_ITEMS * _ROOM} "
            "are possible: the cluster has too many members, or keys of too many commands"
        )
    return text


def read_host_list(text: object) -> HostList:
    """Read a list.

    :raises WrongHostListError: it must not be acted on.
    """
    data = _load_list(text)
    name, slots = data.get("n"), data.get("s")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WrongHostListError("the host list has a wrong name")
    pairs = [read_public_keys(pair) for pair in _list_in(data, "k")]
    hosts = tuple(_read_host(entry, pairs) for entry in _list_in(data, "m"))
    if not hosts or len({host.number for host in hosts}) < len(hosts):
        raise WrongHostListError("the host list has no host, or one of them twice")
    head = None if data.get("h") is None else _read_head(_list_in(data, "h"), pairs)
    return HostList(name, hosts, _number(slots, 0, _MOST_SLOTS, "slots"), head)


def read_public_keys(text: object) -> PublicKeys:
    """Read the item of a member's own keys.

    :raises WrongHostListError: the text is not two keys.
    """
    match = _PAIR.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise WrongHostListError("the public keys of a host are not two of ed25519")
    return PublicKeys(match[1], match[2])


def to_items(text: str) -> dict[str, str]:
    """Split the text of a list into items of a server's metadata."""
    parts = [text[at : at + _ROOM] for at in range(0, len(text), _ROOM)]
    parts[0] = f"{len(parts)}:{parts[0]}"
    return {KEY if at == 1 else f"{KEY}_{at}": part for at, part in enumerate(parts, 1)}


def from_items(items: Mapping[str, Any]) -> str | None:
    """Join the text of the list in a server's metadata; None without a list.

    :raises WrongHostListError: a part of it is missing.
    """
    first = items.get(KEY)
    if first is None:
        return None
    match = re.match(r"([1-9][0-9]?):", first, re.ASCII) if isinstance(first, str) else None
    parts = [items.get(f"{KEY}_{at}") for at in range(2, int(match[1]) + 1)] if match else [None]
    if match is None or not all(isinstance(part, str) for part in parts):
        raise WrongHostListError("the host list is cut")
    return str(first)[match.end() :] + "".join(map(str, parts))


def _load_list(text: object) -> dict[str, Any]:
    try:
        data = json.loads(text) if isinstance(text, str) and text.isascii() else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise WrongHostListError("the host list is no JSON object")
    version = data.get("v")
    # True is 1 in Python, and no version.
    if type(version) is not int or version not in READS:
        raise WrongHostListError(
            f"the host list has version {json.dumps(version)[:20]}, and this release of nova-hpc "
            f"reads {', '.join(map(str, READS))}: update nova-hpc"
        )
    return data


def _list_in(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise WrongHostListError(f"the host list has a wrong {key}")
    return value


def _read_host(entry: object, pairs: list[PublicKeys]) -> ListedHost:
    if not isinstance(entry, list) or len(entry) != 3:
        raise WrongHostListError("the host list has a wrong host")
    number, address, pair = entry
    return ListedHost(
        _number(number, 1, _MOST_NUMBER, "number"),
        _address(address),
        pairs[_number(pair, 0, len(pairs) - 1, "key")],
    )


def _read_head(entry: list[Any], pairs: list[PublicKeys]) -> ListedHost:
    if len(entry) != 2:
        raise WrongHostListError("the host list has a wrong head")
    address, pair = entry
    return ListedHost(HEAD, _address(address), pairs[_number(pair, 0, len(pairs) - 1, "key")])


def _number(value: object, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise WrongHostListError(f"the host list has a wrong {what}")
    return value


def _address(value: object) -> str:
    try:
        address = ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        raise WrongHostListError("the host list has what is no IP address") from None
    # The text after a percent sign may be anything (RFC 4007, 11).
    mapped = getattr(address, "ipv4_mapped", None)
    own = address.is_loopback or address.is_unspecified
    if mapped or own or address.is_multicast or "%" in str(value):
        raise WrongHostListError("the host list has the address of no other machine")
    return str(address)
