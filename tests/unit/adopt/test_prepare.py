# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc prepare``: what a host does at its start, written, repeated, removed."""

import json
import re
import shutil
import subprocess

import pytest

from nova_hpc.topology import sysfs
from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.doctor.command import Doctor
from tests.nodes.catalogue import NODES
from tests.unit.adopt.prepared_host import rules, state
from tests.unit.node_files import put

GPU, PF, VF = "0000:18:00.0", "0000:19:00.0", "0000:19:00.1"
UDEV = host_files.UDEV


def declared(prepare, **wishes):
    prepare.configure.declare(**wishes)
    status, _, err = prepare.configure()
    assert status == 0, err


def test_what_a_host_gets(prepare, debian):
    declared(prepare, vfs={PF: 4}, hugepages={"1G": 6, "2M": 100})
    status, out, err = prepare("--write", debian)
    assert (status, err) == (0, "")
    files = {name: text for name, (text, _) in state(debian).items()}
    assert "Run now: update-grub\nRun now: update-initramfs -u -k all\nThen restart" in out
    assert (
        'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt hugepagesz=2M hugepages=100 '
        in (files[host_files.GRUB])
    )
    assert 'hugepagesz=1G hugepages=6"' in files[host_files.GRUB]
    assert files[host_files.MODULES].splitlines()[1:] == ["vfio-pci", "vfio_iommu_type1"]
    pool = "/sys/devices/system/node/node0/hugepages/hugepages"
    assert files[host_files.TMPFILES].splitlines()[2:] == [
        f"w {pool}-2048kB/nr_hugepages - - - - 100",
        f"w {pool}-1048576kB/nr_hugepages - - - - 6",
    ]
    override = 'ATTR{driver_override}="vfio-pci"'
    probe = 'ATTR{[subsystem/pci]drivers_probe}="$kernel"'
    gpu, pf = (
        {f'ATTR{{vendor}}=="{vendor}"', f'ATTR{{device}}=="{product}"'}
        for vendor, product in (("0x10de", "0x2330"), ("0x15b3", "0x1021"))
    )
    # The GPU and the virtual functions are overridden, the adapter itself never.
    assert rules(files[UDEV]) == [
        {'ACTION=="add"', 'SUBSYSTEM=="pci"', f'KERNEL=="{GPU}"', *gpu, override, probe},
        {
            *gpu,
            'ACTION=="bind"',
            'SUBSYSTEM=="pci"',
            f'KERNEL=="{GPU}"',
            'DRIVER!="vfio-pci"',
            override,
            'ATTR{driver/unbind}="$kernel"',
            probe,
        },
        {
            *(each.replace("ATTR", "ATTRS") for each in pf),
            'ACTION=="add"',
            'SUBSYSTEM=="net|infiniband"',
            f'KERNELS=="{PF}"',
            'ATTR{device/sriov_drivers_autoprobe}="0"',
            'ATTR{device/sriov_numvfs}="4"',
        },
        {
            *pf,
            'ACTION=="add|bind"',
            'SUBSYSTEM=="pci"',
            f'KERNEL=="{PF}"',
            'DRIVER=="?*"',
            'ATTR{sriov_drivers_autoprobe}="0"',
            'ATTR{sriov_numvfs}="4"',
        },
        {
            *(each.replace("{", "{physfn/") for each in pf),
            'ACTION=="add"',
            'SUBSYSTEM=="pci"',
            f'ATTR{{physfn/uevent}}=="*PCI_SLOT_NAME={PF}*"',
            override,
            probe,
        },
    ]
    for name in (host_files.HOOK, host_files.SCRIPT):
        assert (debian / name).stat().st_mode & 0o111 == 0o111
        subprocess.run(["sh", "-n", debian / name], check=True)
        assert subprocess.run([debian / name, "prereqs"], capture_output=True).stdout == b""
    assert f"\noverride {GPU} 0x10de 0x2330 vfio-pci\n" in files[host_files.SCRIPT]
    assert PF not in files[host_files.SCRIPT]


def test_a_second_run_changes_nothing_and_remove_leaves_nothing(prepare, debian):
    before = state(debian)
    declared(prepare, vfs={PF: 1}, hugepages={"1G": 1})
    first = prepare("--write", debian, "--dry-run")
    assert "Nothing written" in first[1]
    assert state(debian) == before
    prepare("--write", debian)
    written = state(debian)
    assert prepare("--write", debian) == (0, "Nothing to do.\n", "")
    assert state(debian) == written
    status, out, _ = prepare("--write", debian, "--remove")
    assert status == 0
    assert "Run now: update-initramfs" in out
    assert state(debian) == before


