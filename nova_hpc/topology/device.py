# SPDX-License-Identifier: Apache-2.0
"""One PCI function, from its directory in sysfs.

The configuration space serves if a capture lacks a file, or if the reader may not read it.
A file that is present and makes no sense becomes a reason why the function is unknown.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Final, TypeVar

import attrs

from nova_hpc.topology import confspace, cpuset, vfio
from nova_hpc.topology.confspace import ConfigSpace
from nova_hpc.topology.files import FileError, FileTree, Folder
from nova_hpc.topology.function_places import BRIDGE_CLASS, Raw
from nova_hpc.topology.model import (
    ADDRESS,
    Bar,
    PcieLink,
    PciFunction,
    RdmaDevice,
    RdmaPort,
    normalise_address,
)
from nova_hpc.topology.rdma_types import find_smi_devices

#: Directory of the kernel with all functions of all buses.
DEVICES: Final = "/sys/bus/pci/devices"

_ROOT: Final = re.compile(r"pci([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2})", re.ASCII)
_RESOURCE: Final = re.compile(r"0x([0-9a-f]{1,16})\s+0x([0-9a-f]{1,16})\s+0x([0-9a-f]{1,16})")
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s.*", re.ASCII)
#: Reason for a function whose registers all read as ones.
SILENT: Final = "config: all ones, so the device does not answer"
_VIRTUAL: Final = re.compile(r"virtfn\d{1,5}", re.ASCII)
#: Kernel classes whose devices show people the purpose of a function.
_CLASSES: Final = ("net", "infiniband", "nvme", "drm", "accel", "dma", "ve")
# Flags of a resource, include/linux/ioport.h.
_IO, _MEMORY, _PREFETCH, _WIDE = 0x100, 0x200, 0x2000, 0x100000
_BARS: Final = 13  # six BARs, the ROM, six BARs of the virtual functions
_NO_RESOURCE: Final = " ".join(["0x0000000000000000"] * 3)
#: The kernel's value for an unknown width.
_NO_WIDTH: Final = 255

_INTEGER: Final = re.compile(r"-?\d{1,9}", re.ASCII)
_PRODUCT: Final = re.compile(r"[0-9a-f]{1,4}", re.ASCII)
_HEX: Final = re.compile(r"0x([0-9a-fA-F]{1,8})", re.ASCII)
_GUID: Final = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}", re.ASCII)
_GID: Final = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}", re.ASCII)
_NO_GUID: Final = "0000:0000:0000:0000"

_T = TypeVar("_T")


def read_pci_function(tree: FileTree, name: str, busy: bool = False) -> Raw:
    """Read a PCI function from sysfs.

    :param name: its PCI address, which is the name of its folder in :data:`DEVICES`.
    :param busy: it is in a reset, so its configuration space is not read.
    """
    with tree.folder(f"{DEVICES}/{name}") as folder:
        return _SysfsDevice(tree, f"{DEVICES}/{name}", folder, busy=busy).read()


@functools.lru_cache(maxsize=1024)
def _split_device_path(folder: str) -> tuple[str, tuple[str, ...]] | None:
    """Split a path of sysfs into the root complex and the addresses of the bridges above *folder*.

    None if it is below no root complex.
    """
    root: str | None = None
    above: list[str] = []
    for part in folder.split("/"):
        match = _ROOT.fullmatch(part)
        if match is not None:
            # A domain of its own behind an endpoint (Intel VMD) has its own
            # host bridge: the path above that bridge is another tree.
            root, above = f"pci{int(match[1], 16):04x}:{int(match[2], 16):02x}", []
        elif root is not None and ADDRESS.fullmatch(part):
            above.append(normalise_address(part))
    return None if root is None else (root, tuple(above))


@functools.lru_cache(maxsize=1024)
def _parse_resource_bars(text: str) -> tuple[Bar, ...]:
    """Parse the BARs that the sysfs file ``resource`` lists.

    :raises ValueError: a line is not as the kernel writes it.
    """
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


@functools.lru_cache(maxsize=1024)
def _parse_hex_code(text: str, digits: int) -> str | None:
    match = _HEX.fullmatch(text)
    if match is None or int(match[1], 16) >= 16**digits:
        return None
    return f"{int(match[1], 16):0{digits}x}"


@attrs.define
class _Attributes:
    """The files and links of one sysfs directory.

    A file with a senseless value is left out, and the reason is kept.

    A file that is present and makes no sense is left out, with the reason.
    """

    tree: FileTree
    #: Path of the directory.
    place: str
    #: The open directory; None if its names are not known.
    folder: Folder | None
    #: Reasons for all files that made no sense.
    reasons: list[str] = attrs.field(factory=list, kw_only=True)

    def path(self, name: str) -> str:
        """Return the path of the file or link *name* in this directory."""
        return f"{self.place}/{name}"

    def reason(self, text: str) -> None:
        """Keep *text* as a reason for missing properties, once."""
        # The message names the object already.
        short = text.removeprefix(f"{self.place}/")
        if short not in self.reasons:
            self.reasons.append(short)

    def attempt(self, get: Callable[[], _T], default: _T) -> _T:
        """Return the result of *get*; if it fails, keep the reason and return *default*."""
        try:
            return get()
        except (FileError, ValueError) as error:
            self.reason(str(error))
            return default

    def text(self, name: str) -> str | None:
        """Return the text of the file *name*; None if it is missing or unreadable."""
        try:
            if self.folder is not None:
                return self.folder.text(name)
            return self.tree.text(self.path(name))
        except FileError as error:
            self.reason(str(error))
            return None

    def lacks(self, name: str) -> bool:
        """Whether the directory is listed and does not hold *name*."""
        return self.folder is not None and name not in self.folder.names

    def names(self, name: str) -> list[str]:
        """Return the names in the subdirectory *name*; [] if it is missing or unreadable."""
        nothing: list[str] = []
        if self.lacks(name):
            return nothing
        return self.attempt(lambda: self.tree.names(self.path(name)), nothing)

    def number(self, name: str, least: int) -> int | None:
        """Parse the decimal number in the file *name*; None if it is missing, or below *least*."""
        text = self.text(name)
        if text is None:
            return None
        if _INTEGER.fullmatch(text) is None or int(text) < least:
            self.reason(f"{name}: {text[:40]!r} is no possible value")
            return None
        return int(text)

    def code(self, name: str, digits: int) -> str | None:
        """Return the hex digits in the file *name*, without the prefix: ``10de`` for ``0x10de``.

        None if the file is missing or has another form.
        """
        text = self.text(name)
        if text is None:
            return None
        code = _parse_hex_code(text, digits)
        if code is None:
            self.reason(f"{name}: {text[:40]!r} is no possible value")
        return code

    def link(self, name: str) -> str | None:
        """Return the last part of the target of the link *name*; None if there is no such link."""
        if self.lacks(name):
            return None
        text = None if self.folder is None else self.folder.link(name)
        # The kernel's links contain their target; others may be loops.
        if text is not None and text.startswith("../") and text[-1] not in "./":
            return text.rpartition("/")[2]
        target = self.attempt(lambda: self.tree.target(self.path(name)), None)
        last = target.rpartition("/")[2] if target else ""
        return last or None


@attrs.define
class _SysfsDevice(_Attributes):
    """The sysfs directory of one PCI function, which it reads property by property."""

    busy: bool = False

    def read(self) -> Raw:
        """Read all properties of the function.

        A failure of one property never hides the others: it is a reason, and the function is then
        unknown. RDMA devices of type SMI are left out: they are planes of another device
        (:mod:`nova_hpc.topology.rdma_types`).
        """
        config = confspace.parse_config_space(self.attempt(self._config, b""))
        class_code = self.code("class", 6) or config.class_code
        vendor = self.code("vendor", 4) or config.vendor_id
        product = self.code("device", 4) or config.product_id
        # The header saves reading files. It does not have the ids and class of every function.
        subsystem = config.subsystem or self._subsystem()
        place_of = self.attempt(self._place, None)
        driver, parent = self.link("driver"), self._function_link("physfn")
        rdma = self._rdma()
        planes = find_smi_devices({device.name: [p.guid for p in device.ports] for device in rdma})
        function = PciFunction(
            address=normalise_address(self.place.rpartition("/")[2]),
            vendor_id=vendor,
            product_id=product,
            subsystem_vendor_id=subsystem[0],
            subsystem_id=subsystem[1],
            class_code=class_code,
            revision=config.revision or self.code("revision", 2),
            driver=driver,
            vfio=vfio.vfio_of_driver(
                self.tree, driver, self.names("vfio-dev"), self._driver_of(parent)
            ),
            vfio_variant=self._variant(vendor, product, subsystem, class_code),
            root=place_of[0] if place_of else None,
            iommu_group=self._group(),
            acs_capability=config.acs_capability,
            acs_control=config.acs_control,
            acs_isolates=config.acs_isolates,
            ats=config.ats,
            ats_enabled=config.ats_enabled,
            reset_methods=self._reset_methods(),
            bars=self.attempt(self._bars, ()),
            link=self._link(config),
            physical_function=parent,
            virtual_functions=self._virtual_functions(),
            total_vfs=self.number("sriov_totalvfs", least=0),
            silent=config.silent,
            vf_offset=self.number("sriov_offset", least=0),
            vf_stride=self.number("sriov_stride", least=0),
            vf_product=self._vf_product(),
            vgpu_type=self._vgpu_type() if parent is not None else None,
            rdma=tuple(device for device in rdma if device.name not in planes),
            os_devices=tuple(
                name for name in self._os_devices() if name.partition(" ")[2] not in planes
            ),
        )
        for value, what in ((vendor, "vendor"), (product, "device"), (class_code, "class")):
            if value is None:
                self.reason(f"{what}: not known")
        if config.silent:
            self.reason(SILENT)
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
            return self.folder.read("config", confspace.SIZE, confspace.skim_config) or b""
        return self.tree.read(self.path("config"), confspace.SIZE, confspace.skim_config) or b""

    def _place(self) -> tuple[str, tuple[str, ...]] | None:
        """Return root complex and the addresses above, from the device's real path.

        None if the capture contains the directory itself instead of a link into ``/sys/devices``.
        The bus numbers then decide.
        """
        resolved = self.tree.resolve(self.place)
        if resolved is None:
            raise FileError("its directory is missing")
        return _split_device_path(resolved.rpartition("/")[0])

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
        folder = self.path("infiniband")
        try:
            return _rdma_devices(self.tree, folder)
        except FileError as error:
            self.reason(str(error))
        # A record of this reading must include the GUIDs that identify the hardware.
        for name in self.names("infiniband"):
            with contextlib.suppress(FileError):
                self.tree.text(f"{folder}/{name}/node_guid")
            with contextlib.suppress(FileError):
                ports = self.tree.names(f"{folder}/{name}/ports")
                for path in (f"{folder}/{name}/ports/{port}/gids/0" for port in ports):
                    with contextlib.suppress(FileError):
                        self.tree.text(path)
        return ()

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
        # Few functions have virtual functions, so the pattern runs on few names.
        names = sorted(name for name in held if name.startswith("virtfn"))
        addresses = (self._function_link(name) for name in names if _VIRTUAL.fullmatch(name))
        return tuple(address for address in addresses if address is not None)

    def _driver_of(self, address: str | None) -> str | None:
        """Return the driver of the physical function; None if it has none or cannot be read.

        :param address: of the physical function; None if there is none.
        """
        if address is None:
            return None
        target = self.attempt(lambda: self.tree.target(self.path("physfn/driver")), None)
        return target.rpartition("/")[2] if target else None

    def _variant(
        self,
        vendor: str | None,
        product: str | None,
        subsystem: tuple[str | None, str | None],
        class_code: str | None,
    ) -> str | None:
        if vendor is None or product is None:
            return None
        kernel_drivers = vfio.read_vfio_kernel(self.tree)
        if not kernel_drivers.aliases:
            return None
        return kernel_drivers.variant(vfio.alias_of(vendor, product, subsystem, class_code))

    def _vf_product(self) -> str | None:
        # The only id in sysfs without a prefix and without leading zeros.
        text = self.text("sriov_vf_device")
        return text.zfill(4) if text is not None and _PRODUCT.fullmatch(text) else None

    def _vgpu_type(self) -> int | None:
        # Of NVIDIA's driver on kernels without mediated devices for it (Linux 6.8 and later).
        name = "nvidia/current_vgpu_type"
        if self.lacks("nvidia"):
            return None
        text = self.attempt(lambda: self.tree.text(self.path(name)), None)
        if text is None:
            return None
        if re.fullmatch(r"\d{1,9}", text, re.ASCII) is None:
            self.reason(f"{name}: {text[:40]!r} is no possible value")
            return None
        return int(text)

    def _bars(self) -> tuple[Bar, ...]:
        return _parse_resource_bars(self.text("resource") or "")

    def _link(self, config: ConfigSpace) -> PcieLink | None:
        """Return the PCIe link from registers, or from the equivalent files (Linux 4.13 and later).

        None if unknown.
        """
        if config.link is not None:
            return config.link
        speed, max_speed = self._speed("current_link_speed"), self._speed("max_link_speed")
        width, max_width = self._width("current_link_width"), self._width("max_link_width")
        if (speed, width, max_speed, max_width) == (None, None, None, None):
            return None
        rate = confspace.link_bandwidth_of(speed, width) if speed and width else None
        return PcieLink(speed, width, max_speed, max_width, rate)

    def _speed(self, name: str) -> float | None:
        # "Unknown" and "Unknown speed" are normal values: there is no link, or it is down.
        match = _SPEED.fullmatch(self.text(name) or "")
        return float(match[1]) if match else None

    def _width(self, name: str) -> int | None:
        width = self.number(name, least=0)
        return None if width in (None, 0, _NO_WIDTH) else width

    def _os_devices(self) -> tuple[str, ...]:
        return tuple(f"{kind} {name}" for kind in _CLASSES for name in self.names(kind))


def _rdma_devices(tree: FileTree, folder: str) -> tuple[RdmaDevice, ...]:
    """Read the RDMA devices below the ``infiniband`` directory *folder* of a function.

    :raises FileError: a file is there but unreadable or nonsense.
    """
    devices = []
    for name in tree.names(folder):
        ports = tuple(
            _read_rdma_port(tree, f"{folder}/{name}/ports/{port}", int(port))
            for port in tree.names(f"{folder}/{name}/ports")
            if re.fullmatch(r"\d{1,3}", port, re.ASCII)
        )
        guid = tree.text(f"{folder}/{name}/node_guid")
        devices.append(RdmaDevice(name=name, node_guid=_parse_guid(guid, name), ports=ports))
    return tuple(devices)


def _read_rdma_port(tree: FileTree, folder: str, number: int) -> RdmaPort:
    layer = tree.text(f"{folder}/link_layer")
    state = tree.text(f"{folder}/state")  # "4: ACTIVE"
    gid = tree.text(f"{folder}/gids/0")
    guid = None
    # The first GID of an InfiniBand port is its subnet prefix and port GUID;
    # on Ethernet it is made from a MAC or IP address and is no GUID.
    if gid is not None and layer != "Ethernet":
        if _GID.fullmatch(gid) is None:
            raise FileError(f"{folder}/gids/0: {gid[:50]!r} is no GID")
        guid = _parse_guid(gid[20:], folder)
    return RdmaPort(
        number=number,
        guid=guid,
        link_layer=layer,
        state=state.rpartition(": ")[2] if state else None,
        rate=tree.text(f"{folder}/rate"),
    )


def _parse_guid(text: str | None, of: str) -> str | None:
    if text is None or text == _NO_GUID:
        return None
    if _GUID.fullmatch(text) is None:
        raise FileError(f"{of}: {text[:30]!r} is no GUID")
    return text
