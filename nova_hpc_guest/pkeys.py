# SPDX-License-Identifier: Apache-2.0
"""The P_Key of each InfiniBand port's network: its value, its present index, and its users.

The cloud's document has the key. Programs need its index in the port's table: a partition of the
fabric's administrator may come before the network's. If the document has no key, a key is used
only if it is the only one beside the default partition's; it is never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from .document import GuestDevice
from .files import Root
from .machine import DEVICES, GuestFunction
from .rdma_devices import find_smi_devices

#: The number of a P_Key; the bit above it is full membership.
NUMBER: Final = 0x7FFF
_FULL: Final = 0x8000
_ENTRY: Final = re.compile(r"0x[0-9a-f]{4}", re.ASCII)
_NO_GID: Final = re.compile(r"[0:]+", re.ASCII)


class IbPort(NamedTuple):
    """An InfiniBand port of an RDMA device, with its P_Key table; None if unreadable."""

    #: PCI address of its function.
    address: str
    #: As the kernel calls it, ``mlx5_0``.
    device: str
    number: int
    #: Index and value of each entry that is not empty; None if the table cannot be read.
    table: tuple[tuple[int, int], ...] | None
    #: The first GID that is not empty; None without one, or if it cannot be read.
    gid_index: int | None = None

    @property
    def name(self) -> str:
        """Name of the port as NCCL and UCX write it, such as ``mlx5_0:1``."""
        return f"{self.device}:{self.number}"

    @property
    def others(self) -> tuple[tuple[int, int], ...]:
        """The entries beside the default partition's."""
        return tuple(entry for entry in self.table or () if entry[1] & NUMBER != NUMBER)


class PortKey(NamedTuple):
    """The network's key of one port, as far as it is known."""

    port: IbPort
    #: Number of the device in the cloud's document; None if the document lacks it.
    device: int | None = None
    rail: str | None = None
    #: Number of the key, without the membership; None if unknown.
    pkey: int | None = None
    #: Present index in the port's table; None if missing or unknown.
    entry_index: int | None = None
    #: Whether the entry has full membership.
    full: bool | None = None
    #: None if the cloud's document does not contain it.
    service_level: int | None = None
    #: The fault or the reason why the key is unknown; None without one.
    problem: str | None = None
    #: The table can be read, and does not have the key.
    missing: bool = False


def read_ib_ports(root: Root, functions: Iterable[GuestFunction]) -> tuple[IbPort, ...]:
    """Read the InfiniBand ports of this machine, without devices of type SMI."""
    return tuple(port for function in functions for port in _read_function_ports(root, function))


def _read_function_ports(root: Root, function: GuestFunction) -> Iterator[IbPort]:
    folder = f"{DEVICES}/{function.address}/infiniband"
    ports = {
        name: [port for port in root.names(f"{folder}/{name}/ports") if port.isdigit()]
        for name in root.names(folder)
    }
    gids = {
        name: [root.text(f"{folder}/{name}/ports/{number}/gids/0") for number in numbers]
        for name, numbers in ports.items()
    }
    for name in sorted(ports.keys() - find_smi_devices(gids)):
        for number in sorted(ports[name], key=int):
            place = f"{folder}/{name}/ports/{number}"
            if root.text(f"{place}/link_layer") == "InfiniBand":
                table = _read_table(root, f"{place}/pkeys")
                gid = _find_gid(root, f"{place}/gids")
                yield IbPort(function.address, name, int(number), table, gid)


def _read_table(root: Root, folder: str) -> tuple[tuple[int, int], ...] | None:
    table = []
    for name in sorted((name for name in root.names(folder) if name.isdigit()), key=int):
        text = (root.text(f"{folder}/{name}") or "").lower()
        if not _ENTRY.fullmatch(text):
            return None
        if int(text, 16) & NUMBER:
            table.append((int(name), int(text, 16)))
    return tuple(table) or None


def _find_gid(root: Root, folder: str) -> int | None:
    for name in sorted((name for name in root.names(folder) if name.isdigit()), key=int):
        text = root.text(f"{folder}/{name}")
        if text and not _NO_GID.fullmatch(text):
            return int(name)
    return None


def find_port_keys(
    ports: Iterable[IbPort], devices: Iterable[GuestDevice], places: Mapping[int, GuestFunction]
) -> tuple[PortKey, ...]:
    """Find the P_Key of the network of each port.

    :param devices: the promised devices; empty without a document.
    :param places: number of a device -> its function.
    """
    promised = {
        places[device.number].address: device for device in devices if device.number in places
    }
    return tuple(_find_port_key(port, promised.get(port.address)) for port in ports)


def _find_port_key(port: IbPort, device: GuestDevice | None) -> PortKey:
    """Find a port's key in the cloud's document, else the only one beside the default partition's.

    Of several entries with that key a full member's counts, then the lowest index.
    """
    port_key = PortKey(port)
    if device is not None:
        port_key = port_key._replace(
            device=device.number,
            rail=device.rail,
            pkey=device.pkey,
            service_level=device.service_level,
        )
    if port.table is None:
        return port_key._replace(problem="the port's table of P_Keys cannot be read")
    if port_key.pkey is None:
        numbers = {entry & NUMBER for _, entry in port.others}
        if len(numbers) != 1:
            return port_key._replace(problem=_describe_candidates(port))
        port_key = port_key._replace(pkey=numbers.pop())
    entries = [entry for entry in port.table if entry[1] & NUMBER == port_key.pkey]
    if not entries:
        shown = _format_entries(port.table)
        return port_key._replace(
            missing=True,
            problem=f"P_Key {_format_key(port_key.pkey)} is not in the port's table ({shown})",
        )
    index, entry = max(entries, key=lambda pair: (pair[1] & _FULL, -pair[0]))
    return port_key._replace(entry_index=index, full=bool(entry & _FULL))


