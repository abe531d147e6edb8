# SPDX-License-Identifier: Apache-2.0
import pytest


def put(root, path, text):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="ascii")


@pytest.fixture
def machine(tmp_path):
    """Two cores on one NUMA node, and a GPU and an adapter with a VF."""
    root = tmp_path / "machine"
    for cpu in range(2):
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        put(root, f"{folder}/topology/physical_package_id", "0")
        put(root, f"{folder}/topology/core_id", cpu)
        put(root, f"{folder}/topology/thread_siblings_list", cpu)
        put(root, f"{folder}/topology/core_cpus_list", cpu)
    put(root, "/sys/devices/system/cpu/online", "0-1")
    put(root, "/sys/devices/system/node/online", "0")
    put(root, "/sys/devices/system/node/node0/cpulist", "0-1")
    put(root, "/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    parts = {
        "0000:18:00.0": ("0x10de", "0x2330", "0x030200", {}),
        "0000:19:00.0": ("0x15b3", "0x1021", "0x020700", {"sriov_totalvfs": 8}),
        "0000:19:00.1": ("0x15b3", "0x101e", "0x020700", {"physfn": "../0000:19:00.0"}),
    }
    for address, (vendor, product, code, more) in parts.items():
        folder = f"/sys/devices/pci0000:17/{address}"
        put(root, f"{folder}/vendor", vendor)
        put(root, f"{folder}/device", product)
        put(root, f"{folder}/class", code)
        put(root, f"{folder}/numa_node", "0")
        for name, value in more.items():
            if name == "physfn":
                (root / folder.lstrip("/") / name).symlink_to(value)
                pf = root / "sys/devices/pci0000:17/0000:19:00.0/virtfn0"
                pf.symlink_to(f"../{address}")
            else:
                put(root, f"{folder}/{name}", value)
        (root / "sys/bus/pci/devices" / address).symlink_to(
            f"../../../devices/pci0000:17/{address}"
        )
    return root
