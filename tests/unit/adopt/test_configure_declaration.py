# SPDX-License-Identifier: Apache-2.0
"""``configure`` and the node's declaration: adopted without losing anything that was there."""

import pytest

from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.site import settings
from tests.unit.node_files import GPU, PF, VF, contents, put, refused, snapshot

NIC = "0000:1a:00.0"


def add(machine, address, vendor, product, code, **more):
    """One more function below the root complex, with the files that are named."""
    folder = f"/sys/devices/pci0000:17/{address}"
    values = {"vendor": vendor, "device": product, "class": code, "numa_node": "0", **more}
    for name, value in values.items():
        put(machine, f"{folder}/{name.replace('__', '/')}", value)
    link = machine / "sys/bus/pci/devices" / address
    if not link.is_symlink():
        link.symlink_to(f"../../../devices/pci0000:17/{address}")
    return machine / folder.lstrip("/")


def chipset_only(machine):
    """Take the GPU and the adapter out; what every server has stays."""
    for link in (machine / "sys/bus/pci/devices").iterdir():
        link.unlink()
    add(machine, "0000:17:1f.0", "0x8086", "0x1b81", "0x060100")


# --- what was seen ----------------------------------------------------------------


FOREIGN = """\
[filter_scheduler]
enabled_filters = ComputeFilter,AggregateMultiTenancyIsolation,PciPassthroughFilter
weight_classes = nova.scheduler.weights.ram.RAMWeigher,mine.Weigher
[scheduler]
max_placement_results = 5000
[compute]
cpu_dedicated_set = 1
cpu_shared_set = 0
"""


def test_a_deployments_own_file_is_added_to(at_home, tmp_path):
    """The file is named by --config-file, and ours are read after it by --config-dir."""
    mine = tmp_path / "my-nova.conf"
    mine.write_text(FOREIGN, encoding="ascii")
    # By --config-file alone it is the last that a service reads.
    status, _, err = at_home("--config-file", mine, "--dry-run")
    assert status == 2
    assert f"{mine}:2: enabled_filters = ComputeFilter," in err
    assert f"start the controllers with --config-dir {at_home.folder} behind that file" in err
    words = ("--config-file", mine, "--config-dir", at_home.folder)
    status, out, _ = at_home(*words)
    assert status == 0
    assert "AggregateMultiTenancyIsolation" in at_home.told("enabled_filters")[0]
    assert "mine.Weigher" in at_home.told("weight_classes")[0]
    assert at_home.told("max_placement_results") == ["5000"]
    assert at_home.told("cpu_dedicated_set") == at_home.told("cpu_shared_set") == []
    # In terms of what the services are told: nothing goes, nothing falls.
    effective = [line for line in out.splitlines() if line.startswith("  [")]
    assert "  [filter_scheduler]enabled_filters: + HpcTopologyFilter" in effective
    assert not any(": - " in line for line in effective)
    assert not any("]cpu_" in line or "max_placement" in line for line in effective)
    assert at_home(*words)[1] == "Nothing to do.\n"


def test_a_second_run_forgets_nothing(at_home):
    at_home.declare(
        left_out=[PF],
        cpus={"housekeeping_cores": 0},
        limits={"hosts": 3000},
        role_options={"gpu": {"traits": ["CUSTOM_SXM"]}},
        alias_names="product",
    )
    assert at_home()[0] == 0
    before = snapshot(at_home.folder)
    assert not any("15b3" in each for each in at_home.told("device_spec"))
    assert at_home()[1] == "Nothing to do.\n"
    assert snapshot(at_home.folder) == before


def test_a_node_without_devices_gets_nothing(at_home, machine):
    chipset_only(machine)
    status, out, err = at_home()
    assert (status, out) == (0, "Nothing to do.\n")
    assert list(at_home.folder.iterdir()) == []
    assert "No device of this node is for servers" in err
    # A controller is told so.
    assert at_home("--part", "controller")[0] == 0
    assert list(contents(at_home.folder)) == [settings.file_name(settings.CONTROLLER)]
    assert at_home("--part", "controller")[1] == "Nothing to do.\n"


