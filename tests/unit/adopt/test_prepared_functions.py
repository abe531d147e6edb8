# SPDX-License-Identifier: Apache-2.0
"""What a prepared host's start does to its functions, one by one, and by which drivers."""

import dataclasses
import os
import re
import shutil
import subprocess

import attrs
import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.vfio import Vfio
from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.site import spec_entries
from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.unit.adopt.booting import Booting, kernel_places
from tests.unit.adopt.prepared_host import rules, state
from tests.unit.node_files import put

UDEV = host_files.UDEV


def bond(root, *addresses):
    """Make virtual functions part of the host's bond."""
    for number, address in enumerate(addresses):
        folder = (root / "sys/bus/pci/devices" / address).resolve()
        driver = folder / "driver"
        driver.unlink(missing_ok=True)
        shutil.rmtree(folder / "vfio-dev", ignore_errors=True)
        driver.symlink_to("../../../../bus/pci/drivers/mlx5_core")
        name = f"eth{number}"
        put(folder, f"net/{name}/flags", "0x1903")
        put(folder, f"net/{name}/type", "1")
        put(folder, f"net/{name}/upper_bond0/address", "02:00:00:00:00:01")


def started(files, root):
    """The host after a start with the files."""
    texts = {name: text for name, (text, _) in files.items()}
    node = sysfs.read_sysfs_node(root)
    return Booting(node, kernel_places(node), texts, early=True).run()


@pytest.fixture
def both(prepare, tmp_path):
    """Declares, runs configure and then prepare, on a node that may be changed."""

    def run(root, debian, **wishes):
        if wishes:
            prepare.configure.declare(**wishes)
        status, _, err = prepare.configure("--root", root)
        assert status == 0, err
        declaration = prepare.configure.folder / "node.yaml"
        said = ["--declaration", declaration] if declaration.exists() else []
        status, out, more = prepare("--write", debian, *said, root=root)
        assert (status, more) == (0, "")
        return started(state(debian), root), err, out

    return run


def test_the_hosts_bond_keeps_its_virtual_functions(both, debian, tmp_path):
    """Two of four are part of a bond: configure leaves them out, and so does the start."""
    root = write(NODES["two-socket"], tmp_path / "node")
    mine, others = ["0000:b1:00.2", "0000:b1:00.3"], ["0000:b1:00.4", "0000:b1:00.5"]
    bond(root, *others)
    host, said, _ = both(root, debian)
    for each in others:
        assert re.search(f"Not offered: .*{each}.* \\(ethvf\\): the host uses its netw", said)
        assert host.devices[each].driver == "native"
        assert each not in (debian / UDEV).read_text()
    assert {*mine} <= host.touched
    assert "autoprobe" not in (debian / UDEV).read_text()
    assert "0000:b1:00.0" not in host.touched


def test_one_virtual_function_that_is_left_out_keeps_its_driver(both, debian, tmp_path):
    root = write(NODES["two-socket"], tmp_path / "node")
    host, _, _ = both(root, debian, left_out=["0000:b1:00.3"])
    assert host.devices["0000:b1:00.3"].driver == "native"
    assert {"0000:b1:00.2", "0000:b1:00.4", "0000:b1:00.5"} <= host.touched


def test_an_adapter_whose_virtual_functions_are_all_the_hosts_is_not_given(both, debian, tmp_path):
    """Before, configure offered the adapter itself, with the bond on it."""
    root = write(NODES["two-socket"], tmp_path / "node")
    bond(root, *(f"0000:b1:00.{number}" for number in range(2, 6)))
    host, said, _ = both(root, debian)
    assert "Not offered: 0000:b1:00.0 (ethpf): its virtual function 0000:b1:00.2 is not" in said
    assert not {f"0000:b1:00.{number}" for number in (0, 2, 3, 4, 5)} & host.touched
    assert "0000:b1:00.0" not in (debian / UDEV).read_text()


