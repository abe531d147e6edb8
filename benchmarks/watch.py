# SPDX-License-Identifier: Apache-2.0
"""The cost of the watch over devices in use: processor time of nova-compute, healthy node."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import nova.conf
from nova import objects

from benchmarks import measure, sysfs_tree
from nova_hpc import conf as hpc_conf
from nova_hpc.tenancy.ledger import LedgerFile
from virt_driver_patches.driver.watch import DeviceWatch, used_devices_of

PART = "watch of devices in use"
#: Looks of one sample: the clock of a process is coarse.
_LOOKS = 10
#: Looks that a new server's devices need until nothing of them changes any more.
_FIRST = 4


class _NoGuests:
    """No guest has lost a device."""

    def look_again(self) -> None:
        """Nothing is due."""

    def gone_from_guests(self) -> list[tuple[str, str]]:
        """Return no device."""
        return []


def run(gpus: int, adapters: int, functions: int, samples: int) -> Iterator[measure.Row]:
    """The rows for a node whose devices all have servers, four devices each."""
    hpc_conf.register_all_options(nova.conf.CONF)
    with tempfile.TemporaryDirectory(prefix="nova-hpc-") as folder:
        root = Path(folder)
        cards, virtual = sysfs_tree.build(root, gpus, adapters, functions)
        for address in virtual:
            _add_port((root / "sys/bus/pci/devices" / address / "physfn").resolve())
        devices = [
            objects.PciDevice(
                address=address, status="allocated", instance_uuid=str(UUID(int=1 + number // 4))
            )
            for number, address in enumerate([*cards, *virtual])
        ]
        tracker = SimpleNamespace(pci_devs=objects.PciDeviceList(objects=devices))
        virtapi = SimpleNamespace(_compute=SimpleNamespace(rt=SimpleNamespace(pci_tracker=tracker)))
        nova.conf.CONF.set_override("sysfs_root", folder, group="hpc")
        interval = nova.conf.CONF.hpc.watch_interval
        nova.conf.CONF.set_override("watch_interval", 0.0, group="hpc")
        ledger = LedgerFile(root / "ledger")
        watch = DeviceWatch(lambda: used_devices_of(virtapi), _NoGuests(), lambda: ledger)
        try:
            watch.begin("alpha")
            for _ in range(_FIRST):
                watch.look()
            seconds = [_measure_looks(watch) for _ in range(samples)]
        finally:
            nova.conf.CONF.clear_override("sysfs_root", group="hpc")
            nova.conf.CONF.clear_override("watch_interval", group="hpc")
    what = f"{len(cards)} GPUs and {len(virtual)} VFs in use"
    note = "files in a folder instead of sysfs"
    yield measure.row(PART, f"{what}: one look", "ms", [1000 * value for value in seconds])
    shares = [100 * value / interval for value in seconds]
    yield measure.row(PART, f"{what}: share of one CPU", "%", shares, "at most 0.2 %", 0.2, note)


def _measure_looks(watch: DeviceWatch) -> float:
    begin = time.process_time()
    for _ in range(_LOOKS):
        watch.look()
    return (time.process_time() - begin) / _LOOKS


def _add_port(adapter: Path) -> None:
    port = adapter / "infiniband" / f"mlx5_{adapter.name}" / "ports/1"
    if not port.exists():
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port.parents[1] / "fw_ver").write_text("28.39.1002\n")