@pytest.mark.parametrize("gone", [[GPU], [PF, VF], [VF], [GPU, PF, VF]])
def test_an_offer_is_not_taken_away_in_silence(at_home, machine, gone):
    assert at_home()[0] == 0
    before = snapshot(at_home.folder)
    chipset = "0000:17:1f.0"
    add(machine, chipset, "0x8086", "0x1b81", "0x060100")
    for address in gone:
        (machine / "sys/bus/pci/devices" / address).unlink()
    lost = [f"{GPU} (gpu) is offered and would not be"] if GPU in gone else []
    # A physical function without virtual ones is another offer in the place of theirs.
    if PF in gone:
        lost.append(f"{PF} (vf) is offered and would not be (it is not there now)")
    if lost:
        refused(at_home(), *lost)
        assert snapshot(at_home.folder) == before
        names = [word for line in lost for word in ("--replace", line.split()[0])]
        assert at_home(*names)[0] == 0
        offered = "".join(at_home.told("device_spec"))
        assert not any(f'"{address}"' in offered for address in gone)
    else:
        assert at_home()[0] == 0
    assert at_home()[1] == "Nothing to do.\n"


def test_another_machines_capture(at_home, synthetic, capsys):
    assert at_home()[0] == 0
    before = snapshot(at_home.folder)
    words = ["--root", str(synthetic("two-socket")), "--write", str(at_home.folder)]
    command = Configure(None, None)
    status = command.run(command.get_parser("nova-hpc configure").parse_args(words))
    err = capsys.readouterr().err
    assert status == 2
    assert f"{GPU} (gpu) is offered and would not be (it is not there now)" in err
    assert snapshot(at_home.folder) == before


def test_a_directory_that_is_mistyped_is_not_made(at_home, tmp_path):
    at_home.folder = tmp_path / "typo" / "dir"
    refused(at_home(), f"there is no directory {at_home.folder}")
    at_home.folder = tmp_path / "nova.confd"
    refused(at_home(), f"there is no directory {at_home.folder}")
    assert not (tmp_path / "typo").exists()
    at_home.folder = tmp_path / "nova.conf.d"
    assert at_home()[0] == 0


def test_a_machine_without_pci_is_refused(at_home, machine, tmp_path, capsys):
    """A container, or lstopo where it could not see them."""
    xml = tmp_path / "nopci.xml"
    xml.write_text(
        '<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">'
        '<object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" '
        'complete_nodeset="0x1" gp_index="1"><object type="NUMANode" os_index="0" cpuset="0x3" '
        'complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="2" '
        'local_memory="1024"/><object type="Package" os_index="0" cpuset="0x3" '
        'complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="3">'
        '<object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" '
        'complete_nodeset="0x1" gp_index="4"/><object type="PU" os_index="1" cpuset="0x2" '
        'complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/></object>'
        "</object></topology>",
        encoding="ascii",
    )
    assert at_home()[0] == 0
    before = snapshot(at_home.folder)
    for source in (["--xml", str(xml)], ["--root", str(machine)]):
        for link in (machine / "sys/bus/pci/devices").iterdir():
            link.unlink()
        command = Configure(None, None)
        words = [*source, "--write", str(at_home.folder)]
        status = command.run(command.get_parser("nova-hpc configure").parse_args(words))
        assert status == 2
        assert "no PCI device found in" in capsys.readouterr().err
        assert snapshot(at_home.folder) == before


@pytest.fixture
def card(machine):
    """The host's own InfiniBand card: its interface is up."""
    folder = add(
        machine, NIC, "0x15b3", "0x1017", "0x020700", net__ib0__flags="0x1003", net__ib0__type="32"
    )
    put(machine, "/proc/net/route", "Iface Destination Gateway")
    driver = machine / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True)
    (folder / "driver").symlink_to(driver)
    return folder


def test_the_hosts_own_card_is_not_offered(at_home, card):
    status, _, err = at_home()
    assert status == 0
    assert not any(NIC in each for each in at_home.told("device_spec"))
    assert f"Not offered: {NIC} (nic): the host uses its network interface ib0, which is up" in err
    assert f"offer_in_use: ['{NIC}'] in the declaration offers it all the same" in err
    assert at_home()[1] == "Nothing to do.\n"
    at_home.declare(offer_in_use=[NIC])
    assert at_home()[0] == 0
    assert any(NIC in each for each in at_home.told("device_spec"))
    assert at_home()[1] == "Nothing to do.\n"
    at_home.declare(offer_in_use=None, left_out=[NIC])
    assert at_home()[0] == 0
    assert not any(NIC in each for each in at_home.told("device_spec"))


