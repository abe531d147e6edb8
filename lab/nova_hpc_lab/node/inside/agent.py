# SPDX-License-Identifier: Apache-2.0
"""Makes the booted machine the HPC node that its shape describes.

It runs once at each start, inside the node, with the system's Python and only the standard library.
It reads ``node.json`` of the configuration disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG = Path("/opt/nova-hpc/config")
COMMAND = "/opt/nova-hpc/venv/bin/nova-hpc"
PHASE = Path("/run/nova-hpc/phase")
PCI = Path("/sys/bus/pci/devices")
NET = Path("/sys/class/net")
NOVA = Path("/etc/nova")
INCLUDES = NOVA / "nova.conf.d"
DECLARATION = Path("/etc/nova-hpc/node.yaml")
STATE = Path("/var/lib/nova")
#: A host that nova-hpc prepare has prepared makes its devices ready by itself.
PREPARED = Path("/etc/udev/rules.d/65-nova-hpc.rules")
#: Otherwise udev loads no driver: the agent does, one after the other.
MASK = Path("/etc/udev/rules.d/80-drivers.rules")


class NodeError(Exception):
    """The node is not in the expected state; the text goes to the supervisor."""


def phase(text: str) -> None:
    """Write the present phase for the heartbeat, and to the log."""
    beside = PHASE.with_suffix(".new")
    beside.write_text(text.replace("\n", " ") + "\n")
    beside.rename(PHASE)
    print(f"{time.monotonic():7.1f} s: {text}", flush=True)


def run(*argv: str) -> None:
    """Run a program; its output goes to the log."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.stdout:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        tail = " / ".join(done.stdout.splitlines()[-3:])
        raise NodeError(f"{' '.join(argv[:3])} failed (status {done.returncode}): {tail}")


def go(service: str) -> None:
    """Let init start a service that waits for this file."""
    (PHASE.parent / f"start-{service}").touch()


