# SPDX-License-Identifier: Apache-2.0
"""The baseline of a healthy device, and its present differences from it.

A snapshot holds values that no guest may change: identity, sizes of the BARs, the
list of capabilities, the number of virtual functions, the link, and the
kernel's counters of uncorrected errors. Registers: PCI Local Bus 3.0 chapter 6,
PCI Express Base 5.0 chapter 7; counters: the kernel's
``Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology import confspace
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import PciFunction
from nova_hpc.topology.vpd import VpdError, walk_vpd_fields
from nova_hpc.wire import announcements, capture

_MOST_CAPABILITIES: Final = 512
_TOTAL: Final = re.compile(r"TOTAL_ERR_(?:FATAL|NONFATAL)[ \t]+(\d{1,18})", re.ASCII)
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_LONGEST: Final = 64
_MOST_VPD: Final = 4096


@attrs.frozen
class DeviceSnapshot:
    """One device at one moment; a value of None could not be read, and is not compared."""

    #: Kernel's name of a value -> the value, as hex digits without prefix.
    identity: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: The same registers, read from the device itself now; None for a VF, whose
    #: ids read as ones. The kernel reads ids only once.
    answers: Mapping[str, str] | None = attrs.field(default=None, hash=False)
    #: "index size flags" of each BAR in use; flags: i(o), p(refetchable), w(ide).
    bars: tuple[str, ...] = ()
    #: "id@offset" of standard and "id.version@offset" of extended capabilities.
    capabilities: tuple[str, ...] | None = None
    #: Number of enabled virtual functions: its own, or its PF's.
    vfs: int | None = None
    speed: float | None = None  # GT/s per lane
    width: int | None = None  # lanes
    fatal: int | None = None  # uncorrected errors since the boot, counted by the kernel
    nonfatal: int | None = None
    boot: str | None = None  # the boot that the counters belong to
    #: The following values are judged and never recorded.
    master: bool | None = None
    serial: str | None = None  # from the PCIe capability
    stands_in: bool = False  # the serial number is a placeholder of a capture
    silent: bool = False
    unset: tuple[int, ...] = ()  # BARs that the kernel has set and the device has lost

    def dumps(self) -> dict[str, Any]:
        """Return the recorded values as a JSON object; empty ones are left out."""
        body = attrs.asdict(self, filter=lambda field, value: field.name in _RECORDED)
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in body.items()
            if value not in (None, (), [], {})
        }


_RECORDED: Final = frozenset(
    {"identity", "answers", "bars", "capabilities", "vfs", "speed", "width"}
    | {"fatal", "nonfatal", "boot"}
)


def load_snapshot(body: object) -> DeviceSnapshot | None:
    """Return a recorded snapshot; None if it is not one, or is damaged."""
    if not isinstance(body, dict) or not body.keys() <= _RECORDED:
        return None
    try:
        return DeviceSnapshot(
            identity=_parse_text_map(body.get("identity", {})),
            answers=_parse_text_map(body["answers"]) if "answers" in body else None,
            bars=_parse_text_list(body.get("bars", [])),
            capabilities=_parse_text_list(body["capabilities"]) if "capabilities" in body else None,
            vfs=_parse_whole_number(body.get("vfs")),
            speed=None if body.get("speed") is None else float(body["speed"]),
            width=_parse_whole_number(body.get("width")),
            fatal=_parse_whole_number(body.get("fatal")),
            nonfatal=_parse_whole_number(body.get("nonfatal")),
            boot=None if body.get("boot") is None else str(body["boot"]),
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_text_map(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError
    return {str(key): str(text) for key, text in value.items()}


def _parse_text_list(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return tuple(str(text) for text in value)


def _parse_whole_number(value: object) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError
    return value


def take_snapshot(
    tree: FileTree,
    function: PciFunction,
    boot: str | None,
    vfs: int | None = None,
    config: bytes | None = None,
) -> DeviceSnapshot:
    """Take a snapshot of a device.

    :param tree: the system that *function* was just read from.
    :param boot: the id of the machine's boot, see :func:`boot_of`.
    :param vfs: for a virtual function: number of its physical function's virtual functions.
    :param config: the configuration space, if the caller can read more of
        it than this process.
    """
    if config is None:
        config = _read_or_empty(tree, "config", function, confspace.SIZE)
    space = confspace.parse_config_space(config)
    virtual = function.physical_function is not None
    read = len(config) >= confspace.HEADER and not space.silent
    names = ("vendor_id", "product_id", "class_code", "revision")
    answers = {name: str(getattr(space, name)) for name in names}
    if not virtual and function.total_vfs:
        vfs = len(function.virtual_functions)
    identity = {
        name: value
        for name in ("vendor_id", "product_id", "subsystem_vendor_id", "subsystem_id")
        if (value := getattr(function, name)) is not None
    }
    link = function.link
    capabilities = _capabilities_of_config(config) if read else None
    serial = _serial_of_config(config, capabilities or ())
    counted = serial is not None and (
        capture.stands_in(serial) or capture.SERIALS in (capture.replaced_kinds_of(tree) or ())
    )
    return DeviceSnapshot(
        identity=identity,
        answers=answers if read and not virtual else None,
        bars=tuple(
            f"{bar.index} {bar.size} "
            f"{'i' * bar.io}{'p' * bar.prefetchable}{'w' * bar.wide}".rstrip()
            for bar in function.bars
        ),
        capabilities=capabilities,
        vfs=vfs,
        speed=link.speed if link else None,
        width=link.width if link else None,
        fatal=_read_error_count(tree, function, "aer_dev_fatal"),
        nonfatal=_read_error_count(tree, function, "aer_dev_nonfatal"),
        boot=boot,
        master=bool(config[confspace.COMMAND] & confspace.BUS_MASTER) if read else None,
        serial=None if counted else serial,
        stands_in=counted,
        silent=space.silent,
        unset=tuple(_unset_bars_of(config, function)) if read and not virtual else (),
    )


def boot_of(tree: FileTree) -> str | None:
    """Return the kernel's id of this boot of the machine; None if it cannot be read."""
    try:
        return (tree.text(_BOOT) or "")[:_LONGEST] or None
    except FileError:
        return None


