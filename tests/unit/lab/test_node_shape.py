# SPDX-License-Identifier: Apache-2.0
"""Shapes: the samples, and what is said of those that make no sense."""

from pathlib import Path

import pytest

from nova_hpc_lab.node.shape import (
    Adapter,
    Disk,
    Gpu,
    Shape,
    ShapeError,
    Switch,
    sample_names,
)

GOOD = """\
numa_nodes:
  - socket: 0
    cpus: 2
    memory_mib: 2048
    hugepages: 256
    roots:
      - ports:
          - switch:
              - {gpu: gpu0, memory_mib: 16}
              - {adapter: hca0, vfs: 2}
          - {gpu: gpu1, memory_mib: 32}
"""


def read(text):
    return Shape.parse(text, "my.yaml", "my")


def test_the_samples_are_distinct_and_the_default_comes_first():
    names = sample_names()
    assert names[0] == "two-socket"
    assert set(names) == {"two-socket", "switchless", "wide", "mirror", "big-bar"}
    assert len({Shape.load(name).numa_nodes for name in names}) == len(names)


@pytest.mark.parametrize("name", sample_names())
def test_every_device_of_a_sample_has_an_identity_of_its_own(name):
    shape = Shape.load(name)
    devices = [device for _, device in shape.devices()]
    bars = [device.bar_bytes for device in devices if isinstance(device, Gpu)]
    adapters = [device for device in devices if isinstance(device, Adapter)]
    macs = [
        mac
        for node in (1, 2, 99)
        for device in adapters
        for mac in (device.pf_mac(node), *device.vf_macs(node))
    ]
    assert bars
    assert adapters
    assert len(set(bars)) == len(bars)
    assert len(set(macs)) == len(macs)
    assert len({device.name for device in devices}) == len(devices)


def test_two_socket_has_its_only_switch_on_the_first_numa_node():
    first, second = Shape.load("two-socket").numa_nodes
    (port,) = first.roots[0].ports
    assert isinstance(port, Switch)
    assert {device.name for device in port.ports} == {"gpu0", "hca0"}
    assert not any(isinstance(port, Switch) for root in second.roots for port in root.ports)


def test_an_adapter_may_be_kept_for_the_ports_of_a_network():
    assert read(GOOD).networks == {}
    shape = read(GOOD.replace("vfs: 2}", "vfs: 2, network: physnet1}"))
    assert shape.networks == {"hca0": "physnet1"}
    (line,) = (line for line in shape.describe(1) if line.startswith("hca0"))
    assert "for ports of physnet1" in line
    # The default has one, so that every lab can have such ports.
    assert Shape.load("two-socket").networks == {"hca2": "physnet1"}


def test_an_adapter_may_be_on_a_rail():
    shape = read(GOOD.replace("vfs: 2}", "vfs: 2, rail: 0}"))
    assert shape.networks == {"hca0": "ibrail0"}
    # Its functions have the default role, as those of an operator's rails.
    assert shape.network_roles == {}
    kept = read(GOOD.replace("vfs: 2}", "vfs: 2, network: physnet1}"))
    assert kept.network_roles == kept.networks


@pytest.mark.parametrize(("word", "acs"), [("", False), (", acs: true", True)])
def test_a_switch_may_isolate_what_is_below(word, acs):
    switch = "{switch: [{gpu: gpu1, memory_mib: 32}]" + word + "}"
    shape = read(GOOD.replace("{gpu: gpu1, memory_mib: 32}", switch))
    found = shape.numa_nodes[0].roots[0].ports[-1]
    assert isinstance(found, Switch)
    assert found.acs is acs


def test_a_disk_beside_a_gpu_and_an_adapter():
    shape = Shape.load(str(Path(__file__).parents[2] / "lab/disk.yaml"))
    ports = shape.numa_nodes[0].roots[0].ports
    assert [type(each) for each in ports] == [Gpu, Adapter, Disk]
    assert shape.disks == (Disk("disk0", 8),)
    assert "disk0: NVMe disk of 8 MiB, NUMA 0" in shape.describe(1)
    assert Shape.load("two-socket").disks == ()


@pytest.mark.parametrize("size", ["0", "1025", "x"])
def test_a_disk_without_a_size(size):
    with pytest.raises(ShapeError, match="size_mib"):
        read(GOOD.replace("{adapter: hca0, vfs: 2}", f"{{nvme: disk0, size_mib: {size}}}"))


