# SPDX-License-Identifier: Apache-2.0
"""The operator's list of physical ports: the GUID behind each PCI slot of a host.

``nova-hpc fabric ports`` writes it, as YAML::

    version: 1
    ports:
    - host: cn17
      address: "0000:81:00.0"
      guid: "0x0002c90000200001"
      functions: ["0000:81:00.2", "0000:81:00.3"]
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import attrs
import yaml
from oslo_log import log

from nova_hpc.fabric.partitions.keys import format_guid, parse_guid
from nova_hpc.topology.model import AddressError, normalise_address, try_normalise_address

LOG: Final = log.getLogger(__name__)

VERSION: Final = "1"
_PORT_KEYS: Final = ("host", "address", "guid", "functions")
_LONGEST_HOST: Final = 255


class PortInventoryError(ValueError):
    """The inventory of ports cannot be used. The text names the entry and the cure."""


@attrs.frozen
class PhysicalPort:
    """One physical port of an InfiniBand adapter in a host.

    :ivar address: PCI address of the physical function.
    :ivar functions: PCI addresses of its virtual functions.
    """

    host: str
    address: str
    guid: int
    functions: tuple[str, ...] = ()

    def slots(self) -> tuple[str, ...]:
        """Return the PCI addresses of the port's physical and virtual functions."""
        return (self.address, *self.functions)


@attrs.define(slots=False, frozen=True)
class PortInventory:
    """The physical ports of all hosts, from the operator's file."""

    ports: tuple[PhysicalPort, ...] = ()

    @cached_property
    def _by_slot(self) -> Mapping[tuple[str, str], PhysicalPort]:
        return {(port.host, slot): port for port in self.ports for slot in port.slots()}

    @cached_property
    def _by_guid(self) -> Mapping[int, PhysicalPort]:
        return {port.guid: port for port in self.ports}

    def find_port(self, host: str, slot: object) -> PhysicalPort | None:
        """Find the physical port behind a PCI address of a host; None if unknown.

        The address may be the port's own or a virtual function's.
        """
        address = try_normalise_address(slot)
        return None if address is None else self._by_slot.get((host, address))

    def port_of_guid(self, guid: int) -> PhysicalPort | None:
        """Return the physical port with a GUID; None if unknown."""
        return self._by_guid.get(guid)