class Background(threading.Thread):
    """A step that runs in parallel to others; :meth:`join` raises its error."""

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.step = step
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Run the step in this thread, and keep its error for :meth:`join`."""
        try:
            self.step()
        except (OSError, NodeError) as err:
            self.error = err

    def join(self, timeout: float | None = None) -> None:
        """Wait for the step's thread, and raise the step's error if it failed."""
        super().join(timeout)
        if self.error is not None:
            raise self.error


def network(node: dict[str, Any]) -> None:
    """Set the name, the address and the route to 10.0.2.2, the machine that runs the lab."""
    run("hostname", node["name"])
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{node['address']} {node['name']}\n")
    run("modprobe", "virtio_net")
    deadline = time.monotonic() + 60
    while True:
        for link in NET.iterdir():
            driver = link / "device" / "driver"
            if driver.exists() and driver.resolve().name == "virtio_net":
                run("ip", "address", "replace", f"{node['address']}/24", "dev", link.name)
                run("ip", "link", "set", "up", "dev", link.name)
                run("ip", "link", "set", "up", "dev", "lo")
                run("ip", "route", "replace", "default", "via", node["gateway"])
                return
        if time.monotonic() > deadline:
            raise NodeError("there is no management network")
        time.sleep(0.2)


def drivers() -> None:
    """Load the drivers; on a prepared host, udev loads those of its devices."""
    # kvm_amd because the emulated processor has AMD's virtualisation; tun for the taps of ordinary
    # ports, which Nova makes without loading the module.
    run("modprobe", "-a", "kvm_amd", "tun")
    if not PREPARED.exists():
        if not MASK.is_symlink():
            MASK.symlink_to("/dev/null")
        run("modprobe", "-a", "vfio-pci", "vfio_iommu_type1", "igb")
        return
    # These are the actions of systemd-udev-trigger and systemd-modules-load.
    MASK.unlink(missing_ok=True)
    run("udevadm", "control", "--reload")
    run("udevadm", "trigger", "--type=devices", "--action=add")
    for path in sorted(Path("/etc/modules-load.d").glob("*.conf")):
        for line in path.read_text().split("\n"):
            if line and line[0] not in "#;":
                run("modprobe", line)
    run("udevadm", "settle", "--timeout=120")


def adapters_by_mac() -> dict[str, Path]:
    """Return MAC -> folder of the network device in sysfs."""
    adapters: dict[str, Path] = {}
    for link in NET.iterdir():
        with contextlib.suppress(OSError):
            adapters[(link / "address").read_text().strip()] = link
    return adapters


def virtual_functions(adapter: dict[str, Any], adapters: dict[str, Path]) -> list[str]:
    """Create the virtual functions of one adapter, and return their addresses."""
    link = adapters.get(adapter["mac"])
    if link is None:
        raise NodeError(f"adapter {adapter['name']} ({adapter['mac']}) is not there")
    device = (link / "device").resolve()
    # The node's configuration refers to the adapter by this name.
    run("ip", "link", "set", "dev", link.name, "name", adapter["name"])
    if not PREPARED.exists():
        # No driver of the node may bind them: they are for guests.
        (device / "sriov_drivers_autoprobe").write_text("0")
        (device / "sriov_numvfs").write_text(str(len(adapter["vfs"])))
    found = []
    for number, mac in enumerate(adapter["vfs"]):
        run("ip", "link", "set", "dev", adapter["name"], "vf", str(number), "mac", mac)
        found.append((device / f"virtfn{number}").resolve().name)
    # The link is set up last. The watchdog of an igb that is up pings its VFs. While they are
    # being made, it sees their number before their table exists (igb_ping_all_vfs in
    # drivers/net/ethernet/intel/igb/igb_main.c: a NULL pointer, Linux 6.12).
    run("ip", "link", "set", "up", "dev", adapter["name"])
    return found


def gpus(node: dict[str, Any]) -> list[str]:
    """Return PCI addresses of the GPU stand-ins of both kinds, and of NVMe disks.

    :raises NodeError: there are fewer or more than the shape has.
    """
    found = []
    for kind in ("gpu", "wide_gpu", "nvme"):
        here = [
            device.name
            for device in PCI.iterdir()
            if [(device / name).read_text().strip()[2:] for name in ("vendor", "device")]
            == node[f"{kind}_ids"]
        ]
        if len(here) != node[f"{kind}s"]:
            raise NodeError(f"{len(here)} of {node[f'{kind}s']} devices are there ({kind})")
        found += here
    return found


def to_vfio(address: str) -> None:
    """Bind a device to vfio-pci, or check that a prepared host has done so."""
    device = PCI / address
    if PREPARED.exists():
        link = device / "driver"
        name = link.resolve().name if link.exists() else "no driver"
        if name != "vfio-pci":
            raise NodeError(f"{address} is on {name} after the start of a prepared host")
        return
    (device / "driver_override").write_text("vfio-pci")
    if (device / "driver").exists():
        (device / "driver" / "unbind").write_text(address)
    Path("/sys/bus/pci/drivers_probe").write_text(address)
    if not (device / "driver").exists():
        raise NodeError(f"{address} cannot be bound to vfio-pci")


def pages(node: dict[str, Any]) -> None:
    """Allocate the missing hugepages of each NUMA node: the kernel may have found too few."""
    if PREPARED.exists():
        return
    for number, wanted in enumerate(node["hugepages"]):
        pool = Path(f"/sys/devices/system/node/node{number}/hugepages/hugepages-2048kB")
        path = pool / "nr_hugepages"
        if int(path.read_text()) != wanted:
            path.write_text(str(wanted))
        found = int(path.read_text())
        if found != wanted:
            raise NodeError(f"NUMA node {number} has {found} hugepages, not {wanted}")


def libvirt(node: dict[str, Any]) -> None:
    """Start libvirt without a security driver: all processes are root's, inside an emulation."""
    Path("/etc/libvirt").mkdir(exist_ok=True)
    Path("/etc/libvirt/qemu.conf").write_text(
        'user = "root"\ngroup = "root"\nsecurity_driver = "none"\nremember_owner = 0\n'
        'stdio_handler = "file"\nnamespaces = []\nnbd_tls = 0\n'
    )
    Path("/etc/libvirt/libvirtd.conf").write_text(
        'auth_unix_rw = "none"\nauth_unix_ro = "none"\nunix_sock_rw_perms = "0700"\n'
        f'host_uuid = "{node["uuid"]}"\n'
    )
    go("libvirtd")
    deadline = time.monotonic() + 300
    while not Path("/run/libvirt/libvirt-sock").exists():
        if time.monotonic() > deadline:
            raise NodeError("libvirtd does not start, see /var/log/libvirtd.log")
        time.sleep(0.5)


