# SPDX-License-Identifier: Apache-2.0
"""The shape of a virtual node: sockets, NUMA nodes, PCIe trees and devices, from YAML.

A shape describes the emulated hardware; :mod:`nova_hpc_lab.node.qemu` turns it into QEMU's command
line. Every device has an identity that survives passthrough and that the guest can read. A GPU
stand-in has a video memory, and so a BAR, of a unique size. A virtual function has its own MAC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import attrs
import yaml

from nova_hpc_lab.errors import LabError

_WORD: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")

DEFAULT: Final = "two-socket"
#: Sizes that QEMU's ``bochs-display`` accepts; their number limits the GPUs of one node.
GPU_MEMORY_MIB: Final = (4, 8, 16, 32, 64, 128, 256)
#: The same for ``ivshmem-plain``, with a 64-bit BAR above the first 4 GiB.
WIDE_MEMORY_MIB: Final = (4096, 8192)
MAX_VFS: Final = 7  # of QEMU's igb model
MAX_ROOTS: Final = 6
MAX_NODES: Final = 99
#: Physical network of a rail, with the placeholder of the node's declaration.
RAIL_NETWORK: Final = "ibrail{n}"
_MOST_RAILS: Final = 8
#: Least and greatest size of an NVMe disk: emulation erases 16 MiB within seconds.
DISK_MIB: Final = (1, 1024)
#: Roles of the devices that are not kept for a network.
ROLES: Final = ("gpu", "vf", "pf", "nvme")
_LONGEST_INTERFACE: Final = 15


class ShapeError(LabError):
    """A shape is invalid; the text names the file, the line and the key."""


@attrs.frozen
class Value:
    """A value of a YAML document, read in the form that the caller expects."""

    node: yaml.Node = attrs.field(repr=False)
    where: str
    #: Path of keys to here, for people: ``numa_nodes[1].cpus``.
    key: str

    @property
    def line(self) -> int:
        """Line in the text, from 1."""
        return int(self.node.start_mark.line) + 1

    def error(self, message: str) -> ShapeError:
        """Build an error with the place of this value in its text; it is not raised here."""
        return ShapeError(f"{self.where}, line {self.line}, {self.key or 'top'}: {message}")

    def mapping(self, required: Set[str], optional: Set[str] = frozenset()) -> dict[str, Value]:
        """Return the values by key, all of *required* and none beyond *optional*.

        :raises ShapeError: it is not a mapping, or a key is missing, unknown or repeated.
        """
        found = self._keys()
        known = required | optional
        for name, (mark, _) in found.items():
            if name not in known:
                raise mark.error(f"unknown key; known here: {', '.join(sorted(known))}")
        for name in sorted(required):
            if name not in found:
                raise self.error(f"the key {name} is missing")
        return {name: value for name, (_, value) in found.items()}

    def one_of(self, *kinds: str) -> str:
        """Return the word among *kinds* that is a key of this mapping.

        :raises ShapeError: none or several of them are keys.
        """
        found = [kind for kind in kinds if kind in self._keys()]
        if len(found) != 1:
            raise self.error(f"exactly one of {', '.join(kinds)} is needed here")
        return found[0]

    def sequence(self, least: int, most: int) -> list[Value]:
        """Return the items of a list.

        :raises ShapeError: it is not a list, or it is too short or too long.
        """
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("a list is expected")
        if not least <= len(self.node.value) <= most:
            raise self.error(f"{least} to {most} items are expected, not {len(self.node.value)}")
        return [
            Value(item, self.where, f"{self.key}[{number}]")
            for number, item in enumerate(self.node.value)
        ]

    def number(self, least: int, most: int) -> int:
        """Parse a whole number.

        :raises ShapeError: it is not a whole number, or not within *least* and *most*.
        """
        text = self._text("a whole number")
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self.error(f"a whole number is expected, not {text!r}")
        if not least <= int(text) <= most:
            raise self.error(f"{least} to {most} is expected, not {int(text)}")
        return int(text)

    def flag(self) -> bool:
        """Parse ``true`` or ``false``.

        :raises ShapeError: it is neither.
        """
        text = self._text("true or false")
        if text not in ("true", "false"):
            raise self.error(f"true or false is expected, not {text!r}")
        return text == "true"

    def word(self) -> str:
        """Parse a name: lower-case letters, digits and hyphens.

        :raises ShapeError: it has other characters.
        """
        text = self._text("a name")
        if not _WORD.fullmatch(text):
            raise self.error(
                f"a name of lower-case letters, digits and hyphens is expected, not {text!r}"
            )
        return text

    def _text(self, expected: str) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"{expected} is expected")
        return str(self.node.value)

    def _keys(self) -> dict[str, tuple[Value, Value]]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("keys with values are expected")
        found: dict[str, tuple[Value, Value]] = {}
        for key, value in self.node.value:
            name = str(key.value)
            path = f"{self.key}.{name}" if self.key else name
            if name in found:
                raise Value(key, self.where, path).error("this key is there twice")
            found[name] = (Value(key, self.where, path), Value(value, self.where, path))
        return found


def parse(text: str, where: str) -> Value:
    """Read a YAML document.

    :raises ShapeError: it is not YAML, or it is empty.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(err, "problem", None) or err
        raise ShapeError(f"{where}{line}: this is no YAML: {problem}") from err
    if node is None:
        raise ShapeError(f"{where} is empty")
    return Value(node, where, "")