def test_the_virtual_functions_of_a_card_that_is_never_given(both, debian, tmp_path):
    """An MI300X is never given as a whole; before, its virtual functions got no line either."""
    root = write(NODES["mi300x"], tmp_path / "node")
    host, said, _ = both(root, debian, vfs={"0000:06:00.0": 4})
    assert "Not offered: 0000:06:00.0, 0000:09:00.0, " in said
    assert " (gpu): an MI300X as a whole" in said
    (text,) = [each for each in rules((debian / UDEV).read_text()) if is_bind(each, "06:00.0")]
    assert 'ATTR{driver_override}="vfio-pci"' in text
    mine = {f"0000:06:00.{number}" for number in range(1, 5)}
    assert mine <= host.touched
    assert host.devices["0000:06:00.0"].driver == "native"
    assert "0000:09:00.0" not in (debian / UDEV).read_text()


def is_bind(terms, name):
    return any(f"PCI_SLOT_NAME=0000:{name}" in each for each in terms)


@pytest.mark.parametrize("name", NODES)
def test_the_start_follows_what_configure_writes(both, prepare, debian, tmp_path, name):
    """Entries of device_spec, as they are written, against the drivers after the start."""
    root = write(NODES[name], tmp_path / "node")
    found = sysfs.read_sysfs_node(root)
    virtual = [each for each in found.functions if each.physical_function][:3]
    bond(root, *(each.address for each in virtual[:1]))
    left_out = [each.address for each in virtual[2:]]
    host, _, said = both(root, debian, left_out=left_out, offer_switches=False)
    entries = [spec_entries.read_spec_entry(text) for text in prepare.configure.told("device_spec")]
    offered = {
        each.address
        for each in found.functions
        if any(spec_entries.entry_matches(entry, each) for entry in entries)
    }
    bare = set(re.findall(r"^# (\S+): the declaration does not set", said, re.MULTILINE))
    # NVIDIA's driver has its vGPUs and gives them itself.
    vgpus = {each.address for each in found.functions if each.vfio is Vfio.VENDOR}
    assert host.touched == host.on(DRIVERS) == offered - bare - vgpus


# --- other hardware -----------------------------------------------------------------------

GPU, PF = "0000:18:00.0", "0000:19:00.0"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("address", [GPU, PF])
@pytest.mark.parametrize("key", ["vendor_id", "product_id"])
def test_other_hardware_at_the_address_keeps_its_driver(both, machine, debian, address, key, whole):
    """Before: vfio-pci took whatever was at the address at the next start, and the host's disk."""
    both(machine, debian, **({"whole_pf": [PF]} if whole else {"vfs": {PF: 1}}))
    texts = {name: text for name, (text, _) in state(debian).items()}
    before = sysfs.read_sysfs_node(machine)
    exchanged = tuple(
        attrs.evolve(each, **{key: "a808"}) if each.address == address else each
        for each in before.functions
    )
    for early in (True, False):
        same = Booting(before, kernel_places(before), texts, early).run()
        other = attrs.evolve(before, functions=exchanged)
        host = Booting(other, kernel_places(other), texts, early).run()
        touched = same.touched | same.switched
        assert len(touched) == (1 if whole else 2) + 1
        assert not {each for each in (address,) if each not in touched}
        family = {each.address for each in before.functions if each.physical_function == address}
        assert host.touched | host.switched == touched - {address} - family
        assert host.devices[address].driver == "native"


@pytest.mark.parametrize("early", [True, False])
def test_virtual_functions_of_another_adapter_keep_their_driver(both, machine, debian, early):
    """Somebody switches them on, of an adapter that is no longer the one that was meant."""
    both(machine, debian, vfs={PF: 1})
    texts = {name: text for name, (text, _) in state(debian).items()}
    before = sysfs.read_sysfs_node(machine)
    other = attrs.evolve(
        before,
        functions=tuple(
            attrs.evolve(each, product_id="101b") if each.address == PF else each
            for each in before.functions
        ),
    )
    host = Booting(other, kernel_places(other), texts, early, others={PF: 1}).run()
    assert host.touched == {GPU}
    assert host.devices["0000:19:00.1"].driver == "native"