def _read_or_empty(tree: FileTree, name: str, function: PciFunction, limit: int) -> bytes:
    try:
        return tree.read(f"{DEVICES}/{function.address}/{name}", limit) or b""
    except FileError:
        return b""


def _read_error_count(tree: FileTree, function: PciFunction, name: str) -> int | None:
    data = _read_or_empty(tree, name, function, 4096)
    match = _TOTAL.search(data.decode("ascii", "replace"))
    return int(match[1]) if match else None


def _capabilities_of_config(config: bytes) -> tuple[str, ...] | None:
    """List the standard and extended capabilities with their offsets; None if they are hidden."""
    if len(config) < confspace.STANDARD:
        return None  # only root can read them
    names = []
    if config[6] & 0x10:
        for offset in confspace.walk_capabilities(config):
            names.append(f"{config[offset]:02x}@{offset:02x}")
    walk = confspace.walk_extended_capabilities(config, len(config) - 4)
    for offset in itertools.islice(walk, _MOST_CAPABILITIES):
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            break
        names.append(f"{header & 0xFFFF:04x}.{header >> 16 & 0xF:x}@{offset:03x}")
    return tuple(names)


def _serial_of_config(config: bytes, capabilities: tuple[str, ...]) -> str | None:
    """Return the serial number of the extended capability 3, in lspci's form without dashes."""
    for capability in capabilities:
        if capability.startswith("0003."):
            offset = int(capability.rpartition("@")[2], 16) + 4
            number = int.from_bytes(config[offset : offset + 8], "little")
            if number not in (0, (1 << 64) - 1):
                return f"{number:016x}"
    return None


def hardware_name_of(tree: FileTree, function: PciFunction, look: DeviceSnapshot) -> str:
    """Return the name of a device's hardware; see :class:`nova_hpc.wire.ledger.LedgerDevice`.

    A virtual function has no serial number of its own.
    """
    serial = serial_of(function, look)
    if serial is not None:
        return serial
    vpd = None
    if function.physical_function is None:
        vpd = _vpd_serial(_read_or_empty(tree, "vpd", function, _MOST_VPD))
    return f"slot:{function.address}" if vpd is None else f"vpd:{vpd}{_port_suffix_of(function)}"


def serial_of(function: PciFunction, look: DeviceSnapshot) -> str | None:
    """Return the hardware's name from the serial number in its configuration space, or None."""
    return None if look.serial is None else f"serial:{look.serial}{_port_suffix_of(function)}"


def _port_suffix_of(function: PciFunction) -> str:
    """Return the suffix of a port: an adapter's ports are functions of one board and serial."""
    number = function.address.rpartition(".")[2]
    return "" if number == "0" else f"/fn{number}"


def _vpd_serial(data: bytes) -> str | None:
    """Return the serial number in the vital product data; *data* may be its beginning only."""
    with contextlib.suppress(VpdError):
        for word, value in walk_vpd_fields(data):
            if word == "SN":
                text = value.decode("ascii", "replace").strip()
                return text if text.isprintable() and text else None
    return None