def test_a_file_is_read_as_the_samples_are(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(GOOD)
    shape = Shape.load(str(path))
    assert (shape.name, shape.cpus, shape.memory_mib) == ("my", 2, 2048)
    assert [(numa, device.name) for numa, device in shape.devices()] == [
        (0, "gpu0"),
        (0, "hca0"),
        (0, "gpu1"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("cpus: 2", "cpu: 2", 3, "unknown key; known here: cpus,"),
        ("    cpus: 2\n", "", 2, "the key cpus is missing"),
        ("cpus: 2", "cpus: two", 3, "a whole number is expected, not 'two'"),
        ("cpus: 2", "cpus: 0", 3, "1 to 8 is expected, not 0"),
        ("cpus: 2", "cpus: [2]", 3, "a whole number is expected"),
        ("cpus: 2", "cpus: 2\n    cpus: 3", 4, "this key is there twice"),
        ("memory_mib: 2048", "memory_mib: 2000", 4, "multiples of 128 MiB"),
        ("hugepages: 256", "hugepages: 900", 5, "leave the node itself less than 512"),
        ("socket: 0", "socket: 1", 2, "sockets are numbered from 0"),
        ("memory_mib: 16", "memory_mib: 24", 9, "one of 4, 8, 16"),
        ("memory_mib: 16", "memory_mib: 32", 11, "gpu0 has 32 MiB already"),
        ("gpu: gpu1", "gpu: gpu0", 11, "the name gpu0 is used twice (first in line 9)"),
        ("gpu: gpu1", "gpu: GPU1", 11, "a name of lower-case letters"),
        ("vfs: 2", "vfs: 8", 10, "1 to 7 is expected, not 8"),
        ("{adapter: hca0, vfs: 2}", "{nic: hca0}", 10, "exactly one of gpu, adapter, nvme, switch"),
        ("{adapter: hca0, vfs: 2}", "{gpu: a, adapter: b}", 10, "exactly one of"),
        ("hca0, vfs", "a-name-of-sixteen, vfs", 10, "also that of its network interface"),
        ("vfs: 2}", "vfs: 2, network: Physnet1}", 10, "a name of lower-case letters"),
        ("vfs: 2}", "vfs: 2, network: vf}", 10, "vf is a role"),
        ("vfs: 2}", "vfs: 2, rail: 1}", 2, "rails are numbered from 0"),
        ("vfs: 2}", "vfs: 2, rail: 0, network: a}", 10, "either network or rail"),
        ("{adapter: hca0, vfs: 2}", "{switch: [], acs: 1}", 10, "true or false is expected"),
        ("{adapter: hca0, vfs: 2}", "hca0", 10, "keys with values are expected"),
        ("- {gpu: gpu1, memory_mib: 32}", "- switch: []", 11, "1 to 8 items are expected"),
    ],
)
def test_nonsense_is_named_with_its_line(old, new, line, says):
    assert old in GOOD
    with pytest.raises(ShapeError) as caught:
        read(GOOD.replace(old, new, 1))
    assert str(caught.value).startswith(f"my.yaml, line {line}, ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[", "a: b: c", "- 1", "numa_nodes: {}", "numa_nodes: 7", "3"]
)
def test_other_documents_are_refused(text):
    with pytest.raises(ShapeError, match=r"my\.yaml"):
        read(text)


def test_switches_are_not_endlessly_deep():
    nested = "{gpu: deep, memory_mib: 4}"
    for _ in range(3):
        nested = "{switch: [" + nested + "]}"
    with pytest.raises(ShapeError, match="at most two deep"):
        read(GOOD.replace("{gpu: gpu1, memory_mib: 32}", nested))


def test_sockets_of_unequal_size_are_refused():
    second = "  - {socket: 1, cpus: 3, memory_mib: 2048, roots: []}\n"
    with pytest.raises(ShapeError, match="every socket needs the same number of CPUs"):
        read(GOOD + second)


def test_a_file_that_is_not_there_is_told_with_the_samples(tmp_path):
    with pytest.raises(ShapeError, match=r"none\.yaml is neither .* samples two-socket"):
        Shape.load(tmp_path / "none.yaml")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ShapeError, match="neither a readable shape file"):
        Shape.load(path)
