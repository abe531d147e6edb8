# SPDX-License-Identifier: Apache-2.0
"""From a shape to QEMU: the command line, and the machine that the real QEMU makes of it."""

import itertools
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import attrs
import pytest

from nova_hpc_lab.node import qemu
from nova_hpc_lab.node.emulator import frequency_khz
from nova_hpc_lab.node.shape import Adapter, Disk, Gpu, Shape, sample_names

#: A shape with an NVMe disk.
DISK = str(Path(__file__).parents[2] / "lab/disk.yaml")


def files(folder):
    return qemu.Files(
        emulator=("qemu-system-x86_64",),
        kernel=Path("/boot/k"),
        initramfs=Path("/boot/i"),
        disk=folder / "disk",
        config=folder / "config",
        serial_log=folder / "serial",
        heartbeat=folder / "heartbeat",
        compute_log=folder / "compute",
        qmp=folder / "qmp",
    )


def options(argv, name):
    return [value for option, value in itertools.pairwise(argv) if option == name]


def command(name="two-socket", number=3):
    return qemu.command("hpc3", number, Shape.load(name), files(Path("/lab")), 2022, 2_400_000)


@pytest.mark.parametrize("name", sample_names())
def test_every_device_of_the_shape_is_there_once(name):
    devices = options(command(name), "-device")
    for _, device in Shape.load(name).devices():
        model = "igb"
        if isinstance(device, Gpu):
            model = "ivshmem-plain" if device.wide else "bochs-display"
        assert len([one for one in devices if one.startswith(f"{model},id={device.name},")]) == 1


@pytest.mark.parametrize("name", sample_names())
def test_ports_have_chassis_numbers_of_their_own_and_known_buses(name):
    devices = options(command(name), "-device")
    chassis = [part for one in devices for part in one.split(",") if part.startswith("chassis=")]
    assert chassis
    assert len(set(chassis)) == len(chassis)
    known = {"pcie.0"}
    for one in devices:
        parts = dict(part.split("=", 1) for part in one.split(",") if "=" in part)
        if "bus" in parts:
            assert parts["bus"] in known, one
        known.add(parts.get("id"))


SWITCHES = """\
numa_nodes:
  - cpus: 2
    memory_mib: 2048
    roots:
      - ports:
          - {switch: [{gpu: gpu0, memory_mib: 16}, {adapter: hca0, vfs: 1}], acs: ACS}
"""


@pytest.mark.parametrize(
    ("acs", "model"), [("true", "pcie-root-port"), ("false", "xio3130-downstream")]
)
def test_ports_of_a_switch_isolate_if_the_shape_says_so(tmp_path, monitor, acs, model):
    path = tmp_path / "switches.yaml"
    path.write_text(SWITCHES.replace("ACS", acs))
    ask = monitor(path)
    ports = [
        ask("qom-get", path=f"/machine/peripheral/{name}", property="type")
        for name in ("root0p0d0", "root0p0d1")
    ]
    assert ports == [model] * 2
    upstream = ask("qom-get", path="/machine/peripheral/root0p0u", property="type")
    assert upstream == "x3130-upstream"


def test_the_roots_are_on_the_numa_nodes_of_the_shape():
    roots = [one for one in options(command("wide"), "-device") if one.startswith("pxb-pcie")]
    assert [one.rpartition("=")[2] for one in roots] == ["0", "0", "1", "1"]
    assert len({one.partition("bus_nr=")[2].split(",")[0] for one in roots}) == 4


def test_nothing_is_reachable_from_other_machines():
    (network,) = [one for one in options(command(), "-netdev") if one.startswith("user")]
    assert "hostfwd=tcp:127.0.0.1:2022-" in network
    assert not [one for one in command() if one.startswith(("vnc", "tcp:", "spice"))]


def test_software_emulation_is_asked_for_whatever_the_host_can():
    (accelerator,) = options(command(), "-accel")
    assert accelerator.startswith("tcg,")