def parse_inventory(text: str) -> PortInventory:
    """Parse the YAML text of an inventory of ports.

    :raises PortInventoryError: anything of it is not understood, or there twice.
    """
    try:
        document = yaml.load(text, Loader=_TextLoader)  # nosec: texts only
    except yaml.YAMLError as error:
        raise PortInventoryError(f"no YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(document, dict):
        raise PortInventoryError("no ports: it has to have version and ports")
    _refuse_other_keys(document, ("version", "ports"), "the inventory")
    if document.get("version") != VERSION:
        raise PortInventoryError(f"version is {document.get('version')!r}, and has to be {VERSION}")
    rows = document.get("ports")
    if not isinstance(rows, list):
        raise PortInventoryError("ports is no list")
    ports = [_read_port(row, f"entry {number}") for number, row in enumerate(rows, 1)]
    _refuse_doubles(ports)
    return PortInventory(tuple(ports))


def render_inventory(ports: Iterable[PhysicalPort]) -> str:
    """Return the YAML text of an inventory of ports, which :func:`parse_inventory` reads."""
    rows = [
        {
            "host": port.host,
            "address": port.address,
            "guid": format_guid(port.guid),
            "functions": list(port.functions),
        }
        for port in sorted(ports, key=lambda port: (port.host, port.address))
    ]
    return yaml.safe_dump({"version": int(VERSION), "ports": rows}, sort_keys=False, width=120)


class _TextLoader(yaml.BaseLoader):
    """A YAML loader that keeps all values as text: otherwise ``0000:31:00.0`` would be a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a mapping with the same key twice, because the intended value is unknown."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {key} is given twice")
        return super().construct_mapping(node, deep)


def _refuse_other_keys(row: Mapping[Any, Any], keys: Iterable[str], what: str) -> None:
    others = [str(key) for key in row if key not in keys]
    if others:
        raise PortInventoryError(
            f"{what} has {others[0][:60]!r}, which means nothing here; there are {', '.join(keys)}"
        )


def _read_port(row: Any, what: str) -> PhysicalPort:
    if not isinstance(row, dict):
        raise PortInventoryError(f"{what} is no port with {', '.join(_PORT_KEYS)}")
    host = row.get("host")
    if not isinstance(host, str) or not 0 < len(host) <= _LONGEST_HOST or host != host.strip():
        raise PortInventoryError(
            f"{what}: host is {str(host)[:60]!r}; it has to be the name that Nova has for the host"
        )
    what = f"{what} ({host})"
    _refuse_other_keys(row, _PORT_KEYS, what)
    functions = row.get("functions", [])
    if not isinstance(functions, list):
        raise PortInventoryError(f"{what}: functions is no list of PCI addresses")
    address = _read_address(row.get("address"), f"{what}: address")
    addresses = [_read_address(text, f"{what} {address}: functions") for text in functions]
    try:
        guid = parse_guid(row.get("guid"))
    except ValueError as error:
        raise PortInventoryError(f"{what} {address}: {error}") from error
    return PhysicalPort(host, address, guid, tuple(addresses))


def _read_address(text: object, what: str) -> str:
    try:
        return normalise_address(text if isinstance(text, str) else "")
    except AddressError as error:
        raise PortInventoryError(f"{what}: {str(text)[:60]!r} is no PCI address") from error


def _refuse_doubles(ports: Iterable[PhysicalPort]) -> None:
    guids: dict[int, PhysicalPort] = {}
    slots: dict[tuple[str, str], PhysicalPort] = {}
    for port in ports:
        name = f"{port.host} {port.address}"
        before = guids.setdefault(port.guid, port)
        if before is not port:
            raise PortInventoryError(
                f"{format_guid(port.guid)} is the GUID of {before.host} {before.address} and of "
                f"{name}: one of them is wrong (ibstat shows Port GUID on the host)"
            )
        for slot in port.slots():
            before = slots.setdefault((port.host, slot), port)
            if before is not port:
                raise PortInventoryError(
                    f"{slot} of {port.host} leads to {before.address} and to {port.address}: a "
                    "function belongs to one physical port"
                )
        if len(set(port.slots())) != len(port.slots()):
            raise PortInventoryError(f"{name} has a function twice, or itself as a function")


class PortInventoryFile:
    """The file with the inventory of ports. If it breaks later, the last good inventory stays in
    use.

    :ivar complaint: the fault in the present file; None if it has none.
    """

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self._path = path
        self._guard = threading.Lock()
        self._state: tuple[int, ...] | None = None
        self._inventory: PortInventory | None = None
        self.complaint: str | None = None

    def load(self) -> PortInventory:
        """Return the inventory of ports; the file is read again if it has changed.

        :raises PortInventoryError: it was never good.
        """
        with self._guard:
            try:
                status = self._path.stat()
                state = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                if state != self._state:
                    self._take_text(self._path.read_text(encoding="utf-8"))
                    self._state = state
            except (OSError, ValueError) as error:
                self._state = None
                self._complain(error)
            if self._inventory is None:
                raise PortInventoryError(
                    f"{self.complaint} ([hpc_partitions]port_inventory; nova-hpc fabric ports "
                    "writes it)"
                )
            return self._inventory

    def _take_text(self, text: str) -> None:
        inventory = parse_inventory(text)
        if not inventory.ports and self._inventory is not None and self._inventory.ports:
            raise PortInventoryError(
                "it has no ports any more; if that is meant, start Neutron's server again"
            )
        self._inventory, self.complaint = inventory, None

    def _complain(self, error: Exception) -> None:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        ) or type(error).__name__
        complaint = f"{self._path}: {reason}"
        if complaint != self.complaint and self._inventory is not None:
            LOG.error("%s; the last good inventory is used", complaint)
        self.complaint = complaint
