# SPDX-License-Identifier: Apache-2.0
"""Changes of a small node: what makes the faults that a doctor finds, and what cures them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Final

import attrs

from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.site import settings
from tests.unit.doctor import quiet_tree
from tests.unit.doctor.doctor_place import GROUPS, PCI, Place
from tests.unit.doctor.quiet_tree import QuietTree
from tests.unit.node_files import GPU, PF, VF

CONFIGURE: Final = "``nova-hpc configure --write``"


@attrs.frozen
class Fault:
    """One fault."""

    text: str
    check: str
    make: Callable[[Place], object]
    #: What is done, in words, and the same.
    cured_by: str
    cure: Callable[[Place], object]
    part: str = "node"


def again(place: Place) -> None:
    place.again()


def controller(filters: str) -> Callable[[Place], None]:
    return lambda place: place.option(settings.CONTROLLER, "enabled_filters", filters)


def prepared_and_edited(place: Place) -> None:
    place.prepare()
    path = place.root / host_files.MODULES
    path.write_text(f"{host_files.MARKER}\nvfio\n", encoding="ascii")


def no_groups(place: Place) -> None:
    for address in (GPU, PF, VF):
        place.group(address, None)
    shutil.rmtree(place.root / "sys/kernel/iommu_groups")


def groups(place: Place) -> None:
    for number, address in enumerate((GPU, PF, VF)):
        place.group(address, number)


def sound(place: Place) -> None:
    place.device("0000:18:00.1", "0x10de", "0x22f0", "0x040300")
    place.driver("0000:18:00.1", "snd_hda_intel")
    place.group("0000:18:00.1", 0)


def no_vf(place: Place) -> None:
    place.link(VF, False)
    (place.root / PCI.lstrip("/") / PF / "virtfn0").unlink()


def vf(place: Place) -> None:
    place.link(VF)
    (place.root / PCI.lstrip("/") / PF / "virtfn0").symlink_to(f"../{VF}")


def manager(place: Place) -> None:
    path = place.root / PCI.lstrip("/") / PF / "vpd"
    path.write_bytes(b"\x90" + (14).to_bytes(2, "little") + b"V0\x0bSMDL=SW_MNG\x78")


def not_started(place: Place) -> None:
    place.put("/etc/default/grub", "")
    place.put("/etc/default/grub.d/mine.cfg", "")
    place.prepare()
    place.put("/proc/cmdline", "root=/dev/sda1 intel_iommu=on")


def started(place: Place) -> None:
    """A boot loader that has read what was prepared."""
    text = (place.root / host_files.GRUB).read_text(encoding="ascii")
    line = text.partition('"$GRUB_CMDLINE_LINUX ')[2].partition('"')[0]
    place.put("/proc/cmdline", f"root=/dev/sda1 {line}")


def translated(place: Place) -> None:
    place.put(f"{GROUPS}/1/type", "DMA-FQ")
    place.put("/proc/cmdline", "root=/dev/sda1 intel_iommu=on")
    place.put("/etc/default/grub", "")
    place.put("/etc/default/grub.d/mine.cfg", "")


def not_translated(place: Place) -> None:
    place.prepare()
    started(place)
    place.put(f"{GROUPS}/1/type", "identity")


GONE_ENTRY: Final = '[pci]\ndevice_spec = {"address": "0000:5e:00.4"}'


def no_entry(place: Place) -> None:
    place.nova_conf.write_text(place.nova_conf.read_text().partition(GONE_ENTRY)[0])


def libvirt(place: Place, version: int) -> None:
    place.libvirt.version = version


BROADCOM: Final = "0000:1e:00.0"
#: As the cure of the check has it.
ROLE: Final = (
    '{"role": "nic-14e4", "vendor_id": "14e4", "product_id": "1760", "dev_type": "type-PCI"}'
)


def broadcom(place: Place) -> None:
    place.device(BROADCOM, "0x14e4", "0x1760", "0x020000")
    place.driver(BROADCOM, "vfio-pci")
    place.group(BROADCOM, 8)


_SHARED: Final = "0000:1d:00.0"


def vgpu_type(place: Place, number: int, kind: int) -> None:
    place.put(f"{PCI}/{_SHARED[:-1]}{4 + number}/nvidia/current_vgpu_type", str(kind))


def vgpus(place: Place, *kinds: int) -> None:
    """A GPU whose virtual functions NVIDIA's driver gives, each of a type."""
    top = place.root / PCI.lstrip("/")
    place.device(_SHARED, "0x10de", "0x26b9", "0x030200")
    place.driver(_SHARED, "nvidia")
    for number, kind in enumerate(kinds):
        address = f"{_SHARED[:-1]}{4 + number}"
        place.device(address, "0x10de", "0x26b9", "0x030200")
        place.group(address, 20 + number)
        place.driver(address, "vfio-pci")
        (top / address / "physfn").symlink_to(f"../{_SHARED}")
        (top / _SHARED / f"virtfn{number}").symlink_to(f"../{address}")
        vgpu_type(place, number, kind)