def test_the_kernel_gets_the_pages_and_the_clock():
    (line,) = options(command(), "-append")
    assert "intel_iommu=on iommu=pt hugepagesz=2M hugepages=0:384,1:640" in line
    assert "tsc_early_khz=2400000" in line
    (without,) = options(
        qemu.command("a", 1, Shape.load("two-socket"), files(Path("/lab")), 1), "-append"
    )
    assert "tsc_early_khz" not in without


def test_a_prepared_host_has_its_own_words():
    place = attrs.evolve(files(Path("/lab")), host_line="iommu=pt hugepages=7")
    (line,) = options(qemu.command("a", 1, Shape.load("two-socket"), place, 1), "-append")
    assert line.endswith(" iommu=pt hugepages=7")
    assert "intel_iommu" not in line


def test_a_comma_in_a_path_does_not_end_an_option():
    found = qemu.command("a", 1, Shape.load("switchless"), files(Path("/a,b")), 1)
    assert "file=/a,,b/disk,format=qcow2" in options(found, "-drive")[0]


def test_the_counter_of_this_machine_is_measured_or_left_alone():
    first, second = frequency_khz(), frequency_khz()
    assert (first is None) == (second is None)
    if first and second:
        # Two measurements of one crystal.
        assert abs(first - second) * 100 < first


@pytest.fixture
def monitor(tmp_path):
    """A machine of the real QEMU, its processors not yet running; gives a function to ask it."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("QEMU is not installed")
    found = []

    def start(name):
        place = files(tmp_path)
        for path in (place.disk, place.config):
            kind = "qcow2" if path == place.disk else "raw"
            subprocess.run(["qemu-img", "create", "-q", "-f", kind, path, "1M"], check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for each in Shape.load(name).disks:
            (tmp_path / each.file_name).write_bytes(bytes(each.size_mib << 20))
        argv = qemu.command("node", 1, Shape.load(name), place, port)
        end = argv.index("-kernel")
        process = subprocess.Popen([*argv[:end], "-S"], stderr=subprocess.PIPE)
        found.append(process)
        connection = socket.socket(socket.AF_UNIX)
        # QEMU makes the file before it listens there.
        while connection.connect_ex(str(place.qmp)) != 0:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.05)
        stream = connection.makefile("rwb")
        stream.readline()

        def ask(name, **arguments):
            stream.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
            stream.flush()
            while True:
                answer = json.loads(stream.readline())
                if "return" in answer or "error" in answer:
                    return answer["return"]

        ask("qmp_capabilities")
        return ask

    yield start
    for process in found:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("name", [*sample_names(), DISK])
def test_qemu_makes_the_machine_of_the_shape(monitor, name):
    shape = Shape.load(name)
    ask = monitor(name)
    assert len(ask("query-cpus-fast")) == shape.cpus
    backends = {one["id"]: one["size"] >> 20 for one in ask("query-memdev")}
    assert backends == {
        **{f"m{number}": node.memory_mib for number, node in enumerate(shape.numa_nodes)},
        **{
            f"memory-{device.name}": device.memory_mib
            for _, device in shape.devices()
            if isinstance(device, Gpu) and device.wide
        },
    }
    for _, device in shape.devices():
        path = f"/machine/peripheral/{device.name}"
        if isinstance(device, Gpu) and device.wide:
            memory = ask("qom-get", path=path, property="memdev")
            assert memory == f"/objects/memory-{device.name}"
        elif isinstance(device, Gpu):
            assert ask("qom-get", path=path, property="vgamem") == device.bar_bytes
        elif isinstance(device, Disk):
            assert ask("qom-get", path=path, property="serial") == device.name
            assert ask("qom-get", path=path, property="drive") == f"blocks-{device.name}"
        else:
            assert isinstance(device, Adapter)
            assert ask("qom-get", path=path, property="mac") == device.pf_mac(1)
