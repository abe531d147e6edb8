# SPDX-License-Identifier: Apache-2.0
"""The checks of a stage: memory on files, vendors' parts on made answers, the host's."""

import gzip
import json
import os
import shutil
import sys

import pytest

from nova_hpc.tenancy.hygiene import clean_amd, clean_check, clean_nic, clean_nvidia
from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError
from nova_hpc.tenancy.stage import binding, build, process
from nova_hpc.tenancy.stage.archive import ArchiveError
from nova_hpc.tenancy.stage.binding import BindError
from nova_hpc.tenancy.stage.host import HostRunner
from nova_hpc.tenancy.stage.inside import command, memory
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make

MIB = 1 << 20
NOTHING = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


@pytest.fixture
def device(tmp_path):
    """A function with 3 MiB of memory in BAR 0, and registers in BAR 2."""
    path = tmp_path / "0000:01:00.0"
    path.mkdir()
    lines = [
        f"0x00000000c0000000 {0xC0000000 + 3 * MIB - 1:#018x} 0x0000000000042208",
        NOTHING,
        "0x00000000d0000000 0x00000000d0000fff 0x0000000000040200",
        *[NOTHING] * 10,
    ]
    for name, text in {"resource": "\n".join(lines), "class": "0x038000", "enable": "0"}.items():
        (path / name).write_text(f"{text}\n")
    (path / "vendor").write_text("0x1234\n")
    (path / "resource0").write_bytes(os.urandom(3 * MIB))
    (path / "resource2").write_bytes(b"register" * 512)
    return path


# -- memory ------------------------------------------------------------------------------


def test_memory_is_overwritten_and_registers_are_not(device):
    assert memory.clean(device, {}) == {"bytes": 3 * MIB, "bars": [0]}
    assert (device / "resource0").read_bytes() == bytes(3 * MIB)
    assert (device / "resource2").read_bytes() == b"register" * 512
    assert (device / "enable").read_text() == "0"


def test_a_write_combining_view_is_preferred(device):
    shutil.copy(device / "resource0", device / "resource0_wc")
    before = (device / "resource0").read_bytes()
    memory.clean(device, {})
    assert (device / "resource0").read_bytes() == before
    assert (device / "resource0_wc").read_bytes() == bytes(3 * MIB)


@pytest.mark.parametrize(("blank", "words"), [(False, "a pattern is"), (True, "zeros are")])
def test_memory_that_does_not_keep_what_is_written(device, monkeypatch, blank, words):
    plain = memory._expected_bytes_of
    calls = []

    def wanted(offset, length, is_blank):
        """When it is read back, something else is expected of the second MiB."""
        found = plain(offset, length, is_blank)
        calls.append((offset, is_blank))
        again = calls.count((offset, is_blank)) > 1
        return b"x" * length if again and offset == MIB and is_blank == blank else found

    monkeypatch.setattr(memory, "_expected_bytes_of", wanted)
    with pytest.raises(UncleanError, match=f"BAR 0, MiB 1: {words} not read as written"):
        memory.clean(device, {})


def test_no_two_mib_are_alike():
    assert len({memory.memory_pattern_of(number, 8) for number in range(4096)}) == 4096
    assert len(memory.memory_pattern_of(3, 13)) == 13


def test_memory_that_cannot_be_reached(device):
    (device / "resource0").unlink()
    with pytest.raises(UnableError, match="BAR 0 cannot be opened"):
        memory.clean(device, {})
    (device / "resource0").write_bytes(b"")
    with pytest.raises(UnableError, match="BAR 0 cannot be mapped"):
        memory.clean(device, {})
    text = (device / "resource").read_text()
    (device / "resource").write_text(text.replace("0x00000000c0000000", "0x0000000000000000"))
    with pytest.raises(UnableError, match="BAR 0 has no address"):
        memory.clean(device, {})
    (device / "resource").write_text(f"{NOTHING}\n" * 13)
    with pytest.raises(UnableError, match="shows no memory"):
        memory.clean(device, {})
    (device / "resource").write_text("noise\n")
    with pytest.raises(UnableError, match="cannot be read"):
        memory.clean(device, {})
    (device / "class").write_text("0x020700\n")
    with pytest.raises(UnableError, match="registers in its BARs"):
        memory.clean(device, {})


# -- the program of a service VM -----------------------------------------------------------


@pytest.fixture
def guest(tmp_path, device):
    """The PCI functions of a service VM with the device behind its first root port."""
    devices = tmp_path / "devices"
    port = tmp_path / "root/0000:00:10.0"
    devices.mkdir()
    port.mkdir(parents=True)
    shutil.move(device, port / device.name)
    (devices / port.name).symlink_to(port)
    return devices


