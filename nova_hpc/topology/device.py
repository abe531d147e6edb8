"""One PCI function, from its directory in sysfs.

Where a capture or an unprivileged reader lacks a file, the configuration space
is asked. What is there and makes no sense becomes a reason why the function is
unknown.
"""

from __future__ import annotations

import functools
import re
from typing import Final

import attrs

from nova_hpc.topology import confspace, cpuset, rdma
from nova_hpc.topology.attributes import Attributes
from nova_hpc.topology.confspace import ConfigSpace
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import ADDRESS, Bar, Function, Link, RdmaDevice, normalise_address
from nova_hpc.topology.place import BRIDGE_CLASS, Raw

#: Where the kernel lists all functions of all buses.
DEVICES: Final = "/sys/bus/pci/devices"

_ROOT: Final = re.compile(r"pci([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2})", re.ASCII)
_RESOURCE: Final = re.compile(r"0x([0-9a-f]{1,16})\s+0x([0-9a-f]{1,16})\s+0x([0-9a-f]{1,16})")
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s.*", re.ASCII)
_VIRTUAL: Final = re.compile(r"virtfn\d{1,5}", re.ASCII)
#: Kernel classes whose devices tell people what a function is.
_CLASSES: Final = ("net", "infiniband", "nvme", "drm", "accel", "dma", "ve")
# Flags of a resource, include/linux/ioport.h.
_IO, _MEMORY, _PREFETCH, _WIDE = 0x100, 0x200, 0x2000, 0x100000
_BARS: Final = 13  # six BARs, the ROM, six BARs of the virtual functions
_NO_RESOURCE: Final = " ".join(["0x0000000000000000"] * 3)
#: The kernel's word for "the width is not known".
_NO_WIDTH: Final = 255


def read(tree: Tree, name: str, busy: bool = False) -> Raw:
    """The function that *name*, a PCI address, lists in :data:`DEVICES`.

    :param busy: it is in a reset, so its configuration space is left alone.
    """
    with tree.folder(f"{DEVICES}/{name}") as folder:
        return _Device(tree, f"{DEVICES}/{name}", folder, busy=busy).read()


@functools.lru_cache(maxsize=1024)
def _above(folder: str) -> tuple[str, tuple[str, ...]] | None:
    """Root complex and addresses of the bridges that *folder* lies below."""
    root: str | None = None
    above: list[str] = []
    for part in folder.split("/"):
        match = _ROOT.fullmatch(part)
        if match is not None:
            # A domain of its own behind an endpoint (Intel VMD) has its own
            # host bridge: what is above that is another tree.
            root, above = f"pci{int(match[1], 16):04x}:{int(match[2], 16):02x}", []
        elif root is not None and ADDRESS.fullmatch(part):
            above.append(normalise_address(part))
    return None if root is None else (root, tuple(above))


@functools.lru_cache(maxsize=1024)
def _bars(text: str) -> tuple[Bar, ...]:
    """The BARs that the file ``resource`` tells of."""
    bars = []
    for index, line in enumerate(text.splitlines()[:_BARS]):
        if line == _NO_RESOURCE:
            continue
        match = _RESOURCE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"resource: line {index + 1} is {line[:60]!r}")
        start, end, flags = (int(part, 16) for part in match.groups())
        if flags & (_IO | _MEMORY) and end >= start:
            bars.append(
                Bar(
                    index=index,
                    size=end - start + 1,
                    io=bool(flags & _IO),
                    prefetchable=bool(flags & _PREFETCH),
                    wide=bool(flags & _WIDE),
                )
            )
    return tuple(bars)