def disk(place: Place) -> None:
    place.device("0000:1c:00.0", "0x144d", "0xa80a", "0x010802")
    place.driver("0000:1c:00.0", "vfio-pci")
    place.group("0000:1c:00.0", 9)


def nvswitch(place: Place, driver: str | None = "vfio-pci") -> None:
    place.device("0000:1c:00.0", "0x10de", "0x22a3", "0x068000")
    place.group("0000:1c:00.0", 7)
    if driver is not None:
        place.driver("0000:1c:00.0", driver)


MANAGED: Final = "[hpc]\nnvlink_backend = fabric-manager"
HOOK: Final = "/etc/libvirt/hooks/qemu.d/nvlink"


def hook(place: Place) -> None:
    nvswitch(place)
    place.say(MANAGED)
    place.put(HOOK, "#!/bin/sh\n[ $2 = prepare ] && fmpm -a 3")


def weighers(place: Place, names: str) -> None:
    text = ",".join((names, *settings.WEIGHER_CLASSES))
    place.option(CONTROLLER, "weight_classes", text)


def later_weighers(place: Place, names: str) -> None:
    text = ",".join((names, *settings.WEIGHER_CLASSES))
    place.say(f"[filter_scheduler]\nweight_classes = {settings.ALL_WEIGHERS},acme.Tenants")
    (place.folder / "zz.conf").write_text(f"[filter_scheduler]\nweight_classes = {text}\n")


def stand_in(place: Place) -> None:
    said = f"offer_in_use:\n- {{hardware: 'serial:0200000000000003', address: '{GPU}'}}\n"
    place.declare("vfs:\n", f"{said}vfs:\n")


RULE: Final = f'ACTION=="add", KERNEL=="{GPU}", ATTR{{driver_override}}="nvidia"'
TRANSLATED: Final = "[hpc]\npeer_to_peer = translated"


def bar(start: str, end: str, flags: str) -> str:
    """The file ``resource`` of a function with one BAR."""
    width = 18
    words = [f"0x{int(each, 16):0{width - 2}x}" for each in (start, end, flags)]
    return "\n".join([" ".join(words), *[" ".join(["0x" + "0" * 16] * 3)] * 5])


def port(place: Place, state: str) -> None:
    port = f"{PCI}/{PF}/infiniband/mlx5_0/ports/1"
    place.put(f"{port}/state", state)
    place.put(f"{port}/link_layer", "InfiniBand")


def second(place: Place) -> None:
    place.device("0000:1d:00.0", "0x10de", "0x2330", "0x030200")
    place.driver("0000:1d:00.0", "vfio-pci")
    place.group("0000:1d:00.0", 9)


def hidden(place: Place) -> None:
    text = place.folder / settings.file_name(settings.CONTROLLER)
    line = next(each for each in text.read_text().splitlines() if "enabled_filters" in each)
    last = line.replace("Mine,", "")
    (place.folder / "zz.conf").write_text(f"[filter_scheduler]\n{last}\n", encoding="ascii")


def placement(place: Place) -> None:
    words = ("--declaration", place.folder / "node.yaml", "--write", place.placement)
    status, _, err = place.configure("--part", "placement", *words, write=False)
    assert status == 0, err


def quota(count: int) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        text = place.nova_conf.read_text(encoding="ascii")
        head = text.partition("server_group_members")[0]
        place.nova_conf.write_text(f"{head}server_group_members = {count}\n", encoding="ascii")

    return change


def quiet(place: Place) -> QuietTree:
    """A declaration with quiet_cpus, and a kernel that has its words."""
    place.declare("vfs:\n", "quiet_cpus: true\nvfs:\n")
    place.quiet = QuietTree(place.root, frozenset(range(6)), frozenset({1, 4, 5}))
    place.quiet.write()
    return place.quiet


def noisy(check: str) -> Callable[[Place], None]:
    def make(place: Place) -> None:
        tree = quiet(place)
        quiet_tree.FAULTS[check][0](tree)
        tree.counters()

    return make


def still(place: Place) -> QuietTree:
    """The host's work is where it belongs again."""
    assert place.quiet is not None
    place.quiet.more, place.quiet.ran, place.quiet.environment = {}, {}, None
    place.quiet.write()
    return place.quiet


FULL: Final = ",".join(settings.place_own_filters(["ComputeFilter", "Mine"]))
COMMON, CONTROLLER, COMPUTE, PLACEMENT = settings.PARTS
