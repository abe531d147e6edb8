# SPDX-License-Identifier: Apache-2.0
"""The document that the cloud gives to a guest, and its place.

The user guide describes the schema. Within a version keys may be added; a key is never removed and
never changes its meaning.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final, NamedTuple

from .files import GuestFileError, Root
from .terms import DOCUMENT, MAC, PKEY, PREFIX, ROLE

SCHEMA: Final = "nova-hpc/guest"
#: The rule is the one of nova_hpc_common/wire/version.py, which a guest does not have.
READS: Final = (1,)

FW_CFG: Final = "/sys/firmware/qemu_fw_cfg"
#: Folder for the copies by ``install``: only root can read fw_cfg.
STATE: Final = "/run/nova-hpc"

TOPOLOGIES: Final = ("mirror", "numa", "flat")
#: Reasons for the path of traffic between two devices below one switch.
PEER_REASONS: Final = {
    "acs-redirect": "ACS redirects all requests",
    "no-ats": "ACS redirects what is not translated, and a device has no ATS",
    "ats": "ACS redirects what is not translated, and the devices have ATS",
    "no-redirect": "ACS redirects nothing",
    "unreadable": "the host could not read it",
}
#: Paths that the operator may require.
PEER_WISHES: Final = ("keep", "translated", "direct")
#: Reasons why a server was started without the shared memory that its flavor requires.
SHARED_REASONS: Final = {
    "off": "its host gives none",
    "full": "all that its host gives is taken",
    "group": "it is in no server group of its project",
    "unknown": "its host did not learn who shares it",
    "size": "servers of its group on its host share memory of another size",
    "parts": "so many servers of its group are on its host that no part is left",
    "memory": "its host could not make it",
    "encrypted": "its own memory is encrypted",
    "before": "it was started without it before, and its hardware stays as it is",
}
#: More than any server has; a broken document must not make us work for ever.
_MOST: Final = 4096
_HOP: Final = re.compile(r"[01][0-9a-f]\.[0-7]", re.ASCII)
_BUS: Final = re.compile(r"[0-9a-f]{2}", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)
_CLASS: Final = re.compile(r"[0-9a-f]{4}(?:[0-9a-f]{2})?", re.ASCII)
#: Kinds of domains of the fabric, the widest first.
LEVELS: Final = ("core", "spine", "block", "leaf", "nvlink_domain", "sub_domain")
#: The name of one, or of a rail. It is written into files of Slurm's.
DOMAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", re.ASCII)


class DocumentError(Exception):
    """The document is missing or cannot be used; the text gives the reason."""


class NoDocumentError(DocumentError):
    """This machine was given no document about its devices by the cloud."""


class GuestCell(NamedTuple):
    """A NUMA node promised to the guest: its number of CPUs, its memory and page size in KiB."""

    cpus: int
    memory_kib: int
    #: Size of the host's pages behind its memory.
    page_kib: int | None


class GuestDevice(NamedTuple):
    """A PCI function that the guest was promised, with its place in the host's tree."""

    number: int
    role: str | None
    vendor_id: str
    product_id: str
    class_code: str | None
    #: Near to this NUMA node; None if to none of the guest's.
    cell: int | None
    #: Number of its root complex on the host; None if unknown.
    root: int | None
    #: Numbers of the switches above it on the host, outermost first.
    switches: tuple[int, ...]
    #: Bus of the guest's root and then device.function of each step down to it. None if the path
    #: is not fixed and the order of the list counts.
    path: tuple[str, ...] | None
    #: GT/s a lane and lanes, at most.
    speed: float | None
    width: int | None
    #: MAC of the interface, for the device of a port; None for other devices.
    mac: str | None = None
    #: Devices with one number form a group: a GPU and the adapter of its rail.
    group: int | None = None
    #: Name of the rail of an adapter; the project's other servers have the same names.
    rail: str | None = None
    #: Number of the P_Key of its port's network, without the membership; None if not given.
    pkey: int | None = None
    #: Service level of that network's partition; None if not given.
    service_level: int | None = None

    @property
    def ids(self) -> tuple[str, str]:
        """Vendor and product of the device, four hex digits each."""
        return self.vendor_id, self.product_id

    @property
    def name(self) -> str:
        """Name of the device in messages: number, role and ids."""
        role = f"{self.role} " if self.role else ""
        return f"device {self.number} ({role}{self.vendor_id}:{self.product_id})"


