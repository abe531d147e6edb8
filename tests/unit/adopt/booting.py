# SPDX-License-Identifier: Apache-2.0
"""A host that starts with the files of ``nova-hpc prepare``, as its kernel and udev would.

It knows nothing of the plan: it reads the files. Every endpoint has a driver of the host's
that wants it; what a rule does to a function is written down.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from nova_hpc.topology.model import Node, PciFunction, address_key
from nova_hpc_tools.adopt import host_files

_TERM = re.compile(r'([A-Z]+)(?:\{([^}]*)\})?(==|!=|=)"([^"]*)"')
_OVERRIDE = re.compile(r"^override (\S+) 0x(\S+) 0x(\S+) (\S+)$", re.MULTILINE)


@attrs.define
class Device:
    """A PCI function that runs."""

    function: PciFunction
    #: Of the host, that takes it by its ids.
    native: str
    driver: str | None = None
    override: str | None = None
    autoprobe: bool = True
    numvfs: int = 0

    @property
    def address(self) -> str:
        return self.function.address


@attrs.define
class Booting:
    """One start."""

    node: Node
    #: Where the kernel makes the virtual functions of an adapter: its address, their number.
    places: Callable[[PciFunction, int], Sequence[str]]
    files: Mapping[str, str]
    #: Drivers of the host are loaded before udev sees a device.
    early: bool
    #: Address -> the driver of the host that takes a function by its ids.
    natives: Mapping[str, str] = attrs.field(factory=dict)
    #: Adapter -> virtual functions that somebody else switches on when all is done.
    others: Mapping[str, int] = attrs.field(factory=dict)
    devices: dict[str, Device] = attrs.field(factory=dict, init=False)
    #: Functions that a rule has given another driver, or taken one from.
    touched: set[str] = attrs.field(factory=set, init=False)
    #: Functions of which a rule has set anything else.
    switched: set[str] = attrs.field(factory=set, init=False)
    loaded: set[str] = attrs.field(factory=set, init=False)

    def run(self) -> Booting:
        """Start the host."""
        text = self.files.get(host_files.MODULES, "")
        self.loaded = {line for line in text.splitlines() if line and not line.startswith("#")}
        there = [each for each in self.node.functions if each.physical_function is None]
        for each in there:
            self.devices[each.address] = self._made(each)
        self._initramfs()
        for each in there:
            self._appear(self.devices[each.address])
        for address, count in self.others.items():
            self._switch_on(self.devices[address], count)
        return self

    def _made(self, function: PciFunction) -> Device:
        native = self.natives.get(function.address, "pcieport" if function.is_bridge else "native")
        return Device(function, native)

    def _initramfs(self) -> None:
        script = self.files.get(host_files.SCRIPT, "")
        for address, vendor, product, driver in _OVERRIDE.findall(script):
            assert f"modprobe -q -b {driver}" in script
            assert address in self.devices, f"{address} is not there in the initramfs"
            function = self.devices[address].function
            if (function.vendor_id, function.product_id) == (vendor, product):
                self.devices[address].override = driver
                self.touched.add(address)

    def _appear(self, device: Device) -> None:
        if self.early or device.function.physical_function is not None:
            self._probe(device)
        self._event("add", device)
        self._probe(device)
        # The network interfaces and InfiniBand devices that its driver makes.
        if device.driver == device.native and device.function.total_vfs:
            self._event("add", device, "net")
        seen = None
        while device.driver is not None and device.driver != seen:
            seen = device.driver
            self._event("bind", device)

    def _probe(self, device: Device) -> None:
        if device.driver is not None:
            return
        if device.override is not None:
            module = device.override.replace("-", "_")
            known = {each.replace("-", "_") for each in self.loaded}
            if module in known or device.override == device.native:
                device.driver = device.override
            return
        parent = self.devices.get(device.function.physical_function or "")
        if parent is None or parent.autoprobe:
            device.driver = device.native

    def _event(self, action: str, device: Device, child: str | None = None) -> None:
        """Of the function itself, or of a device of the subsystem *child* that it has made."""
        for line in self.files.get(host_files.UDEV, "").splitlines():
            if not line or line.startswith("#"):
                continue
            terms = [_TERM.fullmatch(term) for term in line.split(", ")]
            assert all(terms), line
            found = [term.groups() for term in terms if term is not None]
            matches = [each for each in found if each[2] != "="]
            if all(self._matches(each, action, device, child) for each in matches):
                for name, key, mark, value in found:
                    if mark == "=":
                        assert name == "ATTR"
                        self._set(device, key if child is None else f"child:{key}", value)

    def _matches(self, term: Sequence[str], action: str, device: Device, child: str | None) -> bool:
        name, key, mark, pattern = term
        if name.startswith("ATTR"):
            assert (name == "ATTRS") == (child is not None)
            function = device.function
            if key.startswith("physfn/"):
                parent = self.devices.get(function.physical_function or "")
                if parent is None:
                    return False
                function = parent.function
            value = {
                "uevent": f"DRIVER=native\nPCI_CLASS=20000\nPCI_SLOT_NAME={function.address}\n",
                "vendor": f"0x{function.vendor_id}",
                "device": f"0x{function.product_id}",
            }[key.removeprefix("physfn/")]
        else:
            value = {
                "ACTION": action,
                "SUBSYSTEM": child or "pci",
                "KERNEL": device.address if child is None else f"{child}0",
                "KERNELS": device.address,
                "DRIVER": (device.driver or "") if child is None else "",
            }[name]
        fits = any(fnmatch.fnmatchcase(value, each) for each in pattern.split("|"))
        return fits == (mark == "==")

    def _set(self, device: Device, key: str, value: str) -> None:
        value = value.replace("$kernel", device.address)
        here = key.removeprefix("child:device/")
        if here == "sriov_drivers_autoprobe":
            device.autoprobe = value == "1"
            self.switched.add(device.address)
        elif here == "sriov_numvfs":
            self.switched.add(device.address)
            self._switch_on(device, int(value))
        elif key == "driver_override":
            device.override = value
            self.touched.add(device.address)
        elif key == "driver/unbind":
            assert value == device.address
            device.driver = None
            self.touched.add(device.address)
        elif key == "[subsystem/pci]drivers_probe":
            self._probe(self.devices[value])
        else:
            raise AssertionError(f"nothing has {key}")

    def _switch_on(self, device: Device, count: int) -> None:
        if device.driver is None or device.numvfs or not count:
            return  # ENOENT, EBUSY
        assert count <= (device.function.total_vfs or 0)
        device.numvfs = count
        known = {each.address: each for each in self.node.functions}
        for address in self.places(device.function, count):
            assert address not in self.devices, f"a virtual function at {address}"
            family = (each for each in known.values() if each.physical_function == device.address)
            product = next((each.product_id for each in family), device.function.vf_product)
            like = known.get(address) or attrs.evolve(
                device.function,
                address=address,
                product_id=product,
                iommu_group=self._group_of_family(device.function),
                unknown=None,
                physical_function=device.address,
                virtual_functions=(),
                total_vfs=None,
            )
            self.devices[address] = self._made(like)
        for address in self.places(device.function, count):
            self._appear(self.devices[address])

    def _group_of_family(self, adapter: PciFunction) -> int | None:
        """The group of a port without ACS above it, where that shows in this node's groups."""
        for each in self.node.functions:
            near = each.address in adapter.path or each.physical_function == adapter.address
            if near and each.iommu_group == adapter.iommu_group:
                return adapter.iommu_group
        return None

    def on(self, drivers: Collection[str]) -> set[str]:
        """The functions that have one of some drivers."""
        return {each.address for each in self.devices.values() if each.driver in drivers}


def kernel_places(node: Node, hidden: tuple[int, int] = (1, 1)) -> Callable[..., list[str]]:
    """Where virtual functions come to be: those that are there, then by offset and stride.

    :param hidden: offset and stride of adapters that do not say theirs.
    """

    def route(address: str) -> int:
        _, bus, slot, number = address_key(address)
        return bus << 8 | slot << 3 | number

    def places(adapter: PciFunction, count: int) -> list[str]:
        there = sorted(
            (each.address for each in node.functions if each.physical_function == adapter.address),
            key=address_key,
        )
        own = route(adapter.address)
        first, step = adapter.vf_offset or hidden[0], adapter.vf_stride or hidden[1]
        if there:
            first = route(there[0]) - own
        if len(there) > 1:
            step = route(there[1]) - route(there[0])
        found = there[:count]
        for index in range(len(found), count):
            number = own + first + index * step
            if there:
                number = route(there[-1]) + (index - len(there) + 1) * abs(step)
            where = f"{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"
            found.append(f"{adapter.address.partition(':')[0]}:{where}")
        return found

    return places