@pytest.mark.parametrize(
    ("files", "used"),
    [
        ({"net__eth0__flags": "0x1002", "net__eth0__type": "1"}, False),
        ({"net__eth0__flags": "0x1003", "net__eth0__type": "1"}, False),
        ({"net__eth0__flags": "0x1003", "net__eth0__type": "1", "route": "eth0"}, True),
        ({"net__eth0__flags": "0x1003", "net__eth0__type": "1", "net__eth0__master": "x"}, True),
        ({"net__eth0__flags": "0x1003", "net__eth0__type": "1", "inet6": "eth0"}, True),
        # Nobody knows: nova-compute will look.
        ({"net__eth0__type": "1"}, False),
    ],
)
def test_network_interfaces(at_home, machine, files, used):
    files = dict(files)
    route, inet6 = files.pop("route", "lo"), files.pop("inet6", "lo")
    folder = add(machine, NIC, "0x15b3", "0x1017", "0x020000", **files)
    (folder / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    put(machine, "/proc/net/route", f"Iface Destination\n{route} 00000000 0100A8C0")
    put(machine, "/proc/net/if_inet6", f"{'0' * 32} 02 40 00 80 {inet6}")
    status, _, err = at_home()
    assert status == 0
    assert any(NIC in each for each in at_home.told("device_spec")) is not used
    assert ("offer_in_use" in err) is used


@pytest.mark.parametrize("how", ["mounted", "holders", "swap", "free"])
def test_disks(at_home, machine, how):
    folder = add(machine, NIC, "0x144d", "0xa80a", "0x010802")
    (folder / "driver").symlink_to("../../../bus/pci/drivers/nvme")
    (folder / "nvme/nvme0/nvme0n1/nvme0n1p1").mkdir(parents=True)
    part = folder / "nvme/nvme0/nvme0n1/nvme0n1p1"
    (part / "dev").write_text("259:1\n", encoding="ascii")
    (machine / "sys/class/block").mkdir(parents=True)
    (machine / "sys/class/block/nvme0n1p1").symlink_to(
        f"../../devices/pci0000:17/{NIC}/nvme/nvme0/nvme0n1/nvme0n1p1"
    )
    if how == "holders":
        (part / "holders/dm-0").mkdir(parents=True)
    number = "259:1" if how == "mounted" else "8:1"
    put(machine, "/proc/1/mountinfo", f"22 1 {number} / / rw shared:1 - ext4 /dev/root rw")
    put(machine, "/proc/swaps", f"Filename Type\n/dev/{'nvme0n1p1' if how == 'swap' else 'sda'} x")
    at_home.declare(roles=[{"role": "disk", "class": "0108"}])
    status, _, err = at_home()
    assert status == 0
    assert ("the host uses its disk nvme0n1p1" in err) is (how != "free")
    # A free one holds the data of its last user.
    assert not any(NIC in each for each in at_home.told("device_spec"))
    assert ("no cleaner of the role disk proves that its data are erased" in err) is (how == "free")


def test_a_device_that_is_offered_is_not_asked_who_uses_it(at_home, card):
    """Its server does; and an operator has decided it before this release asked."""
    at_home.declare(offer_in_use=[NIC])
    assert at_home()[0] == 0
    (at_home.folder / "node.yaml").unlink()
    assert at_home()[0] == 0
    assert any(NIC in each for each in at_home.told("device_spec"))


def test_devices_that_must_never_be_given(at_home, machine):
    add(machine, "0000:1c:00.0", "0x1002", "0x74a1", "0x120000")
    folder = add(machine, NIC, "0x15b3", "0x1021", "0x020700")
    manager = b"\x90" + (14).to_bytes(2, "little") + b"V0\x0bSMDL=SW_MNG"
    (folder / "vpd").write_bytes(manager + b"\x78")
    status, _, err = at_home()
    assert status == 0
    spec = "".join(at_home.told("device_spec"))
    assert "1002" not in spec
    assert NIC not in spec
    assert "0000:1c:00.0 (gpu): an MI300X as a whole" in err
    assert f"{NIC} (nic): NVSwitches are managed by it" in err
    anyway = f"[hpc]\noffer_anyway = 1002:74a1,{NIC}\n"
    at_home.nova(f"[DEFAULT]\nhost = x\n{anyway}")
    assert at_home()[0] == 0
    spec = "".join(at_home.told("device_spec"))
    assert "74a1" in spec
    assert NIC in spec


def test_a_driver_of_somebody_elses_is_not_replaced(at_home):
    at_home.nova("[DEFAULT]\ncompute_driver = powervm.Driver\n")
    refused(at_home(), "compute_driver is powervm.Driver and would be hpc.HpcLibvirtDriver")
    assert at_home("--replace", "compute_driver")[0] == 0


# --- said at once -------------------------------------------------------------------


def test_what_the_host_lacks_is_said_at_once(at_home, machine):
    _, _, err = at_home()
    assert "The IOMMU is off" in err
    assert "No hugepages are reserved" in err
    assert f"{GPU}, {VF}: bound to no driver, withheld until bound to vfio-pci." in err
    add(machine, NIC, "0x15b3", "0x1017", "0x020700", sriov_totalvfs="8")
    assert f"{NIC}: no virtual functions are switched on" in at_home()[2]


def test_what_is_declared_and_missing_is_said(at_home):
    at_home.declare(hugepages={"1G": 4}, vfs={"pf": 3})
    _, _, err = at_home()
    assert "NUMA node 0: 0 pages of 1G, and 4 are declared." in err
    assert f"{PF}: 1 virtual functions are switched on, and 3 are declared." in err
    status, out, again = at_home()
    assert (status, out) == (0, "Nothing to do.\n")
    assert "4 are declared" in again
    assert "3 are declared" in again


# --- what the services are told -------------------------------------------------------


def test_a_later_file_that_wins_is_refused(at_home):
    later = at_home.folder / "zz.conf"
    text = "[Filter_Scheduler]\n# ours\nenabled_filters=ComputeFilter,Mine\n"
    later.write_text(text, encoding="ascii")
    written = at_home.folder / settings.file_name(settings.CONTROLLER)
    answer = at_home()
    refused(
        answer,
        f"{later}:3: enabled_filters=ComputeFilter,Mine: [filter_scheduler]enabled_filters is read "
        f"after {written} and hides it, so the controllers would use ComputeFilter, Mine: "
        f"remove {later}:3 in your configuration management",
    )
    assert contents(at_home.folder) == {"zz.conf": text}
    later.write_text("", encoding="ascii")
    assert at_home()[0] == 0
    # Also when there is nothing to write.
    later.write_text(text, encoding="ascii")
    refused(at_home(), f"{later}:3")


# --- undo -----------------------------------------------------------------------------


def test_undo_removes_the_files_of_this_command(at_home):
    assert at_home()[0] == 0
    before = snapshot(at_home.folder)
    status, out, _ = at_home("--undo", "--dry-run")
    assert status == 0
    assert "Nothing written" in out
    assert snapshot(at_home.folder) == before
    status, out, _ = at_home("--part", "controller", "--undo")
    assert status == 0
    assert "Changes for" in out
    gone = {settings.file_name(settings.CONTROLLER)}
    assert snapshot(at_home.folder).keys() == before.keys() - gone
    # What is decided for the node is the operator's.
    assert at_home("--undo")[0] == 0
    assert snapshot(at_home.folder).keys() == {"node.yaml"}
    refused(at_home("--undo"), "nothing to undo")


def test_undo_leaves_files_of_others(at_home):
    at_home.nova(FOREIGN)
    path = at_home.folder / settings.file_name(settings.COMPUTE)
    path.write_text("[pci]\n", encoding="ascii")
    assert at_home("--part", "common")[0] == 0
    record = at_home.folder / "nova-hpc-undo.json"
    record.write_text("of an earlier release", encoding="ascii")
    status, out, _ = at_home("--undo")
    assert status == 0
    assert f"{path} was not written by this command and stays." in out
    assert f"{record} stays: it has the former texts" in out
    assert snapshot(at_home.folder).keys() == {path.name, record.name, "node.yaml"}
    assert (at_home.home / "nova.conf").read_text() == FOREIGN


def test_a_declaration_that_cannot_be_written(at_home):
    """All or nothing: the include files are not written either."""
    status, out, err = at_home("--declaration", "/proc/nova-hpc/node.yaml")
    assert status == 2
    assert "/proc/nova-hpc/node.yaml cannot be written" in err
    assert "Wrote" not in out
    assert list(at_home.folder.iterdir()) == []


def test_a_declaration_by_which_nothing_is_offered(at_home):
    at_home.declare(left_out=[GPU, PF])
    assert at_home()[0] == 0
    assert contents(at_home.folder) == {}
    assert at_home()[1] == "Nothing to do.\n"
