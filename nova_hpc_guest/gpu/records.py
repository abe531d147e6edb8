# SPDX-License-Identifier: Apache-2.0
"""The three records of a share, in the metadata of its servers.

The user's commands write them, guests and commands read them, and anyone in the project can
change them. A record with any other form than it should have is unknown, never empty. Nova
takes 255 characters.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Final, NamedTuple

#: The tag of a GPU server that is a share.
TAG: Final = "hpc-gpu-share"
#: Of the GPU server: its description as a share.
SHARE_KEY: Final = "hpc_gpu_share"
#: Of the GPU server, one a client, so that two writers never write one item; the client's id
#: follows.
SLOT_PREFIX: Final = "hpc_gpu_"
#: Of the client: the place of its share.
CLIENT_KEY: Final = "hpc_gpu"

VERSION: Final = 1
READS: Final = (1,)
#: Longest value of an item of metadata (nova/api/validation/parameter_types.py, all releases).
LONGEST: Final = 255
#: Clients that one share has at most.
MOST_SLOTS: Final = 64
#: MiB; 16 TiB.
MOST_MEMORY: Final = 1 << 24

NAME: Final = re.compile(r"[a-zA-Z](?:[a-zA-Z0-9-]{0,38}[a-zA-Z0-9])?", re.ASCII)
ENGINE: Final = re.compile(r"[a-z][a-z0-9-]{0,15}", re.ASCII)
RELEASE: Final = re.compile(r"[0-9][0-9A-Za-z.+~-]{0,23}", re.ASCII)
#: A WireGuard key: 32 bytes in base64 (wg(8)).
KEY: Final = re.compile(r"[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=", re.ASCII)
UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class RecordError(ValueError):
    """A record that must not be used; the text gives the reason."""


class LaterRecordError(RecordError):
    """A record that only a later release reads; it stays as it is."""


class GpuShare(NamedTuple):
    """A GPU server's record as a share: its engine, its slots and their memory in MiB."""

    name: str
    engine: str
    #: Clients at most.
    slots: int = 1
    #: MiB of each slot; 0 for no limit.
    memory: int = 0
    #: Clients come only through WireGuard.
    encrypted: bool = False


class GpuSlot(NamedTuple):
    """The GPU server's record of a client's part of a share: address, port, memory, tunnel key."""

    #: The client's fixed address.
    address: str
    #: The first of the four ports that the port rule gives.
    port: int
    #: Seconds since 1970, by the clock of the machine from which it was attached.
    since: int = 0
    #: MiB; 0 for the share's value.
    memory: int = 0
    #: Public key of the client's tunnel; empty without a tunnel.
    key: str = ""


class GpuClient(NamedTuple):
    """A client's record of its share: addresses, port and engine."""

    #: Id of the GPU server.
    share: str
    #: Its address in the network that both have.
    address: str
    #: The client's own address there.
    own: str
    port: int
    engine: str
    #: Public key of the share's tunnel; empty: none.
    key: str = ""


def slot_key_of(client: str) -> str:
    """Return the key of the GPU server's metadata that has this client's slot."""
    return SLOT_PREFIX + client


def client_of_key(key: str) -> str | None:
    """Return the client of this slot's metadata key; None if the key is not a slot's."""
    client = key[len(SLOT_PREFIX) :] if key.startswith(SLOT_PREFIX) else ""
    return client if UUID.fullmatch(client) else None


def write_share(share: GpuShare) -> str:
    """Format the record of a share as a value of metadata."""
    data = {"n": share.name, "e": share.engine, "s": share.slots}
    return _write_record(
        {**data, **_given(m=share.memory), **({"x": True} if share.encrypted else {})}
    )


def read_share(text: object) -> GpuShare:
    """Parse the item of a server's metadata that describes its share of a GPU.

    :raises RecordError: it is malformed, or a value is outside its limits.
    """
    data = _load_record(text, "share")
    return GpuShare(
        _text(data, "n", NAME),
        _text(data, "e", ENGINE),
        _number(data, "s", 1, MOST_SLOTS),
        _number(data, "m", 0, MOST_MEMORY, 0),
        _truth(data, "x"),
    )


def write_slot(slot: GpuSlot) -> str:
    """Format the record of a slot as a value of metadata."""
    data = {"a": slot.address, "p": slot.port}
    return _write_record({**data, **_given(t=slot.since, m=slot.memory, k=slot.key)})


def read_slot(text: object) -> GpuSlot:
    """Read the item of a slot.

    :raises RecordError: it must not be acted on.
    """
    data = _load_record(text, "slot")
    return GpuSlot(
        _address(data, "a"),
        _number(data, "p", FIRST_PORT, LAST_PORT),
        _number(data, "t", 0, 1 << 40, 0),
        _number(data, "m", 0, MOST_MEMORY, 0),
        _text(data, "k", KEY, ""),
    )


def write_client(client: GpuClient) -> str:
    """Format the record of a client as a value of metadata."""
    data = {"s": client.share, "a": client.address, "c": client.own, "p": client.port}
    return _write_record({**data, "e": client.engine, **_given(k=client.key)})


def read_client(text: object) -> GpuClient:
    """Read the item of a client.

    :raises RecordError: it must not be acted on.
    """
    data = _load_record(text, "pointer to a share")
    return GpuClient(
        _text(data, "s", UUID),
        _address(data, "a"),
        _address(data, "c"),
        _number(data, "p", FIRST_PORT, LAST_PORT),
        _text(data, "e", ENGINE),
        _text(data, "k", KEY, ""),
    )


#: The ports of the port rule (:mod:`.port_rule`): below those that a kernel gives out.
FIRST_PORT: Final = 16384
LAST_PORT: Final = FIRST_PORT + 4 * 0xFFF


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _write_record(data: dict[str, Any]) -> str:
    text = json.dumps({"v": VERSION, **data}, separators=(",", ":"))
    if len(text) > LONGEST:
        raise RecordError(f"the record has {len(text)} characters, and {LONGEST} are possible")
    return text


def _load_record(text: object, what: str) -> dict[str, Any]:
    if not isinstance(text, str) or not text.isascii() or len(text) > LONGEST:
        raise RecordError(f"the {what} is no text of at most {LONGEST} characters")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the {what} is not JSON") from error
    if not isinstance(data, dict):
        raise RecordError(f"the {what} is no JSON object")
    version = data.get("v")
    # True is 1 in Python, and no version.
    if type(version) is not int or version < 1:
        raise RecordError(f"the {what} says no version")
    if version not in READS:
        raise LaterRecordError(
            f"the {what} has version {version}, which is newer than what this release of nova-hpc "
            f"reads, {', '.join(map(str, READS))}: update nova-hpc"
        )
    return data


def _text(data: dict[str, Any], key: str, pattern: Any, default: str | None = None) -> str:
    value = data.get(key, default)
    if value == "" and default == "":
        return ""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise RecordError(f"the record has a wrong {key}")
    return value


def _number(
    data: dict[str, Any], key: str, least: int, most: int, default: int | None = None
) -> int:
    value = data.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise RecordError(f"the record has a wrong {key}; it is a number from {least} to {most}")
    return value


def _truth(data: dict[str, Any], key: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise RecordError(f"the record has a wrong {key}; it is true or false")
    return value


def _address(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    try:
        address = ipaddress.IPv4Address(value if isinstance(value, str) else "")
    except ValueError:
        raise RecordError(f"the record has a wrong {key}; it is an IPv4 address") from None
    if address.is_loopback or address.is_multicast or address.is_unspecified:
        raise RecordError(f"the record has a wrong {key}; it is the address of no other machine")
    return str(address)
