# SPDX-License-Identifier: Apache-2.0
"""Adapters in a sysfs below a directory, for tests.

The InfiniBand one has the files of NVIDIA's own driver for mlx5, as its
documentation has them; they have not been tried on real hardware.
"""

import os
import shutil
from pathlib import Path

NO_GUID = "00:00:00:00:00:00:00:00"


def add(root: Path, parent: str, functions: list[str], driver: str = "mlx5_core") -> None:
    """A physical function with virtual functions, of which nothing else is known."""
    devices = root / "sys/bus/pci/devices"
    for address in [parent, *functions]:
        path = root / f"sys/devices/pci{parent[:7]}" / address
        path.mkdir(parents=True)
        for name, text in (
            ("vendor", "0x15b3"),
            ("device", "0x101e"),
            ("class", "0x020000"),
            ("numa_node", "0"),
        ):
            (path / name).write_text(f"{text}\n")
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(os.path.relpath(path, devices))
        bind(root, address, driver if address == parent else "vfio-pci")
    (devices / parent / "sriov_totalvfs").write_text("8\n")
    for number, address in enumerate(functions):
        (devices / address / "physfn").symlink_to(f"../{parent}")
        (devices / parent / f"virtfn{number}").symlink_to(f"../{address}")


def bind(root: Path, address: str, driver: str | None) -> None:
    """Bind a function to another driver, or to none."""
    link = root / "sys/bus/pci/devices" / address / "driver"
    link.unlink(missing_ok=True)
    if driver is not None:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/sys/bus/pci/drivers/{driver}")


def ethernet(root: Path, parent: str, net: str = "ens1") -> None:
    """Let a physical function have a network device."""
    folder = root / "sys/bus/pci/devices" / parent
    (folder / "class").write_text("0x020000\n")
    (folder / f"net/{net}").mkdir(parents=True)


def inbox_infiniband(root: Path, parent: str, device: str = "mlx5_1") -> None:
    """The same behind the kernel's own driver, with a network device of IPoIB."""
    infiniband(root, parent, device)
    folder = root / "sys/bus/pci/devices" / parent
    shutil.rmtree(folder / "sriov")
    (folder / "net/ib0").mkdir(parents=True)


def infiniband(root: Path, parent: str, device: str = "mlx5_1") -> None:
    """Let a physical function be an mlx5 InfiniBand adapter."""
    folder = root / "sys/bus/pci/devices" / parent
    (folder / "class").write_text("0x020700\n")
    port = folder / f"infiniband/{device}/ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    count = len(list(folder.glob("virtfn*")))
    for number in range(count):
        mine = folder / f"sriov/{number}"
        mine.mkdir(parents=True)
        (mine / "node").write_text(f"{NO_GUID}\n")
        (mine / "port").write_text(f"{NO_GUID}\n")
        (mine / "policy").write_text("Down\n")
    rdma = root / f"sys/class/infiniband/{device}"
    rdma.mkdir(parents=True)
    (rdma / "device").symlink_to(f"/sys/bus/pci/devices/{parent}")


def sriov(root: Path, parent: str, number: int = 0) -> tuple[str, ...]:
    """Node GUID, port GUID and policy of one function."""
    folder = root / f"sys/bus/pci/devices/{parent}/sriov/{number}"
    return tuple((folder / name).read_text().strip() for name in ("node", "port", "policy"))