def _unset_bars_of(config: bytes, function: PciFunction) -> Iterator[int]:
    """Yield BARs that have lost their address, as after a reset without a restore."""
    for bar in function.bars:
        if bar.io or bar.index > 5:
            continue
        size = 8 if bar.wide and bar.index < 5 else 4
        start = 0x10 + 4 * bar.index
        if int.from_bytes(config[start : start + size], "little") & ~0xF == 0:
            yield bar.index


def compare_snapshots(recorded: DeviceSnapshot, current: DeviceSnapshot) -> list[Symptom]:
    """List the differences of a device from its record, without errors, the worst first.

    The speed of the link is not compared: an idle device lowers it to save power, and
    a device without its driver cannot be made to work.
    """
    return [*_changed_symptoms(recorded, current), *_passing_symptoms(recorded, current)]


def find_inherent_faults(current: DeviceSnapshot, idle: bool = True) -> list[Symptom]:
    """Find faults that no free device may have, whatever its record.

    :param idle: whether it is bound to no driver of the host, which could use it.
    """
    if current.silent:
        text = "it does not answer: its configuration space is all ones"
        return [Symptom(HealthSign.SILENT, text)]
    symptoms = [
        Symptom(
            HealthSign.LOST, f"BAR {index} has lost its address, as after a reset that went wrong"
        )
        for index in current.unset
    ]
    if current.master and idle:
        symptoms.append(Symptom(HealthSign.MASTER, "bus mastering is on although no server has it"))
    return symptoms


def count_errors_since(recorded: DeviceSnapshot, current: DeviceSnapshot) -> dict[str, int]:
    """Count the new uncorrected errors since the record, in the same boot.

    :returns: kind (``fatal`` or ``nonfatal``) -> number; kinds without new errors are left out.
    """
    if recorded.boot != current.boot:
        return {}
    pairs = {
        "fatal": (recorded.fatal, current.fatal),
        "nonfatal": (recorded.nonfatal, current.nonfatal),
    }
    return {
        kind: new - old
        for kind, (old, new) in pairs.items()
        if old is not None and new is not None and new > old
    }


def _changed_symptoms(recorded: DeviceSnapshot, current: DeviceSnapshot) -> Iterator[Symptom]:
    """Yield a symptom for each lasting difference from the baseline: ids, BARs and capabilities."""
    if current.silent:
        return  # its registers contain no data
    for what, before, after in (
        ("by the kernel", recorded.identity, current.identity),
        ("by its own answer", recorded.answers, current.answers),
    ):
        for name in sorted((before or {}).keys() & (after or {}).keys()):
            if before and after and before[name] != after[name]:
                yield _changed_symptom(
                    announcements.describe_field_change(name, what, before[name], after[name])
                )
    if recorded.bars and recorded.bars != current.bars:
        yield _changed_symptom(announcements.describe_bar_change(recorded.bars, current.bars))
    if recorded.capabilities is not None and current.capabilities is not None:
        gone = [
            capability
            for capability in recorded.capabilities
            if capability not in current.capabilities
        ]
        more = [
            capability
            for capability in current.capabilities
            if capability not in recorded.capabilities
        ]
        if gone or more:
            yield _changed_symptom(announcements.describe_capability_change(gone, more))


def _passing_symptoms(recorded: DeviceSnapshot, current: DeviceSnapshot) -> Iterator[Symptom]:
    """Yield differences that may end by themselves: link width, number of virtual functions."""
    if recorded.width and current.width and current.width < recorded.width:
        yield Symptom(HealthSign.LINK, f"its link is x{current.width}, and was x{recorded.width}")
    if recorded.vfs is not None and current.vfs is not None and recorded.vfs != current.vfs:
        text = f"{current.vfs} virtual functions are on, and there were {recorded.vfs}"
        yield Symptom(HealthSign.FUNCTIONS, text)


def _changed_symptom(change: str) -> Symptom:
    """Build a symptom with the ledger's text as its reason; acceptance depends on this text."""
    return Symptom(HealthSign.CHANGED, change, change)


def renew_error_counters(recorded: DeviceSnapshot, current: DeviceSnapshot) -> DeviceSnapshot:
    """Return the record with the error counters of another boot."""
    return attrs.evolve(recorded, fatal=current.fatal, nonfatal=current.nonfatal, boot=current.boot)


def snapshot_model_of(recorded: DeviceSnapshot) -> str | None:
    """Return ``vendor:product``, with the subsystem's if there is one; None if unknown."""
    names = ("vendor_id", "product_id", "subsystem_vendor_id", "subsystem_id")
    words = [recorded.identity.get(name) for name in names]
    if None in words[:2]:
        return None
    return ":".join(word for word in words if word is not None)
