# SPDX-License-Identifier: Apache-2.0
"""Reads the devices that servers have, several times a minute and without any effect on them.

Nothing is written, reset or opened by VFIO. A device answers each four bytes of its configuration
space with a round trip, so the reader takes eight bytes of a virtual function and 64 of any other
device. A physical function is read once for all its virtual functions. The kernel wakes a device
from D3cold to read its registers, so the reader reads the power state first. Files:
``Documentation/ABI/testing/sysfs-bus-pci``, ``sysfs-bus-pci-devices-aer_stats`` and
``sysfs-class-infiniband`` of the kernel.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy.watch.error_file import ErrorFile
from nova_hpc.tenancy.watch.look import (
    DRIVER,
    FATAL,
    NONFATAL,
    PARENT_FATAL,
    PORT_FATAL,
    DeviceLook,
)
from nova_hpc.topology import confspace
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.model import try_normalise_address

# O_NONBLOCK: a pipe in the place of a file must not hang the reader.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_PAGE: Final = 4096
#: Vendor, device, command and status: a virtual function has ones in the first two alone.
_VIRTUAL_HEAD: Final = 8
#: Vendors that a device shows while it is reset (PCI Express Base 5.0, 2.3.1.1), and of none.
_NO_VENDOR: Final = (b"\xff\xff", b"\x01\x00", b"\x00\x00")
#: Register ranges that do not change in a healthy device: vendor and device, revision and class.
_IDS: Final = (slice(0, 4), slice(8, 12))
_SUBSYSTEM: Final = slice(0x2C, 0x30)
_HEADER_TYPE: Final = 0x0E
_ASLEEP: Final = (b"D1", b"D2", b"D3hot", b"D3cold")
#: Base classes of mass storage and of network adapters: they keep the speed of their links.
#: A GPU (0x03, 0x12) lowers it whenever it is idle.
_STORAGE: Final = "01"
_NETWORK: Final = "02"
_CLASS: Final = re.compile(rb"0x([0-9a-f]{2})[0-9a-f]{4}\s*", re.ASCII)
_TOTAL: Final = re.compile(rb"TOTAL_ERR_(?:FATAL|NONFATAL)[ \t]+(\d{1,18})", re.ASCII)
_SPEED: Final = re.compile(rb"(\d{1,3}(?:\.\d)?) GT/s.*\s*", re.ASCII)
_STATE: Final = re.compile(rb"(\d): .*\s*", re.ASCII)
#: States of an InfiniBand port (enum ib_port_state): a port in the last one may recover by itself.
_PORT_ACTIVE: Final = b"4"
_PORT_DOWN: Final = (b"1", b"2", b"3")
_MOST_PORTS: Final = 16


@attrs.frozen
class _DevicePlace:
    """Facts of a device that stay the same as long as it is there."""

    folder: str
    physical: str | None
    base_class: str

    @property
    def port(self) -> str:
        """The folder of the PCI port above a function that is not virtual."""
        return os.path.dirname(self.folder)  # noqa: PTH120


@attrs.frozen
class _Board:
    """A device's own function, or its physical function: values that its functions share."""

    width: int | None = None
    speed: float | None = None
    firmware: str | None = None
    ports: Mapping[str, bool] = attrs.field(factory=dict)