def test_each_device_is_put_through_its_checks(guest):
    words = command.parse_kernel_arguments(
        "quiet nova_hpc.nonce=ab nova_hpc.checks=memory console=ttyS0"
    )
    found = command.check_all_devices(words, guest)
    assert found == {"0": {"ok": True, "memory": {"bytes": 3 * MIB, "bars": [0]}}}


def test_checks_of_the_operator(guest, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_CHECKS", tmp_path)

    def result(name):
        return command.check_all_devices({"nova_hpc.checks": name}, guest)["0"]

    for name, text in {
        "good": "echo; echo scrubbed $1",
        "bad": "echo row 3 is broken; exit 4",
        "killed": "kill -9 $$",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert result("good") == {"ok": True, "good": "scrubbed 0000:01:00.0"}
    assert result("bad") == {"ok": False, "reason": "check bad: row 3 is broken"}
    assert result("killed")["unable"]
    assert "cannot be run" in result("missing")["reason"]
    (guest / "0000:00:10.0/0000:01:00.0/vendor").unlink()
    assert result("good")["reason"] == "0 functions are behind its root port, not one"


def test_an_image_has_what_the_checks_need(tmp_path):
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("there is no busybox here")
    extra = tmp_path / "scrub"
    extra.write_text("#!/bin/sh\n")
    target = tmp_path / "image"
    words = [str(target), "--busybox", busybox, "--python", "/usr/bin/python3"]
    assert build.main([*words, "--check", f"scrub={extra}", "--add", f"etc/x={extra}"]) == 0
    text = gzip.decompress(target.read_bytes())
    for name in (
        *("init", "checks/scrub", "etc/x", "modules/order", "lib/nova-hpc/python"),
        "lib/nova-hpc/nova_hpc/tenancy/stage/inside/command.py",
        "lib/nova-hpc/nova_hpc/__init__.py",
    ):
        assert f"{name}\0".encode() in text
    assert len(target.read_bytes()) < 16 * MIB


def test_an_image_that_cannot_be_made(tmp_path, capsys):
    missing = tmp_path / "missing"
    assert build.main([str(tmp_path / "i"), "--busybox", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err
    with pytest.raises(ArchiveError, match="cannot run"):
        build._output_of_program(str(missing))
    with pytest.raises(SystemExit):
        build.main([str(tmp_path / "i"), "--check", "nonsense"])
    with pytest.raises(SystemExit):
        build.main([str(tmp_path / "i"), "--module", "virtio"])


# -- NVIDIA, by answers made after NVML's reference ----------------------------------------


class Nvml:
    """As pynvml of nvidia-ml-py 12 answers for an H100; *changes* by function."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818  NVML's own name
        pass

    ANSWERS = {
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetVbiosVersion": b"96.00.74.00.0D",
        "nvmlDeviceGetInforomImageVersion": "G520.0200.00.05",
    }

    def __init__(self, **changes):
        self.answers = {**self.ANSWERS, **changes}
        self.shut = 0

    def nvmlInit(self):
        if "nvmlInit" in self.answers:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self):
        self.shut += 1

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetHandleByPciBusId(self, address):
        if address != b"0000:41:00.0":
            raise self.NVMLError("Not Found")
        return "handle"

    def __getattr__(self, name):
        def ask(handle, *more):
            assert handle == "handle"
            answer = self.answers[name]
            if isinstance(answer, type):
                raise answer("Not Supported")
            return answer

        return ask


def nvidia(tmp_path, pins=None, address="0000:41:00.0", **changes):
    library = Nvml(**changes)
    try:
        return clean_nvidia.check(tmp_path / address, pins or {}, lambda: library)
    finally:
        assert library.shut == (0 if "nvmlInit" in changes else 1)


def test_a_gpu_that_is_well(tmp_path):
    found = nvidia(tmp_path, {"vbios": "96.00.74.00.0D", "driver": "570.86.15", "ecc": True})
    assert (found["vbios"], found["mig"]) == ("96.00.74.00.0D", [False, False])
    # A board without ECC and MIG is not judged for it.
    none = Nvml.NVMLError_NotSupported
    names = ("nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode", "nvmlDeviceGetRemappedRows")
    nvidia(tmp_path, **dict.fromkeys(names, none))


@pytest.mark.parametrize(
    ("name", "answer", "pins", "words"),
    [
        ("nvmlDeviceGetMigMode", [1, 1], {}, "MIG is on"),
        ("nvmlDeviceGetMigMode", [0, 1], {}, "MIG is off .changes with its next reset"),
        ("nvmlDeviceGetMigMode", [0, 0], {"mig": True}, "MIG is off"),
        ("nvmlDeviceGetEccMode", [0, 0], {}, "ECC is off"),
        ("nvmlDeviceGetEccMode", Nvml.NVMLError_NotSupported, {"ecc": True}, "ECC has to be on"),
        ("nvmlDeviceGetRemappedRows", (1, 2, 1, 0), {}, "waits to be remapped"),
        ("nvmlDeviceGetRemappedRows", (1, 2, 0, 1), {}, "could not be remapped"),
        ("nvmlDeviceGetTotalEccErrors", 3, {}, "3 uncorrected errors"),
        ("nvmlDeviceGetComputeRunningProcesses", ["one"], {}, "1 processes use it"),
        ("nvmlDeviceGetVbiosVersion", "1", {"vbios": "2"}, "vbios is 1, pinned is 2"),
    ],
)
def test_a_gpu_that_is_not_as_it_has_to_be(tmp_path, name, answer, pins, words):
    with pytest.raises(UncleanError, match=words):
        nvidia(tmp_path, pins, **{name: answer})


def test_a_gpu_that_nvml_does_not_know(tmp_path):
    with pytest.raises(UnableError, match="Not Found"):
        nvidia(tmp_path, address="0000:42:00.0")
    with pytest.raises(UnableError, match="Driver Not Loaded"):
        nvidia(tmp_path, nvmlInit=None)

    def missing():
        raise ImportError("pynvml")

    with pytest.raises(UnableError, match="nvidia-ml-py"):
        clean_nvidia.check(tmp_path, {}, missing)


def test_errors_of_the_driver():
    log = (
        "6,1,2,-;NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\n"
        "6,1,3,-;NVRM: Xid (PCI:0000:42:00): 48, pid=1\nnoise"
    )
    assert clean_nvidia.xid_errors_of(log, "0000:41:00.0") == [79]
    assert clean_nvidia.xid_errors_of(log, "0000:43:00.0") == []
    facts = dict.fromkeys(
        ("mig", "ecc", "remap_pending", "remap_failed", "uncorrected", "processes"), None
    )
    assert clean_nvidia.gpu_problems_of(facts, [79], {}) == ["the driver has reported Xid 79"]


# -- AMD and adapters, by what their drivers show ---------------------------------------------


def test_an_amd_gpu(tmp_path):
    (tmp_path / "amdgpu").mkdir()
    path = tmp_path / "gpu"
    (path / "ras").mkdir(parents=True)
    with pytest.raises(UnableError, match="not bound to amdgpu"):
        clean_amd.check(path, {})
    (path / "driver").symlink_to(tmp_path / "amdgpu")
    (path / "vbios_version").write_text("113-D65209-073\n")
    (path / "current_compute_partition").write_text("SPX\n")
    (path / "ras/umc_err_count").write_text("ue: 0\nce: 4\n")
    assert clean_amd.check(path, {"compute_partition": "SPX"})["uncorrected"] == {"umc": 0}
    with pytest.raises(UncleanError, match="compute_partition is SPX, pinned is CPX"):
        clean_amd.check(path, {"compute_partition": "CPX"})
    (path / "ras/umc_err_count").write_text("ue: 2\nce: 4\n")
    with pytest.raises(UncleanError, match=r"2 uncorrected errors .umc"):
        clean_amd.check(path, {})
    (path / "ras/umc_err_count").write_text("?")
    with pytest.raises(UnableError, match="umc_err_count cannot be read"):
        clean_amd.check(path, {})


def test_the_firmware_of_an_adapter(tmp_path):
    port = tmp_path / "pf/infiniband/mlx5_0"
    port.mkdir(parents=True)
    (port / "fw_ver").write_text("28.43.1014\n")
    (port / "board_id").write_text("MT_0000000838\n")
    (tmp_path / "vf").mkdir()
    with pytest.raises(UnableError, match="no RDMA device"):
        clean_nic.check(tmp_path / "vf", {})
    (tmp_path / "vf/physfn").symlink_to(tmp_path / "pf")
    pins = {"firmware": "28.43.1014"}
    assert clean_nic.check(tmp_path / "vf", pins)["board"] == "MT_0000000838"
    with pytest.raises(UncleanError, match=r"firmware is 28\.43\.1014, pinned is 1"):
        clean_nic.check(tmp_path / "pf", {"firmware": "1"})


# -- on the host ------------------------------------------------------------------------------


def test_checks_by_their_names(device):
    assert clean_check.run_device_checks(device, ["memory"], {})["ok"]
    assert clean_check.run_device_checks(device, ["nic"], {})["unable"]
    found = clean_check.run_device_checks(device, ["no-such-check"], {})
    assert (found["ok"], found["unable"]) == (False, True)
    assert "no-such-check cannot be loaded" in found["reason"]


@pytest.fixture
def host(tmp_path):
    return make(tmp_path / "node", GPU, OTHER)


class Drivers:
    """What binds devices, and fails where it is told to."""

    def __init__(self, fails=()):
        self.calls, self.fails = [], fails

    def __call__(self, root, address, driver, timeout):
        self.calls.append((address, driver))
        if driver in self.fails:
            raise BindError(f"it cannot be bound to {driver}")


def on_host(host, bind, execute=process.run_stage_program, timeout=60.0):
    return HostRunner(
        root=host.root,
        drivers={"gpu": "amdgpu"},
        checks=lambda role: ("amd",),
        pins=lambda role: {},
        timeout=timeout,
        bind=bind,
        execute=execute,
    )


def test_a_stage_on_the_host(host):
    bind = Drivers()
    found = on_host(host, bind)
    assert found.holder() == "host"
    # The check is a real process; the device has not really another driver.
    assert "not bound to amdgpu" in found.run("host", {GPU: "gpu"}).problem
    said = []

    def execute(argv, timeout, more=None):
        said.append(json.loads(argv[-1]))
        return json.dumps({"ok": not argv[-2].endswith(OTHER), "reason": "2 uncorrected errors"})

    outcome = on_host(host, bind, execute).run("host", {GPU: "gpu", OTHER: "gpu"})
    assert outcome.verdicts == {GPU: "", OTHER: "2 uncorrected errors"}
    assert said[0] == {"checks": ["amd"], "pins": {}}
    assert bind.calls[-4:] == [
        (each, driver) for each in (GPU, OTHER) for driver in ("amdgpu", "vfio-pci")
    ]
    assert on_host(host, bind).end("host", [GPU]) is None


def test_a_stage_on_the_host_that_fails(host):
    def nonsense(argv, timeout, more=None):
        return "[]"

    def hangs(argv, timeout, more=None):
        return process.run_stage_program(
            [sys.executable, "-c", "import time; time.sleep(600)"], 0.2
        )

    for execute, words in ((nonsense, "no object"), (hangs, "did not end within 0.2")):
        assert words in on_host(host, Drivers(), execute).run("host", {GPU: "gpu"}).problem
    assert "amdgpu" in on_host(host, Drivers({"amdgpu"})).run("host", {GPU: "gpu"}).problem
    stuck = on_host(host, Drivers({"vfio-pci"}), lambda *_, **__: '{"ok": true}')
    assert "vfio-pci" in stuck.run("host", {GPU: "gpu"}).problem
    assert "vfio-pci" in stuck.end("host", [GPU])


def test_a_driver_that_does_not_take_a_device(host):
    """The files of this kernel do nothing: so the writes are seen, and the end is an error."""
    path = host.devices / GPU
    for name in ("driver_override", "driver/unbind"):
        (path / name).write_text("")
    (host.root / "sys/bus/pci/drivers_probe").write_text("")
    with pytest.raises(BindError, match="it is bound to vfio-pci"):
        binding.bind_device(host.root, GPU, "nvidia", 20.0)
    assert (path / "driver_override").read_text() == "nvidia\n"
    assert (path / "driver/unbind").read_text() == GPU
    assert (host.root / "sys/bus/pci/drivers_probe").read_text() == GPU
    binding.bind_device(host.root, GPU, "vfio-pci", 20.0)  # it is there: nothing is written
    assert (path / "driver_override").read_text() == "nvidia\n"
    (host.root / "sys/bus/pci/drivers_probe").unlink()
    with pytest.raises(BindError, match="drivers_probe"):
        binding.bind_device(host.root, GPU, "nvidia", 20.0)


@pytest.mark.parametrize("name", ["", "../x", "evil\n", "a b", "x" * 65, "-x"])
def test_what_is_no_name_of_a_driver(host, name):
    """It would become the text of a file."""
    (host.devices / GPU / "driver_override").write_text("")
    with pytest.raises(BindError, match="no name of a driver"):
        binding.bind_device(host.root, GPU, name, 20.0)
    assert (host.devices / GPU / "driver_override").read_text() == ""


def test_a_device_that_somebody_has_is_not_taken_from_its_driver(host):
    for name in ("driver_override", "driver/unbind"):
        (host.devices / GPU / name).write_text("")
    (host.root / "sys/bus/pci/drivers_probe").write_text("")
    with host.held(GPU), pytest.raises(BindError, match="/dev/vfio/1 cannot be opened"):
        binding.bind_device(host.root, GPU, "nvidia", 20.0)
    assert (host.devices / GPU / "driver_override").read_text() == ""