class Peers(NamedTuple):
    """The way of traffic between a GPU and adapters below the same switch."""

    #: Number of the GPU.
    device: int
    #: Numbers of the adapters.
    others: tuple[int, ...]
    #: ``switch`` if it stays below it; ``root`` if not; None if unknown.
    path: str | None
    #: A word of :data:`PEER_REASONS`; None for a word that this command does not have.
    why: str | None
    #: Whether it is the operator's required path; None if none is required, or if unknown.
    as_wished: bool | None = None


class SharedMemory(NamedTuple):
    """The promised memory that servers of one group on one host share."""

    #: Size of each server's part.
    part_bytes: int
    #: Number of this server's part.
    part: int
    parts: int


class GuestDocument(NamedTuple):
    """The cloud's promise to a guest: its NUMA nodes, devices, fabric and shared memory."""

    topology: str
    cells: tuple[GuestCell, ...]
    devices: tuple[GuestDevice, ...]
    #: () also in documents without the key.
    peers: tuple[Peers, ...] = ()
    #: Level of the fabric and the project's name of the domain, the widest first.
    fabric: tuple[tuple[str, str], ...] = ()
    #: The operator's required path, a word of :data:`PEER_WISHES`. ``keep`` also in documents
    #: without the key; None for a word that this command does not have.
    peer_wish: str | None = "keep"
    #: None if the server has none.
    shared_memory: SharedMemory | None = None
    #: The reason why a server has none although its flavor requires it, mostly a word of
    #: :data:`SHARED_REASONS`. None if it has it, or its flavor does not require it.
    not_shared: str | None = None


def read_guest_document(root: Root) -> tuple[bytes, GuestDocument]:
    """Read the document of this machine; return it as bytes and as data.

    :raises NoDocumentError: there is none.
    :raises DocumentError: it cannot be read, or makes no sense.
    """
    data = read_entry_bytes(root, DOCUMENT)
    if data is None:
        hint = "" if root.exists(FW_CFG) else "; is the kernel module qemu_fw_cfg loaded?"
        raise NoDocumentError(
            f"this machine was given no {DOCUMENT} (looked in {FW_CFG} and {STATE}){hint}"
        )
    return data, parse_guest_document(data)


def read_entry_bytes(root: Root, name: str) -> bytes | None:
    """Read an entry of QEMU's fw_cfg, or the copy that ``install`` made; None without both.

    :raises DocumentError: it exists and cannot be read.
    """
    copy = f"{STATE}/{name[len(PREFIX) :]}"
    denied = None
    for read, path in ((root.read, f"{FW_CFG}/by_name/{name}/raw"), (root.read_own, copy)):
        try:
            data = read(path)
        except GuestFileError as error:
            denied = error
            continue
        if data is not None:
            return decode_entry(data)
    if denied is not None:
        raise DocumentError(f"{denied}; run this as root, or `nova-hpc-guest install` at boot")
    return None


def decode_entry(data: bytes) -> bytes:
    """Decode the text of an entry, which is in base64 unless it was made by hand.

    libvirt copies the text into QEMU's command line without quoting, so a comma or quote in plain
    text would end the entry.
    """
    text = data.rstrip(b"\0").strip()
    if text[:1] in (b"{", b"<"):
        return text
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return text