@pytest.mark.parametrize(
    ("vendor", "product", "driver"),
    [
        ("0x10de", "0x2330", "vfio-pci\n"),
        ("0x144d", "0x2330", ""),
        ("0x10de", "0x2331", ""),
        (None, None, None),
    ],
)
def test_the_script_of_the_initramfs_looks_at_both_ids(
    both, machine, debian, tmp_path, vendor, product, driver
):
    both(machine, debian)
    sys = tmp_path / "sys"
    folder = sys / "bus/pci/devices" / GPU
    if vendor is not None:
        for name, text in (("vendor", vendor), ("device", product), ("driver_override", "")):
            put(folder, name, text)
        (folder / "driver_override").write_text("")
    tools = tmp_path / "tools"
    put(tools, "modprobe", '#!/bin/sh\necho "$@"')
    (tools / "modprobe").chmod(0o755)
    script = (debian / host_files.SCRIPT).read_text().replace("/sys/", f"{sys}/")
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("-q -b vfio-pci\n", "")
    if driver is None:
        assert not folder.exists()
    else:
        assert (folder / "driver_override").read_text() == driver


def test_an_adapter_whose_ids_cannot_be_read_is_left_alone(prepare, machine, debian):
    (machine / f"sys/devices/pci0000:17/{PF}/device").unlink()
    prepare.configure.declare(vfs={PF: 1})
    _, out, _ = prepare("--write", debian)
    assert f"# {PF}: its vendor and product cannot be read: it is left alone." in out
    assert PF not in (debian / UDEV).read_text()


# --- drivers ------------------------------------------------------------------------------

VARIANT = "nvgrace_gpu_vfio_pci"
DRIVERS = {"vfio-pci", VARIANT, "mlx5_vfio_pci"}


def test_a_variant_that_the_kernel_has_is_written(both, debian, tmp_path):
    """Before, the rules forced vfio-pci, by which a Grace GPU shows its guest no memory."""
    root = write(NODES["gh200-host"], tmp_path / "node")
    host, said, _ = both(root, debian)
    gpus = ["0009:01:00.0", "0019:01:00.0"]
    assert [host.devices[each].driver for each in gpus] == [VARIANT, VARIANT]
    files = {name: text for name, (text, _) in state(debian).items()}
    assert f'KERNEL=="{gpus[0]}", ATTR{{vendor}}=="0x10de"' in files[UDEV]
    assert f'DRIVER!="{VARIANT}"' in files[UDEV]
    modules = ["vfio-pci", "mlx5_vfio_pci", VARIANT, "vfio_iommu_type1"]
    assert files[host_files.MODULES].splitlines()[1:] == modules
    assert f"manual_add_modules {' '.join(modules)}\n" in files[host_files.HOOK]
    assert re.search(rf"^override {gpus[0]} .* {VARIANT}$", files[host_files.SCRIPT], re.MULTILINE)
    assert f"modprobe -q -b {VARIANT}" in files[host_files.SCRIPT]
    # What configure advises until then is the same driver.
    assert f"withheld until bound to {VARIANT}. driverctl set-override {gpus[0]} {VARIANT}" in said


def test_a_variant_that_is_bound_is_kept(both, debian, tmp_path):
    """No modules.alias is to be seen, and yet the kernel has bound it."""
    root = write(NODES["gh200"], tmp_path / "node")
    host, said, _ = both(root, debian)
    assert host.devices["0009:01:00.0"].driver == VARIANT
    assert "driverctl" not in said


def test_vgpus_stay_with_their_vendors_driver(both, debian, tmp_path):
    """Before: withheld, with the advice to take the driver of all of them away."""
    root = write(NODES["vgpu"], tmp_path / "node")
    host, said, out = both(root, debian)
    text = (debian / UDEV).read_text()
    assert "0000:17:" not in text
    assert "driverctl" not in said
    assert "0000:17:00.0: its driver nvidia gives its virtual functions to guests itself" in out
    assert host.devices["0000:65:00.0"].driver == "vfio-pci"
    assert {"mlx5_vfio_pci"} == {host.devices[f"0000:81:00.{n}"].driver for n in range(1, 8)}


def test_a_vgpu_of_which_the_kernel_says_nothing_is_not_taken_away_by_advice(prepare, tmp_path):
    """An older kernel, or one without a type yet: the advice leaves them where they are."""
    root = write(dataclasses.replace(NODES["vgpu"], vfio=("vfio-pci",)), tmp_path / "node")
    status, _, said = prepare.configure("--root", root)
    assert status == 0
    assert "bound to nvidia, withheld until bound to vfio-pci. If they are vGPUs" in said
    assert "driverctl set-override 0000:17" not in said