@attrs.frozen
class Gpu:
    """A GPU stand-in: a device with a BAR of ``memory_mib``, which has 32 bits unless *wide*."""

    name: str
    memory_mib: int

    @property
    def bar_bytes(self) -> int:
        """Size of the BAR, which identifies the GPU in the guest."""
        return self.memory_mib << 20

    @property
    def wide(self) -> bool:
        """Whether its BAR has 64 bits, and is too large for the space below 4 GiB."""
        return self.memory_mib in WIDE_MEMORY_MIB


@attrs.frozen
class Adapter:
    """An SR-IOV adapter with *vfs* virtual functions."""

    #: Also the name of its network interface in the node.
    name: str
    vfs: int
    number: int  #: position among the adapters of the node, from 0
    #: Its virtual functions are kept for ports of this physical network; None for flavors.
    network: str | None = None
    #: The number of its rail, whose network it then has; None if it is on no rail.
    rail: int | None = None

    def pf_mac(self, node: int) -> str:
        """Return the MAC of the physical function on node number *node*."""
        return f"52:54:00:{node:02x}:{self.number:02x}:ff"

    def vf_macs(self, node: int) -> tuple[str, ...]:
        """Return MACs of the virtual functions on node number *node*, by their numbers."""
        return tuple(f"52:54:00:{node:02x}:{self.number:02x}:{vf:02x}" for vf in range(self.vfs))


@attrs.frozen
class Disk:
    """An NVMe disk, whose blocks are in a file beside the node's own disk."""

    #: Also its serial number.
    name: str
    size_mib: int

    @property
    def file_name(self) -> str:
        """The name of the file with its blocks."""
        return f"{self.name}.blocks"


@attrs.frozen
class Switch:
    """A PCIe switch. Without ACS, all devices below it are one IOMMU group."""

    ports: tuple[Port, ...]
    acs: bool = False


Device = Gpu | Adapter | Disk
Port = Device | Switch


@attrs.frozen
class Root:
    """A PCIe root complex with one root port for each of *ports*."""

    ports: tuple[Port, ...]


@attrs.frozen
class NumaNode:
    """A NUMA node of a virtual node: CPUs, memory, and PCIe root complexes."""

    socket: int
    cpus: int
    memory_mib: int
    hugepages: int  #: pages of 2 MiB
    roots: tuple[Root, ...]