def parse_guest_document(data: bytes) -> GuestDocument:
    """Read the text of a document.

    :raises DocumentError: it is not a document of this version.
    """
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{DOCUMENT} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise DocumentError(f"{DOCUMENT} is not a document of schema {SCHEMA}")
    version = content.get("version")
    # True == 1 == 1.0 in Python, but neither true nor 1.0 is a version.
    if type(version) is not int or version not in READS:
        raise DocumentError(
            f"{DOCUMENT} has version {_shorten_value(version)}, and this command knows version "
            f"{', '.join(map(str, READS))}; install the command that belongs to the cloud"
        )
    topology = _pick_value(content, "topology", lambda value: value in TOPOLOGIES, "document")
    cells = tuple(
        GuestCell(
            _pick_value(cell, "cpus", _is_whole_number, f"cell {number}"),
            _pick_value(cell, "memory_kib", _is_whole_number, f"cell {number}"),
            _pick_value(cell, "page_kib", _or_none(_is_whole_number), f"cell {number}"),
        )
        for number, cell in enumerate(_list_of_objects(content, "cells"))
    )
    devices = tuple(
        _parse_device(number, item, len(cells))
        for number, item in enumerate(_list_of_objects(content, "devices"))
    )
    paths = [device.path for device in devices if device.path is not None]
    if len(paths) != len(set(paths)):
        raise DocumentError(f"{DOCUMENT}: two devices have the same path")
    wish = content.get("peer_wish", "keep")
    if not _is_text_like(ROLE)(wish):
        raise DocumentError(f"{DOCUMENT}: peer_wish is {_shorten_value(wish)}")
    shared_memory, not_shared = _parse_shared_memory(content)
    return GuestDocument(
        topology,
        cells,
        devices,
        _parse_peers(content, len(devices)),
        fabric=_parse_fabric(content),
        peer_wish=wish if wish in PEER_WISHES else None,
        shared_memory=shared_memory,
        not_shared=not_shared,
    )


def _parse_shared_memory(content: dict[str, Any]) -> tuple[SharedMemory | None, str | None]:
    value = content.get("shared_memory")
    if value is None:
        return None, None
    if not isinstance(value, dict):
        raise DocumentError(f"{DOCUMENT}: shared_memory is {_shorten_value(value)}")
    if "why" in value:
        return None, _pick_value(value, "why", _is_text_like(ROLE), "shared_memory")
    parts = _pick_value(
        value, "parts", lambda parts: _is_whole_number(parts) and 2 <= parts <= 16, "shared_memory"
    )
    return SharedMemory(
        _pick_value(
            value,
            "bytes",
            # Whole pages of 2 MiB: a guest maps it in such pages.
            lambda size: _is_whole_number(size) and 0 < size <= 1 << 40 and not size % (2 << 20),
            "shared_memory",
        ),
        _pick_value(
            value, "part", lambda part: _is_whole_number(part) and part < parts, "shared_memory"
        ),
        parts,
    ), None