def configuration(node: dict[str, Any]) -> None:
    """Write Nova's files: the cloud's, the lab's, and those of ``nova-hpc configure``."""
    source = CONFIG / "nova"
    shutil.copytree(source, NOVA, dirs_exist_ok=True)
    INCLUDES.mkdir(parents=True, exist_ok=True)
    (STATE / "instances").mkdir(parents=True, exist_ok=True)
    # The node keeps its identity in the cloud after each restart, also with a fresh disk.
    (STATE / "compute_id").write_text(node["uuid"] + "\n")
    shutil.copy2(CONFIG / "lab.conf", INCLUDES / "lab.conf")
    words: tuple[str, ...] = ()
    # A prepared host keeps its own declaration.
    if not PREPARED.exists():
        words = ("--replace", "device_spec")
        # The node's devices may differ at each start, so the last declaration is replaced.
        DECLARATION.parent.mkdir(parents=True, exist_ok=True)
        DECLARATION.write_text(declaration(node))
    run(COMMAND, "configure", "--write", str(INCLUDES), "--part", "compute", *words)


def declaration(node: dict[str, Any]) -> str:
    """Format the declaration of the node's operator: networks by role, adapters by rail."""
    networks = {}
    rails: dict[int, list[str]] = {}
    for each in node["adapters"]:
        if each["rail"] is not None:
            device = (NET / each["name"] / "device").resolve()
            rails.setdefault(each["rail"], []).append(device.name)
        elif each["network"]:
            networks[each["network"]] = {"physical_network": each["network"]}
    lines = ["schema: nova-hpc/node", "version: 1", f"role_options: {json.dumps(networks)}"]
    if rails:
        wish = {
            "physical_network": node["rail_network"],
            "adapters": [rails[number] for number in sorted(rails)],
        }
        lines.append(f"rails: {json.dumps(wish)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all steps that make this machine a node, in order, some of them in parallel."""
    node = json.loads((CONFIG / "node.json").read_text())
    phase("network")
    # The node has two processors, and these two steps do not depend on each other.
    shim = Background(lambda: run(COMMAND, "install-shim"))
    network(node)
    phase("devices")
    drivers()
    adapters = adapters_by_mac()
    pages(node)
    for_guests = gpus(node)
    for adapter in node["adapters"]:
        found = virtual_functions(adapter, adapters)
        # On a prepared host, libvirt itself changes the driver of functions for ports.
        if adapter["network"] is None or not PREPARED.exists():
            for_guests += found
    for address in for_guests:
        to_vfio(address)
    if node["nvmes"]:
        # The driver erases disks between two servers; by now they are bound to vfio-pci.
        run("modprobe", "nvme")
    # libvirt reads the devices from udev.
    run("udevadm", "trigger", "--subsystem-match=pci", "--subsystem-match=net")
    phase("configuring")
    libvirtd = Background(lambda: libvirt(node))
    configuration(node)
    shim.join()
    libvirtd.join()
    go("nova-compute")
    phase("compute")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError, NodeError) as error:
        phase(f"failed: {error}")
        sys.exit(1)
    os._exit(0)