@attrs.frozen
class Shape:
    """A virtual node as described by a YAML file."""

    name: str
    numa_nodes: tuple[NumaNode, ...]
    #: The text of its YAML file, for the node's own files.
    text: str = attrs.field(default="", repr=False, eq=False)

    @classmethod
    def load(cls, source: str | Path) -> Shape:
        """Read a sample by its name (``two-socket``) or a YAML file by its path.

        :raises ShapeError: the file does not exist, or is invalid.
        """
        if isinstance(source, str) and source in sample_names():
            text = (_samples() / f"{source}.yaml").read_text()
            return cls.parse(text, f"sample {source}", source)
        path = Path(source)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as err:
            known = ", ".join(sample_names())
            raise ShapeError(
                f"{source} is neither a readable shape file ({err}) nor one of the samples {known}"
            ) from err
        return cls.parse(text, str(path), path.stem)

    @classmethod
    def parse(cls, text: str, where: str, name: str) -> Shape:
        """Read a shape from YAML.

        :param where: name of the text in error messages.
        :raises ShapeError: the shape is invalid; the text names *where*, the line, the key, and the
            expected value.
        """
        root = parse(text, where).mapping({"numa_nodes"}, {"description"})
        nodes = root["numa_nodes"].sequence(1, 4)
        counter = _Counter()
        shape = cls(name, tuple(_numa_node(item, counter) for item in nodes), text)
        _check(shape, root["numa_nodes"])
        return shape

    def devices(self) -> Iterator[tuple[int, Device]]:
        """Yield all devices, each with the number of its NUMA node."""
        for number, node in enumerate(self.numa_nodes):
            for root in node.roots:
                for device in _flat(root.ports):
                    yield number, device

    @property
    def cpus(self) -> int:
        """Number of all CPUs of the machine."""
        return sum(node.cpus for node in self.numa_nodes)

    @property
    def memory_mib(self) -> int:
        """All memory of the machine, in MiB."""
        return sum(node.memory_mib for node in self.numa_nodes)

    @property
    def disks(self) -> tuple[Disk, ...]:
        """NVMe disks of the machine."""
        return tuple(device for _, device in self.devices() if isinstance(device, Disk))

    @property
    def networks(self) -> dict[str, str]:
        """Interface of each adapter that is kept for ports -> its physical network."""
        adapters = (device for _, device in self.devices() if isinstance(device, Adapter))
        return {each.name: each.network for each in adapters if each.network is not None}

    @property
    def network_roles(self) -> dict[str, str]:
        """The same without rails: these networks are also the virtual functions' roles."""
        rails = {
            device.name
            for _, device in self.devices()
            if isinstance(device, Adapter) and device.rail is not None
        }
        return {name: network for name, network in self.networks.items() if name not in rails}

    def describe(self, node: int) -> tuple[str, ...]:
        """Return one line for each device of node number *node*, for people."""
        lines = []
        for numa, device in self.devices():
            if isinstance(device, Gpu):
                lines.append(f"{device.name}: GPU, BAR of {device.memory_mib} MiB, NUMA {numa}")
            elif isinstance(device, Disk):
                lines.append(f"{device.name}: NVMe disk of {device.size_mib} MiB, NUMA {numa}")
            else:
                macs = ", ".join(device.vf_macs(node))
                kept = "" if device.network is None else f" for ports of {device.network}"
                lines.append(f"{device.name}: adapter, VFs {macs}{kept}, NUMA {numa}")
        return tuple(lines)


def sample_names() -> tuple[str, ...]:
    """Return the names of the shapes in the package, the default first."""
    names = sorted(
        entry.name.removesuffix(".yaml")
        for entry in _samples().iterdir()
        if entry.name.endswith(".yaml")
    )
    return tuple(sorted(names, key=lambda name: (name != DEFAULT, name)))


def _samples() -> Traversable:
    return resources.files("nova_hpc_lab") / "shapes"


def _flat(ports: tuple[Port, ...]) -> Iterator[Device]:
    for port in ports:
        if isinstance(port, Switch):
            yield from _flat(port.ports)
        else:
            yield port


@attrs.define
class _Counter:
    """The names and identities that were read so far, to find repeated ones."""

    names: dict[str, int] = attrs.field(factory=dict)
    memory: dict[int, str] = attrs.field(factory=dict)
    adapters: int = 0

    def name(self, value: Value) -> str:
        name = value.word()
        if name in self.names:
            raise value.error(f"the name {name} is used twice (first in line {self.names[name]})")
        self.names[name] = value.line
        return name