def _describe_candidates(port: IbPort) -> str:
    """Explain why the network's key is unknown, with the keys of the port's table."""
    told = "the cloud does not tell the network's P_Key, and the port's table has"
    if not port.others:
        return f"{told} the default partition only"
    return f"{told} several: {_format_entries(port.others)}"


def _format_entries(entries: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"0x{entry:04x} at index {index}" for index, entry in entries)


def _format_key(number: int | None) -> str:
    return "unknown" if number is None else f"0x{number:04x}"


# --- the programs' environment ------------------------------------------------------------


class Environment(NamedTuple):
    """Variables of NCCL, UCX and Open MPI, and why one is not set."""

    variables: dict[str, str]
    notes: tuple[str, ...]


def build_environment(keys: Iterable[PortKey]) -> Environment:
    """Build the variables that make programs use the networks' partitions.

    NCCL takes one index for all ports and UCX one P_Key (NCCL 2.x, ``NCCL_IB_PKEY``; UCX,
    ``UCX_IB_PKEY``, the low 15 bits; Open MPI 4, ``btl_openib_pkey``). A variable that would be
    wrong for one of the ports is not set.
    """
    every = list(keys)
    ready = [key for key in every if key.entry_index is not None]
    variables: dict[str, str] = {}
    notes = [f"{key.port.name}: {key.problem}" for key in every if key.problem]
    if not ready:
        return Environment(variables, tuple(notes))
    variables["NCCL_IB_HCA"] = "=" + ",".join(key.port.name for key in ready)
    indices = sorted({key.entry_index for key in ready if key.entry_index is not None})
    if len(indices) == 1:
        variables["NCCL_IB_PKEY"] = str(indices[0])
    else:
        shown = ", ".join(f"{key.port.name} at index {key.entry_index}" for key in ready)
        notes.append(f"NCCL_IB_PKEY is not set: NCCL takes one index for all ports ({shown})")
    numbers = sorted({key.pkey for key in ready if key.pkey is not None})
    if len(numbers) == 1:
        variables["UCX_IB_PKEY"] = f"0x{numbers[0]:x}"
        variables["OMPI_MCA_btl_openib_pkey"] = f"0x{numbers[0]:x}"
    else:
        shown = ", ".join(f"{key.port.name} {_format_key(key.pkey)}" for key in ready)
        notes.append(
            f"UCX_IB_PKEY is not set: UCX takes one P_Key for all ports ({shown}). Its default "
            "takes the first entry of each port with full membership"
        )
    levels = {key.service_level for key in ready}
    if len(levels) == 1 and None not in levels:
        (level,) = levels
        for name in ("NCCL_IB_SL", "UCX_IB_SL", "OMPI_MCA_btl_openib_ib_service_level"):
            variables[name] = str(level)
    elif len(levels) > 1:
        shown = ", ".join(
            f"{key.port.name} {'unknown' if key.service_level is None else key.service_level}"
            for key in ready
        )
        notes.append(f"no service level is set: the ports have several ({shown})")
    return Environment(variables, tuple(notes))


def format_port_keys(keys: Iterable[PortKey]) -> Iterator[str]:
    """Yield lines for people: the ports, then the environment."""
    every = list(keys)
    for key in every:
        where = "" if key.device is None else f" (device {key.device})"
        on_rail = "" if key.rail is None else f", rail {key.rail}"
        text = f"WRONG: {describe_key(key)}" if key.missing else describe_key(key)
        yield f"{key.port.device} port {key.port.number}{where}{on_rail}: {text}"
    yield ""
    environment = build_environment(every)
    yield from (f"{name}={value}" for name, value in environment.variables.items())
    yield from (f"note: {note}" for note in environment.notes)


def describe_key(key: PortKey) -> str:
    """Describe the key for people, or why it is unknown or not there."""
    if key.problem is not None:
        return key.problem if key.missing else f"P_Key unknown: {key.problem}"
    member = "full" if key.full else "limited"
    level = "" if key.service_level is None else f", service level {key.service_level}"
    gid = "" if key.port.gid_index is None else f", GID index {key.port.gid_index}"
    return f"P_Key {_format_key(key.pkey)} at index {key.entry_index}, {member} member{level}{gid}"


def format_environment(keys: Iterable[PortKey]) -> Iterator[str]:
    """Yield the variables as lines for a shell; a note is a comment."""
    environment = build_environment(keys)
    yield from (f"# {note}" for note in environment.notes)
    yield from (f"export {name}={value}" for name, value in environment.variables.items())


def format_port_keys_json(keys: Iterable[PortKey]) -> str:
    """Format the ports and the environment as JSON text for programs."""
    every = list(keys)
    environment = build_environment(every)
    data: dict[str, Any] = {
        "schema": "nova-hpc/guest-pkeys",
        "version": 1,
        "ports": [
            {
                "device": key.port.device,
                "port": key.port.number,
                "number": key.device,
                "rail": key.rail,
                "pkey": None if key.pkey is None else _format_key(key.pkey),
                "index": key.entry_index,
                "full_member": key.full,
                "service_level": key.service_level,
                "gid_index": key.port.gid_index,
                "candidates": [
                    {"index": index, "entry": f"0x{entry:04x}"} for index, entry in key.port.others
                ],
                "problem": key.problem,
            }
            for key in every
        ],
        "environment": environment.variables,
        "notes": list(environment.notes),
    }
    return json.dumps(data, indent=2)