class DeviceReader:
    """The reader of one node. It remembers the places of devices between two looks."""

    def __init__(self, root: Path, errors: ErrorFile | None = None) -> None:
        """Create the reader of the system below *root*, with an exporter's file if there is one."""
        self._devices = f"{os.path.realpath(root).rstrip('/')}{DEVICES}"
        self._errors = errors
        self._places: dict[str, _DevicePlace] = {}

    def read(self, addresses: Iterable[str]) -> dict[str, DeviceLook]:
        """Look at devices; an unreadable value is unknown, and never raises.

        :param addresses: normalised PCI addresses.
        """
        try:
            present = frozenset(os.listdir(self._devices))  # noqa: PTH208
        except OSError:
            present = frozenset()
        if not present:
            # A whole bus that is empty is a fault of the reading, and of no device.
            return {address: DeviceLook() for address in addresses}
        errors = {} if self._errors is None else self._errors.read()
        boards: dict[str, tuple[_Board, Mapping[str, int | None]]] = {}
        return {
            address: self._look(address, boards, errors)
            if address in present
            else self._missing(address)
            for address in addresses
        }

    def physical_function_of(self, address: str) -> str | None:
        """Return the physical function of a virtual function; None for any other device."""
        return self._place(address).physical

    def _missing(self, address: str) -> DeviceLook:
        self._places.pop(address, None)
        return DeviceLook(present=False)

    def _place(self, address: str) -> _DevicePlace:
        place = self._places.get(address)
        if place is None:
            folder = os.path.realpath(f"{self._devices}/{address}")
            try:
                physical = try_normalise_address(
                    os.path.basename(os.readlink(f"{folder}/physfn"))  # noqa: PTH115, PTH119
                )
            except OSError:
                physical = None
            match = _CLASS.fullmatch(_read(f"{folder}/class") or b"")
            place = _DevicePlace(folder, physical, match[1].decode() if match else "")
            if match:  # else it is read again at the next look
                self._places[address] = place
        return place

    def _look(
        self,
        address: str,
        boards: dict[str, tuple[_Board, Mapping[str, int | None]]],
        errors: Mapping[str, int],
    ) -> DeviceLook:
        place = self._place(address)
        counters = {
            FATAL: _read_errors(f"{place.folder}/aer_dev_fatal"),
            NONFATAL: _read_errors(f"{place.folder}/aer_dev_nonfatal"),
            DRIVER: errors.get(address),
        }
        if place.physical is None:
            counters[PORT_FATAL] = _read_errors(f"{place.port}/aer_dev_fatal")
            if _is_asleep(place):
                return DeviceLook(present=True, asleep=True, counters=_drop_unknown(counters))
            config = _read(f"{place.folder}/config", confspace.HEADER) or b""
            silent = _is_silent(config, confspace.HEADER)
            board = _read_board(place) if silent is False else _Board()
            ids = _ids_of_config(config) if silent is False else None
        else:
            config = _read(f"{place.folder}/config", _VIRTUAL_HEAD) or b""
            silent = _is_silent(config, _VIRTUAL_HEAD)
            if place.physical not in boards:
                boards[place.physical] = self._parent(place.physical)
            board, errors_of_parent = boards[place.physical]
            counters.update(errors_of_parent)
            ids = None
        return DeviceLook(
            present=True,
            silent=silent,
            ids=ids,
            firmware=board.firmware,
            width=board.width,
            speed=board.speed,
            counters=_drop_unknown(counters),
            ports=board.ports,
        )

    def _parent(self, address: str) -> tuple[_Board, Mapping[str, int | None]]:
        """Read a physical function and the port above it, for its virtual functions."""
        place = self._place(address)
        counters = {
            PARENT_FATAL: _read_errors(f"{place.folder}/aer_dev_fatal"),
            PORT_FATAL: _read_errors(f"{place.port}/aer_dev_fatal"),
        }
        return (_Board() if _is_asleep(place) else _read_board(place)), counters


def _drop_unknown(counters: Mapping[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in counters.items() if value is not None}


def _read(path: str, limit: int = _PAGE) -> bytes | None:
    try:
        handle = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        return os.pread(handle, limit, 0)
    except OSError:
        return None
    finally:
        os.close(handle)


def _is_asleep(place: _DevicePlace) -> bool:
    return (_read(f"{place.folder}/power_state") or b"").strip() in _ASLEEP


def _is_silent(config: bytes, length: int) -> bool | None:
    """Whether all registers read as ones; None if they cannot be read, or in a reset."""
    if len(config) < length:
        return None
    if config.count(0xFF) == length:
        return True
    if length > _VIRTUAL_HEAD and config[:2] in _NO_VENDOR:
        return None
    return False


def _ids_of_config(config: bytes) -> str:
    ids = b"".join(config[part] for part in _IDS)
    if config[_HEADER_TYPE] & 0x7F == 0:
        ids += config[_SUBSYSTEM]
    return ids.hex()


# The text of a counter's file changes only with the counter.
@functools.lru_cache(maxsize=4096)
def _count_errors(data: bytes) -> int | None:
    match = _TOTAL.search(data)
    return int(match[1]) if match else None


def _read_errors(path: str) -> int | None:
    data = _read(path)
    return None if data is None else _count_errors(data)


def _read_board(place: _DevicePlace) -> _Board:
    width = (_read(f"{place.folder}/current_link_width") or b"").strip()
    # The kernel shows 0, 63 or 255 lanes if the link is down or the device silent.
    lanes = int(width) if width.isdigit() and int(width) in range(1, 33) else None
    speed = None
    if place.base_class in (_STORAGE, _NETWORK):
        match = _SPEED.fullmatch(_read(f"{place.folder}/current_link_speed") or b"")
        speed = float(match[1]) if match else None
    if place.base_class != _NETWORK:
        return _Board(lanes, speed)
    firmware, ports = _read_adapter(f"{place.folder}/infiniband")
    return _Board(lanes, speed, firmware, ports)


def _read_adapter(folder: str) -> tuple[str | None, dict[str, bool]]:
    """Read the firmware and the ports of an adapter; nothing of an adapter without its driver."""
    firmware, ports = None, {}
    for name in _list_folder(folder):
        text = (_read(f"{folder}/{name}/fw_ver") or b"").strip()
        firmware = text.decode("ascii", "replace")[:64] or None
        for port in _list_folder(f"{folder}/{name}/ports"):
            match = _STATE.fullmatch(_read(f"{folder}/{name}/ports/{port}/state") or b"")
            if match and match[1] in (_PORT_ACTIVE, *_PORT_DOWN):
                ports[f"{name}/{port}"] = match[1] == _PORT_ACTIVE
    return firmware, ports


def _list_folder(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:_MOST_PORTS]  # noqa: PTH208
    except OSError:
        return []