def _numa_node(value: Value, counter: _Counter) -> NumaNode:
    keys = value.mapping({"cpus", "memory_mib", "roots"}, {"socket", "hugepages"})
    cpus = keys["cpus"].number(1, 8)
    memory = keys["memory_mib"].number(1024, 65536)
    if memory % 128:
        raise keys["memory_mib"].error("memory comes in multiples of 128 MiB")
    hugepages = keys["hugepages"].number(0, memory // 2) if "hugepages" in keys else 0
    if hugepages * 2 > memory - 512:
        raise keys["hugepages"].error(
            f"{hugepages} pages of 2 MiB leave the node itself less than 512 of its {memory} MiB"
        )
    return NumaNode(
        socket=keys["socket"].number(0, 3) if "socket" in keys else 0,
        cpus=cpus,
        memory_mib=memory,
        hugepages=hugepages,
        roots=tuple(_root(item, counter) for item in keys["roots"].sequence(0, MAX_ROOTS)),
    )


def _root(value: Value, counter: _Counter) -> Root:
    ports = value.mapping({"ports"})["ports"].sequence(1, 16)
    return Root(tuple(_port(item, counter, depth=0) for item in ports))


def _port(value: Value, counter: _Counter, depth: int) -> Port:
    kind = value.one_of("gpu", "adapter", "nvme", "switch")
    if kind == "gpu":
        return _gpu(value, counter)
    if kind == "nvme":
        keys = value.mapping({"nvme", "size_mib"})
        return Disk(counter.name(keys["nvme"]), keys["size_mib"].number(*DISK_MIB))
    if kind == "adapter":
        return _adapter(value, counter)
    if depth >= 2:
        raise value.error("switches are at most two deep")
    keys = value.mapping({"switch"}, {"acs"})
    acs = "acs" in keys and keys["acs"].flag()
    ports = keys["switch"].sequence(1, 8)
    return Switch(tuple(_port(item, counter, depth + 1) for item in ports), acs)


def _adapter(value: Value, counter: _Counter) -> Adapter:
    keys = value.mapping({"adapter", "vfs"}, {"network", "rail"})
    name = counter.name(keys["adapter"])
    if len(name) > _LONGEST_INTERFACE:
        raise keys["adapter"].error(
            f"{name} has more than {_LONGEST_INTERFACE} characters, and an adapter's name is"
            " also that of its network interface"
        )
    network = keys["network"].word() if "network" in keys else None
    if network in ROLES:
        raise keys["network"].error(
            f"{network} is a role, and the devices of a network have its name as theirs"
        )
    rail = keys["rail"].number(0, _MOST_RAILS - 1) if "rail" in keys else None
    if rail is not None:
        if network is not None:
            raise keys["rail"].error("an adapter has either network or rail")
        network = RAIL_NETWORK.replace("{n}", str(rail))
    counter.adapters += 1
    return Adapter(name, keys["vfs"].number(1, MAX_VFS), counter.adapters - 1, network, rail)


def _gpu(value: Value, counter: _Counter) -> Gpu:
    keys = value.mapping({"gpu", "memory_mib"})
    name = counter.name(keys["gpu"])
    memory = keys["memory_mib"].number(1, max(WIDE_MEMORY_MIB))
    if memory not in (*GPU_MEMORY_MIB, *WIDE_MEMORY_MIB):
        sizes = ", ".join(map(str, (*GPU_MEMORY_MIB, *WIDE_MEMORY_MIB)))
        raise keys["memory_mib"].error(f"a GPU stand-in has one of {sizes} MiB, not {memory}")
    if memory in counter.memory:
        raise keys["memory_mib"].error(
            f"{counter.memory[memory]} has {memory} MiB already; each GPU needs its own size,"
            " by which a guest can tell which one it got"
        )
    counter.memory[memory] = name
    return Gpu(name, memory)


def _check(shape: Shape, value: Value) -> None:
    if sum(len(node.roots) for node in shape.numa_nodes) > MAX_ROOTS:
        raise value.error(f"there are at most {MAX_ROOTS} roots in all")
    sockets = [node.socket for node in shape.numa_nodes]
    if sockets != sorted(sockets) or set(sockets) != set(range(max(sockets) + 1)):
        raise value.error("sockets are numbered from 0, in the order of the NUMA nodes")
    if len({_socket_cpus(shape, socket) for socket in set(sockets)}) > 1:
        raise value.error("every socket needs the same number of CPUs")
    adapters = [device for _, device in shape.devices() if isinstance(device, Adapter)]
    rails = {each.rail for each in adapters if each.rail is not None}
    if rails != set(range(len(rails))):
        raise value.error("rails are numbered from 0, without a gap")


def _socket_cpus(shape: Shape, socket: int) -> int:
    return sum(node.cpus for node in shape.numa_nodes if node.socket == socket)
