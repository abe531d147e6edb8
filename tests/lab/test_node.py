# SPDX-License-Identifier: Apache-2.0
"""The virtual node from the inside, and what becomes of it when it freezes."""

import re
import signal
import time

import psutil
import pytest

from nova_hpc_lab.node.shape import Adapter, Gpu, Shape

NUMBER = 1


def test_the_node_is_the_machine_of_its_shape(lab):
    shape = Shape.load("two-socket")
    found = lab.inside(
        "for n in /sys/devices/system/node/node[0-9]*; do"
        ' echo "numa $(cat $n/cpulist) $(cat $n/hugepages/hugepages-2048kB/nr_hugepages)"; done;'
        " for d in /sys/bus/pci/devices/*; do"
        ' [ "$(cat $d/vendor):$(cat $d/device)" = 0x1234:0x1111 ] || continue;'
        " read -r first last rest <$d/resource;"
        ' echo "gpu $(cat $d/numa_node) $((last - first + 1)) $(basename $(readlink $d/driver))";'
        " done;"
        " for d in /sys/bus/pci/devices/*/physfn; do d=${d%/physfn};"
        ' echo "vf $(cat $d/numa_node) $(basename $(readlink $d/driver))"; done;'
        ' for n in /sys/class/net/*; do ip link show ${n##*/} | sed -n "s/.*vf [0-9]* .*ether'
        ' \\([0-9a-f:]*\\).*/mac ${n##*/} \\1/p"; done'
    ).splitlines()
    assert [line for line in found if line.startswith("numa ")] == [
        f"numa {2 * number}-{2 * number + 1} {node.hugepages}"
        for number, node in enumerate(shape.numa_nodes)
    ]
    devices = list(shape.devices())
    assert sorted(line for line in found if line.startswith("gpu ")) == sorted(
        f"gpu {numa} {gpu.bar_bytes} vfio-pci" for numa, gpu in devices if isinstance(gpu, Gpu)
    )
    adapters = [(numa, device) for numa, device in devices if isinstance(device, Adapter)]
    assert sorted(line for line in found if line.startswith("vf ")) == sorted(
        f"vf {numa} vfio-pci" for numa, device in adapters for _ in range(device.vfs)
    )
    assert sorted(line for line in found if line.startswith("mac ")) == sorted(
        f"mac {device.name} {mac}" for _, device in adapters for mac in device.vf_macs(NUMBER)
    )


def test_the_clock_of_the_node_is_right(lab):
    # Emulation may pause; a wrong frequency would be off by far more, and ever more.
    before = time.time()
    inside = float(lab.inside("date +%s.%N"))
    assert before - 60 < inside < time.time() + 60


def test_the_inventory_in_the_node_shows_every_device(lab):
    devices = [device for _, device in Shape.load("two-socket").devices()]
    tree = lab.inside("/opt/nova-hpc/venv/bin/nova-hpc inventory --show tree")
    assert tree.count("1234:1111") == sum(isinstance(each, Gpu) for each in devices) == 3
    for each in devices:
        if isinstance(each, Adapter):
            assert re.search(rf"VF x{each.vfs} vfio-pci.* {each.name} · ", tree), each


@pytest.mark.slow
def test_a_node_that_freezes_is_noticed_and_started_again(lab):
    (before,) = lab.status()["nodes"]
    psutil.Process(before["qemu_pid"]).send_signal(signal.SIGSTOP)

    def back():
        found = lab.status()
        (node,) = found["nodes"]
        return node["restarts"] > before["restarts"] and found["healthy"]

    lab.until(back, "the node was started again", seconds=1200)
    (after,) = lab.status()["nodes"]
    assert after["qemu_pid"] != before["qemu_pid"]
    assert not psutil.pid_exists(before["qemu_pid"])
    assert {one["address"] for one in after["providers"]} == {
        one["address"] for one in before["providers"]
    }
