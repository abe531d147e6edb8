# SPDX-License-Identifier: Apache-2.0
"""A topology as NCCL and RCCL read it: the file that ``NCCL_TOPO_FILE`` names.

NCCL places GPUs and adapters by the ``busid`` of their elements in the file. It reads
sysfs only for attributes that the file omits. Its reader is not an XML parser, with these
consequences (read in NCCL 2.30 and in RCCL of ROCm 4.3 to 6.2, src/graph/xml.cc and topo.cc):
* no declaration, one blank between attributes, none before ``/>``, no entities,
  at most 16 attributes, 253 characters a value and 256 elements. RCCL does not
  check the length of a value: a longer one overwrites its memory;
* NCCL accepts only version 1, RCCL only version 2;
* the class decides the kind of an element: ``0x06`` a switch, ``0x03`` a GPU, for RCCL
  ``0x120000`` as well, ``0x02`` an adapter; the library adds ``gpu``, ``nic`` and ``net``
  elements itself;
* a switch is one element, its upstream port: root ports and downstream ports
  are left out, as NCCL leaves them out when it reads sysfs;
* the file has no element for host bridges: two devices of one NUMA node without a
  common switch are ``PHB``, below one host bridge or below two.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.model import InventoryError, Node, PcieLink, PciFunction

#: Version of the file, for NCCL and for RCCL (NCCL_TOPO_XML_VERSION of each).
NCCL_VERSION: Final = 1
RCCL_VERSION: Final = 2
#: Vendor ids of the GPUs that NCCL and RCCL support.
_NVIDIA: Final = "10de"
_AMD: Final = "1002"
#: Longest value of an attribute: two less than MAX_STR_LEN.
LONGEST: Final = 253
#: NCCL's limit of elements in a file (NCCL_TOPO_XML_MAX_NODES).
MOST_ELEMENTS: Final = 256
#: Elements that NCCL adds below a device: nic and net, or gpu and nvlink.
_ADDED: Final = 2
_BRIDGE: Final = "060400"


class NcclError(InventoryError):
    """The topology cannot be written as a topology file of NCCL. The text gives the reason."""


@attrs.frozen
class Processor:
    """The processor facts from which NCCL derives the speed between sockets."""

    arch: str  # x86_64, arm64, ppc64
    vendor: str | None = None  # x86_64 only: GenuineIntel, AuthenticAMD
    family: int | None = None
    model: int | None = None


@attrs.frozen
class NcclSwitch:
    """A PCIe switch in a topology file of NCCL, named by its upstream port."""

    busid: str
    #: Vendor, device, and the two of the subsystem, four hex digits each. NCCL uses them
    #: to recognise two switches that are one.
    ids: tuple[str | None, ...] = ()
    link: PcieLink | None = None


@attrs.frozen
class NcclDevice:
    """A GPU or a network adapter in a topology file of NCCL."""

    busid: str
    class_code: str  # four or six hex digits
    numa: int | None = None
    #: Keys of the switches above, outermost first.
    switches: tuple[str, ...] = ()
    link: PcieLink | None = None


def is_read(function: PciFunction) -> bool:
    """Whether NCCL or RCCL uses the device: a GPU or an adapter."""
    return classes.is_gpu(function.class_code) or classes.is_adapter(function.class_code)


def version_for(functions: Iterable[PciFunction]) -> int:
    """Choose the version number in the topology file for the library that supports these GPUs.

    The library is RCCL if some GPUs are AMD's and none is NVIDIA's, else NCCL. Functions that are
    not GPUs do not count. A board may have a display controller of a third vendor in addition.
    """
    vendors = {function.vendor_id for function in functions if classes.is_gpu(function.class_code)}
    return RCCL_VERSION if _AMD in vendors and _NVIDIA not in vendors else NCCL_VERSION


def switches_above(functions: Iterable[PciFunction]) -> frozenset[str]:
    """Return the switches of the devices' paths that NCCL's topology file contains.

    NCCL finds these in sysfs, which it climbs two bridges at a time: the upstream port of each
    switch. It stops at a root port, even if several functions share it: two functions of one card
    without a switch are ``PHB``.
    """
    # The first bridge of a path is a root port and not a switch.
    return frozenset(
        point
        for function in functions
        for point in function.switches
        if (point,) != function.path[:1]
    )


def shared_points(functions: Iterable[PciFunction]) -> frozenset[str]:
    """Return the switches and root ports of the devices' paths that devices may share.

    Every switch is one. A root port is one only if several devices are behind it (a device without
    a switch names its root port).
    """
    functions = list(functions)
    count = collections.Counter(point for function in functions for point in function.switches)
    several = frozenset(point for point, users in count.items() if users > 1)
    return several | switches_above(functions)


def switch_of(node: Node, point: str, busid: str | None = None) -> NcclSwitch:
    """Build the entry of NCCL's file for the switch whose upstream port is at the address *point*.

    :param busid: its name in the file, if that is not *point*.
    """
    port = node.function(point)
    if port is None:
        return NcclSwitch(busid or point)
    return NcclSwitch(
        busid or point,
        (port.vendor_id, port.product_id, port.subsystem_vendor_id, port.subsystem_id),
        best_link(node, port),
    )


def best_link(node: Node, function: PciFunction) -> PcieLink | None:
    """Return the best link speed above *function*: the lower one of the two ends of the link.

    A virtual function has the link of its physical function. None if unknown.
    """
    if function.physical_function is not None:
        parent = node.function(function.physical_function)
        if parent is None or parent.physical_function is not None:
            return None
        return best_link(node, parent)
    own = function.link
    if own is None:
        return None
    port = node.function(function.path[-1]) if function.path else None
    port_link = port.link if port is not None and port.link is not None else own
    speed = _lesser_of(own.max_speed, port_link.max_speed)
    width = _lesser_of(own.max_width, port_link.max_width)
    if not speed and not width:
        return None
    return PcieLink(max_speed=speed or None, max_width=int(width) if width else None)


def _lesser_of(first: float | None, second: float | None) -> float | None:
    values = [value for value in (first, second) if value]
    return min(values) if values else None


def write_nccl_file(
    devices: Sequence[NcclDevice],
    switches: Mapping[str, NcclSwitch],
    cells: Mapping[int, Collection[int]],
    processor: Processor | None = None,
    version: int = NCCL_VERSION,
) -> str:
    """Format the text of a topology file for NCCL; no file is written.

    :param switches: by the keys that the devices use.
    :param cells: CPUs of each NUMA node; if empty, NCCL looks them up itself.
    :raises NcclError: more elements than NCCL can read.
    """
    groups: dict[int | None, list[NcclDevice]] = {}
    for device in devices:
        groups.setdefault(device.numa, []).append(device)
    lines = [f'<system version="{version}">']
    for numa in sorted(groups, key=lambda number: -1 if number is None else number):
        lines.append(f"  <cpu{_cpu_attributes_of(numa, cells, processor)}>")
        lines.extend(_format_switch_level(groups[numa], switches, 0, "    "))
        lines.append("  </cpu>")
    lines.append("</system>")
    count = sum(not line.lstrip().startswith("</") for line in lines)
    count += _ADDED * len(devices)
    if count > MOST_ELEMENTS:
        raise NcclError(
            f"{len(devices)} GPUs and adapters make {count} elements, and NCCL reads no file of "
            f"more than {MOST_ELEMENTS}; write one of fewer devices"
        )
    return "\n".join(lines) + "\n"


def _cpu_attributes_of(
    numa: int | None, cells: Mapping[int, Collection[int]], processor: Processor | None
) -> str:
    # NCCL itself reads -1 from sysfs if no node is near.
    attributes: dict[str, str] = {"numaid": str(-1 if numa is None else numa)}
    cpus = cells.get(numa, ()) if numa is not None else ()
    # NCCL looks the processors up itself (/sys/.../cpumap) if the mask is too long.
    if cpus and len(mask := _format_cpu_mask(cpus)) <= LONGEST:
        attributes["affinity"] = mask
    if processor is not None:
        attributes["arch"] = processor.arch
        identity = (processor.vendor, processor.family, processor.model)
        if None not in identity:
            attributes["vendor"] = str(processor.vendor)
            attributes["familyid"] = str(processor.family)
            attributes["modelid"] = str(processor.model)
    return _format_attributes(attributes)


def _format_cpu_mask(cpus: Collection[int]) -> str:
    """Format CPUs as a mask like ``/sys/.../cpumap``: CPUs 0 and 33 are ``00000002,00000001``."""
    value = sum(1 << cpu for cpu in set(cpus))
    words: list[str] = []
    while value or not words:
        words.append(f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    return ",".join(reversed(words))


def _format_switch_level(
    devices: Sequence[NcclDevice], switches: Mapping[str, NcclSwitch], depth: int, indent: str
) -> Iterable[str]:
    """Yield the lines of devices below one switch: devices without a further switch, then switches.

    :param depth: number of switches above.
    """
    below: dict[str, list[NcclDevice]] = {}
    for device in devices:
        if len(device.switches) > depth:
            below.setdefault(device.switches[depth], []).append(device)
        else:
            yield f"{indent}<pci{_format_attributes(_device_attributes_of(device))}/>"
    for key, members in below.items():
        yield f"{indent}<pci{_format_attributes(_switch_attributes_of(switches[key]))}>"
        yield from _format_switch_level(members, switches, depth + 1, indent + "  ")
        yield f"{indent}</pci>"


def _device_attributes_of(device: NcclDevice) -> dict[str, str]:
    return {
        "busid": device.busid,
        "class": f"0x{device.class_code:0<6}",
        **_link_attributes_of(device.link),
    }


def _switch_attributes_of(switch: NcclSwitch) -> dict[str, str]:
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    ids = {name: f"0x{value}" for name, value in zip(names, switch.ids, strict=False) if value}
    return {
        "busid": switch.busid,
        "class": f"0x{_BRIDGE}",
        **ids,
        **_link_attributes_of(switch.link),
    }


def _link_attributes_of(link: PcieLink | None) -> dict[str, str]:
    # An unknown value is left out: NCCL then reads it, or assumes 8 GT/s x16.
    attributes = {}
    if link is not None and link.max_speed:
        attributes["link_speed"] = f"{link.max_speed:.1f} GT/s PCIe"
    if link is not None and link.max_width:
        attributes["link_width"] = str(link.max_width)
    return attributes


def _format_attributes(values: Mapping[str, str]) -> str:
    return "".join(f' {key}="{value}"' for key, value in values.items())