def test_what_is_needed_no_more_is_removed(prepare, debian):
    declared(prepare, vfs={PF: 1}, hugepages={"1G": 1})
    prepare("--write", debian)
    assert host_files.TMPFILES in state(debian)
    path = prepare.configure.folder / "node.yaml"
    path.write_text(path.read_text().replace("hugepages:\n  1G: 1\n", ""))
    prepare("--write", debian)
    assert host_files.TMPFILES not in state(debian)
    assert "hugepages" not in (debian / host_files.GRUB).read_text()


def test_a_file_of_somebody_else_is_not_touched(prepare, debian):
    put(debian, f"/{host_files.MODULES}", "mine")
    before = state(debian)
    status, out, err = prepare("--write", debian)
    assert (status, out.count("Wrote")) == (2, 0)
    assert "was not written by this command: move it away" in err
    assert state(debian) == before
    assert prepare("--write", debian, "--remove")[0] == 0
    assert state(debian) == before


def test_an_adapter_of_which_nothing_is_said_keeps_its_driver(prepare, machine, debian):
    (machine / "sys/bus/pci/devices" / VF).unlink()
    (machine / f"sys/devices/pci0000:17/{PF}/virtfn0").unlink()
    status, out, _ = prepare("--write", debian)
    assert status == 0
    assert f"# {PF}: the declaration does not set whether it is given whole" in out
    assert PF not in (debian / UDEV).read_text()
    # By its role, before there is any virtual function to be seen.
    put(machine, f"/sys/devices/pci0000:17/{PF}/sriov_vf_device", "101e")
    declared(prepare, vfs={"pf": 3})
    prepare("--write", debian)
    assert 'sriov_numvfs}="3"' in (debian / UDEV).read_text()
    assert "physfn/uevent" in (debian / UDEV).read_text()
    # Whole: it is bound itself.
    declared(prepare, vfs=None, whole_pf=[PF])
    prepare("--write", debian)
    text = (debian / UDEV).read_text()
    assert "sriov" not in text
    assert f'KERNEL=="{PF}"' in text


def test_more_than_the_adapter_can_have_is_said_and_not_done(prepare, debian):
    declared(prepare, vfs={PF: 9})
    _, out, _ = prepare("--write", debian)
    assert f"{PF}: 9 virtual functions are declared, and it can have 8" in out
    assert PF not in (debian / UDEV).read_text()


@pytest.mark.parametrize(
    "wish",
    [
        {"role_options": {"vf": {"physical_network": "physnet1"}}},
        {"rails": {"physical_network": "ibrail{n}", "adapters": [PF]}},
    ],
)
def test_those_for_ports_keep_their_driver(prepare, debian, wish):
    declared(prepare, vfs={PF: 2}, **wish)
    prepare("--write", debian)
    text = (debian / UDEV).read_text()
    assert 'sriov_numvfs}="2"' in text
    assert "autoprobe" not in text
    assert "physfn" not in text


def test_left_out_is_left_alone(prepare, debian):
    declared(prepare, left_out=[GPU, PF])
    _, out, _ = prepare("--write", debian)
    assert "nothing is to be prepared" in out
    assert UDEV not in state(debian)


def test_the_sound_of_a_gpu_goes_with_it(prepare, machine, debian):
    sound = "0000:18:00.1"
    folder = f"/sys/devices/pci0000:17/{sound}"
    for name, text in (("vendor", "0x10de"), ("device", "0x22f0"), ("class", "0x040300")):
        put(machine, f"{folder}/{name}", text)
    (machine / "sys/bus/pci/devices" / sound).symlink_to(f"../../../devices/pci0000:17/{sound}")
    prepare("--write", debian)
    assert sound not in (debian / UDEV).read_text()
    for address in (GPU, sound):
        group = machine / "sys/kernel/iommu_groups/7/devices"
        group.mkdir(parents=True, exist_ok=True)
        (group / address).symlink_to(f"../../../../devices/pci0000:17/{address}")
        link = machine / f"sys/devices/pci0000:17/{address}/iommu_group"
        link.symlink_to("../../../kernel/iommu_groups/7")
    prepare("--write", debian)
    assert sound in (debian / UDEV).read_text()


def test_memory_of_a_node_without_cpus_is_not_counted(prepare, machine, debian):
    put(machine, "/sys/devices/system/node/online", "0-1")
    put(machine, "/sys/devices/system/node/node1/cpulist", "")
    put(machine, "/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 1048576 kB")
    declared(prepare, hugepages={"1G": 5})
    prepare("--write", debian)
    assert "hugepages=0:5" in (debian / host_files.GRUB).read_text()