def _parse_fabric(content: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    domains = content.get("fabric", {})
    if not isinstance(domains, dict):
        raise DocumentError(f"{DOCUMENT}: fabric is {_shorten_value(domains)}")
    # Later clouds may have more levels.
    levels = [level for level in LEVELS if domains.get(level) is not None]
    return tuple(
        (level, _pick_value(domains, level, _is_text_like(DOMAIN), "fabric")) for level in levels
    )


def _parse_peers(content: dict[str, Any], devices: int) -> tuple[Peers, ...]:
    if "peer_to_peer" not in content:
        return ()

    def number(value: object) -> bool:
        return _is_whole_number(value) and value < devices  # type: ignore[operator]

    peers = []
    for index, item in enumerate(_list_of_objects(content, "peer_to_peer")):
        where = f"peer_to_peer {index}"
        others = item.get("with")
        if not (isinstance(others, list) and len(others) <= _MOST and all(map(number, others))):
            raise DocumentError(f"{DOCUMENT}: {where}: with is {_shorten_value(others)}")
        reason = _pick_value(item, "why", _or_none(_is_text_like(ROLE)), where)
        peers.append(
            Peers(
                device=_pick_value(item, "device", number, where),
                others=tuple(others),
                path=_pick_value(
                    item, "path", lambda path: path in (None, "switch", "root"), where
                ),
                # Later clouds may have more of them.
                why=reason if reason in PEER_REASONS else None,
                as_wished=_pick_value(item, "as_wished", _or_none(_is_boolean), where),
            )
        )
    return tuple(peers)


def _parse_device(number: int, item: dict[str, Any], cells: int) -> GuestDevice:
    where = f"device {number}"
    link = item.get("link")
    if link is not None and not isinstance(link, dict):
        raise DocumentError(f"{DOCUMENT}: {where}: link is no object")
    return GuestDevice(
        number=number,
        role=_pick_value(item, "role", _or_none(_is_text_like(ROLE)), where),
        vendor_id=_pick_value(item, "vendor_id", _is_text_like(_ID), where),
        product_id=_pick_value(item, "product_id", _is_text_like(_ID), where),
        class_code=_pick_value(item, "class_code", _or_none(_is_text_like(_CLASS)), where),
        cell=_pick_value(
            item, "cell", _or_none(lambda cell: _is_whole_number(cell) and cell < cells), where
        ),
        root=_pick_value(item, "root", _or_none(_is_whole_number), where),
        switches=tuple(_pick_value(item, "switches", _is_list_of(_is_whole_number), where)),
        path=_parse_device_path(
            _pick_value(item, "path", _or_none(_is_list_of(_is_text_like(None))), where), where
        ),
        speed=_pick_value(link or {}, "speed", _or_none(_is_positive_number), where),
        width=_pick_value(link or {}, "width", _or_none(_is_whole_number), where),
        mac=_pick_value(item, "mac", _or_none(_is_text_like(MAC)), where),
        group=_pick_value(item, "group", _or_none(_is_whole_number), where),
        rail=_pick_value(item, "rail", _or_none(_is_text_like(DOMAIN)), where),
        pkey=_parse_pkey(_pick_value(item, "pkey", _or_none(_is_text_like(PKEY)), where)),
        service_level=_pick_value(
            item,
            "service_level",
            _or_none(lambda level: _is_whole_number(level) and level < 16),
            where,
        ),
    )


def _parse_pkey(text: str | None) -> int | None:
    return None if text is None else int(text, 16)


def _parse_device_path(value: list[str] | None, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    good = len(value) > 1 and _BUS.fullmatch(value[0]) and all(map(_HOP.fullmatch, value[1:]))
    if not good:
        raise DocumentError(f"{DOCUMENT}: {where}: path is {_shorten_value(value)}")
    return tuple(value)


def _list_of_objects(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = content.get(key)
    if not isinstance(value, list) or len(value) > _MOST:
        raise DocumentError(f"{DOCUMENT}: {key} is no list of at most {_MOST} objects")
    if not all(isinstance(item, dict) for item in value):
        raise DocumentError(f"{DOCUMENT}: {key} holds something that is no object")
    return value


def _pick_value(source: dict[str, Any], key: str, good: Any, where: str) -> Any:
    value = source.get(key)
    if not good(value):
        raise DocumentError(f"{DOCUMENT}: {where}: {key} is {_shorten_value(value)}")
    return value


def _shorten_value(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_whole_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _is_positive_number(value: object) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and 0 < value < 1e6  # type: ignore[operator]


def _or_none(good: Any) -> Any:
    return lambda value: value is None or good(value)


def _is_list_of(good: Any) -> Any:
    return lambda value: isinstance(value, list) and len(value) <= 64 and all(map(good, value))


def _is_text_like(pattern: Any) -> Any:
    return lambda value: (
        isinstance(value, str) and (pattern is None or pattern.fullmatch(value) is not None)
    )
