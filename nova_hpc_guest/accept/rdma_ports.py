# SPDX-License-Identifier: Apache-2.0
"""The RDMA port for measurements, and the arguments with which perftest reaches other machines.

The first entry of the P_Key table is perftest's default, and it reaches no machine on an isolated
InfiniBand network. On Ethernet perftest uses the first GID, which is RoCE v1's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ..compare import locate_devices
from ..document import GuestDocument
from ..files import Root
from ..machine import GuestFunction, GuestMachine, read_machine
from ..pkeys import PortKey, build_environment, describe_key, find_port_keys, read_ib_ports
from ..rdma_devices import FOLDER, list_rdma_devices

_RATE: Final = re.compile(r"(\d{1,5}(?:\.\d)?) Gb/sec", re.ASCII)
_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)


class VerbsPort(NamedTuple):
    """A port of an RDMA device, with its state, its rate in Gbit/s and its GID's index."""

    device: str
    number: int
    #: The kernel's word, ``DOWN``; empty if unknown.
    state: str = ""
    #: Gbit/s; 0 if unknown.
    rate: float = 0.0
    #: On Ethernet: index of the best GID of RoCE v2; None without one, or on InfiniBand.
    gid_index: int | None = None

    @property
    def name(self) -> str:
        """Name of the port as NCCL and UCX write it, such as ``mlx5_0:1``."""
        return f"{self.device}:{self.number}"

    @property
    def may_work(self) -> bool:
        """Whether the port is ACTIVE, or its state is unknown."""
        return self.state in ("", "ACTIVE")


class RdmaPath(NamedTuple):
    """The command-line words of perftest for the RDMA port that is measured."""

    words: tuple[str, ...]


def read_rdma_ports(root: Root) -> tuple[VerbsPort, ...]:
    """Read all ports of this machine's RDMA devices from sysfs."""
    return tuple(_read_ports(root))


def _read_ports(root: Root) -> Iterator[VerbsPort]:
    for device in filter(_NAME.fullmatch, list_rdma_devices(root)):
        folder = f"{FOLDER}/{device}/ports"
        for number in sorted(int(name) for name in root.names(folder) if name.isdigit()):
            place = f"{folder}/{number}"
            state = (root.text(f"{place}/state") or "").rpartition(": ")[2]
            rate = _RATE.match(root.text(f"{place}/rate") or "")
            ethernet = root.text(f"{place}/link_layer") == "Ethernet"
            gid = _find_roce_gid(root, place) if ethernet else None
            yield VerbsPort(device, number, state, float(rate[1]) if rate else 0.0, gid)


def _find_roce_gid(root: Root, place: str) -> int | None:
    """Return the index of the RoCE GID that leads to most others; None without one.

    The order is: of IPv4, of any network, of this link.
    """
    ranks = []
    for name in root.names(f"{place}/gids"):
        if name.isdigit() and root.text(f"{place}/gid_attrs/types/{name}") == "RoCE v2":
            try:
                gid = ipaddress.IPv6Address(root.text(f"{place}/gids/{name}") or "")
            except ValueError:
                continue
            if int(gid):
                ranks.append((gid.ipv4_mapped is None, gid.is_link_local, int(name)))
    return min(ranks)[2] if ranks else None


def choose_rdma_path(ports: Iterable[VerbsPort], keys: Iterable[PortKey]) -> RdmaPath | str:
    """Choose the first RDMA port that can reach others; return a text with the reason if none can.

    :param keys: the networks' P_Keys. A port is not used if its table cannot be read, or has
        several keys and the cloud's document does not identify one: an index is never guessed.
    """
    key_of = {key.port.name: key for key in keys}
    reasons = []
    for port in ports:
        if not port.may_work:
            reasons.append(f"{port.name} is {port.state}")
            continue
        words: tuple[str, ...] = ("-d", port.device, "-i", str(port.number))
        key = key_of.get(port.name)
        if key is not None and key.entry_index is not None:
            return RdmaPath((*words, f"--pkey_index={key.entry_index}"))
        if key is not None and (key.missing or key.port.others or key.port.table is None):
            reasons.append(f"{port.name}: {describe_key(key)}")
            continue
        if port.gid_index is not None:
            words += ("-x", str(port.gid_index))
        return RdmaPath(words)
    return "; ".join(reasons) or "no RDMA device"


def read_rdma_rates(ports: Iterable[VerbsPort]) -> dict[str, float]:
    """Return device with a port that may work -> Gbit/s of its first such port."""
    rates: dict[str, float] = {}
    for port in ports:
        if port.may_work:
            rates.setdefault(port.device, port.rate)
    return rates


def read_rdma_path(root: Root, promise: GuestDocument | None) -> RdmaPath | str:
    """Choose the RDMA port with which this machine is measured; return a text if there is none."""
    return choose_rdma_path(read_rdma_ports(root), _read_port_keys(root, promise))


def read_rdma_variables(root: Root, promise: GuestDocument | None) -> dict[str, str]:
    """Return the variables that NCCL, UCX and Open MPI need on the networks' partitions."""
    return build_environment(_read_port_keys(root, promise)).variables


def expand_rdma_words(words: Iterable[str], root: Root, promise: GuestDocument | None) -> list[str]:
    """Replace ``{rdma}`` and ``{partition}`` in the words of a command by their values.

    ``{rdma}`` is the port of perftest, and ``{partition}`` the variables that mpirun passes on.
    """
    expanded: list[str] = []
    for word in words:
        if word == "{rdma}":
            path = read_rdma_path(root, promise)
            expanded += path.words if isinstance(path, RdmaPath) else ()
        elif word == "{partition}":
            for name in read_rdma_variables(root, promise):
                expanded += ("-x", name)
        else:
            expanded.append(word)
    return expanded


def _read_port_keys(root: Root, promise: GuestDocument | None) -> tuple[PortKey, ...]:
    functions = read_machine(root).functions
    ports = read_ib_ports(root, functions)
    places: Mapping[int, GuestFunction] = {}
    if ports and promise is not None:
        places, _ = locate_devices(promise, GuestMachine(functions, (), {}))
    return find_port_keys(ports, promise.devices if promise else (), places)