@pytest.mark.parametrize(
    ("table", "vendor", "words"),
    [
        ("DMAR", "AuthenticAMD", "intel_iommu=on iommu=pt"),  # what the firmware says counts
        (None, "AuthenticAMD", "iommu=pt"),
        (None, "GenuineIntel", "intel_iommu=on iommu=pt"),
        (None, None, "intel_iommu=on iommu=pt"),
        ("IORT", None, "iommu.passthrough=1"),
    ],
)
def test_the_word_that_switches_the_iommu_on(prepare, machine, debian, table, vendor, words):
    (machine / "sys/firmware/acpi/tables/IVRS").unlink()
    (machine / "proc/cpuinfo").unlink()
    if table:
        put(machine, f"/sys/firmware/acpi/tables/{table}", table)
    if vendor:
        put(machine, "/proc/cpuinfo", f"vendor_id : {vendor}")
    prepare("--write", debian)
    (line,) = re.findall(r'LINUX (.*)"', (debian / host_files.GRUB).read_text())
    assert line == words


def test_grubby_and_dracut(prepare, tmp_path):
    root = tmp_path / "rocky"
    for name in ("etc/dracut.conf.d", "usr/sbin"):
        (root / name).mkdir(parents=True)
    (root / "usr/sbin/grubby").touch()
    _, out, _ = prepare("--write", root)
    assert "Run now: grubby --update-kernel=ALL --args=iommu=pt\n" in out
    assert "Run now: dracut --force --regenerate-all\n" in out
    assert f"/{UDEV}" in (root / host_files.DRACUT).read_text()
    assert not (root / "etc/default").exists()


def test_what_was_said_of_the_boot_is_remembered(prepare, tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    prepare("--write", root, "--boot-loader", "grub", "--initramfs", "dracut")
    assert (root / host_files.GRUB).exists()
    assert prepare("--write", root)[1].endswith("Nothing to do.\n")


def test_bad_words(prepare, tmp_path):
    assert prepare("--dry-run")[0] == 2
    status, _, err = prepare("--write", tmp_path / "typo")
    assert status == 2
    assert "name the root of the host" in err
    assert not (tmp_path / "typo").exists()


def test_without_write_the_files_are_shown(prepare):
    status, out, _ = prepare("--boot-loader", "grub", "--initramfs", "dracut")
    assert status == 0
    assert f"### /{UDEV}\n{host_files.MARKER}\n" in out
    rows = json.loads(prepare("-f", "json")[1])
    assert [row["File"] for row in rows] == [
        f"/{name}" for name in (UDEV, host_files.MODULES, host_files.SYSCTL)
    ]


def test_doctor_knows_when_the_host_has_drifted(prepare, machine, debian, capsys):
    def found():
        command = Doctor(None, None)
        words = ["--root", machine, "--declaration", prepare.configure.folder / "node.yaml"]
        parser = command.get_parser("nova-hpc doctor")
        command.run(parser.parse_args([*map(str, words), "-f", "json"]))
        answer = json.loads(capsys.readouterr().out)["findings"]
        return [each["seen"] for each in answer if each["check"] == "prepare-drift"]

    shutil.copytree(debian, machine, dirs_exist_ok=True)
    declared(prepare, vfs={PF: 1}, hugepages={"1G": 1})
    assert found() == []  # it is prepared by other means
    prepare("--write", machine)
    assert found() == []
    declared(prepare, vfs={PF: 2})
    (said,) = found()
    assert f"/{UDEV}" in said
    prepare("--write", machine)
    assert found() == []


@pytest.mark.parametrize("name", NODES)
def test_no_adapter_of_the_host_loses_its_driver(prepare, synthetic, debian, name):
    """On every synthetic node only what is offered is bound, and a second run does nothing."""
    root = synthetic(name)
    node = sysfs.read_sysfs_node(root)
    status, _, err = prepare("--write", debian, root=root)
    if not node.functions:
        assert status == 2
        return
    assert status == 0, err
    text = (debian / UDEV).read_text() if (debian / UDEV).exists() else ""
    bound = set(re.findall(r'KERNEL=="([^"]+)", .*ATTR\{driver_override', text))
    for each in node.functions:
        if each.virtual_functions or each.is_bridge or each.physical_function:
            assert each.address not in bound
    assert "Nothing to do." in prepare("--write", debian, root=root)[1]