@attrs.define
class _Device(Attributes):
    """The directory of one function."""

    busy: bool = False

    def read(self) -> Raw:
        config = confspace.parse(self.attempt(self._config, b""))
        class_code = self.code("class", 6) or config.class_code
        vendor = self.code("vendor", 4) or config.vendor_id
        product = self.code("device", 4) or config.product_id
        # What the header has needs no file; ids and class it has not for all functions.
        subsystem = config.subsystem or self._subsystem()
        place_of = self.attempt(self._place, None)
        function = Function(
            address=normalise_address(self.place.rpartition("/")[2]),
            vendor_id=vendor,
            product_id=product,
            subsystem_vendor_id=subsystem[0],
            subsystem_id=subsystem[1],
            class_code=class_code,
            revision=config.revision or self.code("revision", 2),
            driver=self.link("driver"),
            root=place_of[0] if place_of else None,
            iommu_group=self._group(),
            acs_control=config.acs_control,
            acs_isolates=config.acs_isolates,
            ats=config.ats,
            ats_enabled=config.ats_enabled,
            reset_methods=self._reset_methods(),
            bars=self.attempt(self._bars, ()),
            link=self._link(config),
            physical_function=self._function_link("physfn"),
            virtual_functions=self._virtual_functions(),
            total_vfs=self.number("sriov_totalvfs", least=0),
            rdma=self._rdma(),
            os_devices=self._os_devices(),
        )
        for value, what in ((vendor, "vendor"), (product, "device"), (class_code, "class")):
            if value is None:
                self.reason(f"{what}: not known")
        if config.silent:
            self.reason("config: all ones, so the device does not answer")
        is_bridge = (class_code or "").startswith(BRIDGE_CLASS) and config.header_type in (1, None)
        return Raw(
            function=function,
            above=place_of[1] if place_of else None,
            buses=self._buses(config) if is_bridge else None,
            port=config.port,
            is_bridge=is_bridge,
            local_cpus=self._local_cpus(),
            numa_node=self.number("numa_node", least=-1),
            reasons=self.reasons,
        )

    def _config(self) -> bytes:
        if self.busy:
            raise FileError("its reset has not ended")
        if self.folder is not None:
            return self.folder.read("config", confspace.SIZE, confspace.skim) or b""
        return self.tree.read(self.path("config"), confspace.SIZE, confspace.skim) or b""

    def _place(self) -> tuple[str, tuple[str, ...]] | None:
        """Root complex and the addresses above, from the device's real path.

        None where the capture has the directory itself instead of a link into
        ``/sys/devices``: then only bus numbers can tell.
        """
        found = self.tree.resolve(self.place)
        if found is None:
            raise FileError("its directory is missing")
        return _above(found.rpartition("/")[0])

    def _subsystem(self) -> tuple[str | None, str | None]:
        vendor, product = self.code("subsystem_vendor", 4), self.code("subsystem_device", 4)
        # The header of a bridge has no such ids.
        return (None, None) if vendor == "0000" else (vendor, product)

    def _buses(self, config: ConfigSpace) -> tuple[int, int] | None:
        if config.buses is not None:
            return config.buses
        secondary = self.number("secondary_bus_number", least=0)
        subordinate = self.number("subordinate_bus_number", least=0)
        return None if secondary is None or subordinate is None else (secondary, subordinate)

    def _local_cpus(self) -> frozenset[int] | None:
        for name, parse in (
            ("local_cpus", cpuset.parse_mask),
            ("local_cpulist", cpuset.parse_list),
        ):
            text = self.text(name)
            if text is not None:
                try:
                    return parse(text)
                except ValueError as error:
                    self.reason(f"{name}: {error}")
        return None

    def _group(self) -> int | None:
        last = self.link("iommu_group")
        if last is None:
            return None
        if re.fullmatch(r"\d{1,9}", last, re.ASCII) is None:
            self.reason(f"iommu_group: leads to {last[:40]!r}, which is no group")
            return None
        return int(last)

    def _rdma(self) -> tuple[RdmaDevice, ...]:
        if self.lacks("infiniband"):
            return ()
        return self.attempt(lambda: rdma.read(self.tree, self.path("infiniband")), ())

    def _reset_methods(self) -> tuple[str, ...] | None:
        text = self.text("reset_method")
        return None if text is None else tuple(text.split())

    def _function_link(self, name: str) -> str | None:
        last = self.link(name)
        if last is None:
            return None
        return self.attempt(lambda: normalise_address(last), None)

    def _virtual_functions(self) -> tuple[str, ...]:
        held = self.names("") if self.folder is None else self.folder.names
        # Few functions have any, so the pattern is for few names.
        names = sorted(name for name in held if name.startswith("virtfn"))
        found = (self._function_link(name) for name in names if _VIRTUAL.fullmatch(name))
        return tuple(address for address in found if address is not None)

    def _bars(self) -> tuple[Bar, ...]:
        return _bars(self.text("resource") or "")

    def _link(self, config: ConfigSpace) -> Link | None:
        """The link, from registers, or files (Linux 4.13 and later) that say the same."""
        if config.link is not None:
            return config.link
        speed, max_speed = self._speed("current_link_speed"), self._speed("max_link_speed")
        width, max_width = self._width("current_link_width"), self._width("max_link_width")
        if (speed, width, max_speed, max_width) == (None, None, None, None):
            return None
        rate = confspace.bandwidth(speed, width) if speed and width else None
        return Link(speed, width, max_speed, max_width, rate)

    def _speed(self, name: str) -> float | None:
        # "Unknown" and "Unknown speed" are ordinary: no link, or none up.
        match = _SPEED.fullmatch(self.text(name) or "")
        return float(match[1]) if match else None

    def _width(self, name: str) -> int | None:
        width = self.number(name, least=0)
        return None if width in (None, 0, _NO_WIDTH) else width

    def _os_devices(self) -> tuple[str, ...]:
        return tuple(f"{kind} {name}" for kind in _CLASSES for name in self.names(kind))
