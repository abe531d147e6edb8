# SPDX-License-Identifier: Apache-2.0
"""``configure`` and the roles: what tells them apart, and what it changes on a node in use."""

import json
import re

import pytest

from nova_hpc_tools.site import settings
from tests.unit.node_files import contents, declare_as_told, identities, put, refused

#: The default of a release that did not tell the fabrics apart.
BEFORE = (
    {"role": "gpu", "vendor_id": "10de", "class": "0302"},
    {"role": "vf", "vendor_id": "15b3", "class": "02*", "dev_type": "type-VF"},
    {"role": "pf", "vendor_id": "15b3", "class": "02*", "dev_type": "type-PF"},
)
#: What the documentation of that release advised to whoever has both fabrics.
SPLIT = (
    {"role": "ibvf", "vendor_id": "15b3", "class": "0207", "dev_type": "type-VF"},
    {"role": "ethvf", "vendor_id": "15b3", "class": "0200", "dev_type": "type-VF"},
)


@pytest.fixture(autouse=True)
def two_fabrics(machine):
    """An Ethernet adapter beside the one of InfiniBand; their functions have the same ids."""
    parts = {"0000:1b:00.0": ("0x1021", {}), "0000:1b:00.1": ("0x101e", {"physfn": 1})}
    for address, (product, more) in parts.items():
        folder = f"/sys/devices/pci0000:17/{address}"
        put(machine, f"{folder}/vendor", "0x15b3")
        put(machine, f"{folder}/device", product)
        put(machine, f"{folder}/class", "0x020000")
        put(machine, f"{folder}/numa_node", "0")
        path = machine / folder.lstrip("/")
        if more:
            (path / "physfn").symlink_to("../0000:1b:00.0")
            (path.parent / "0000:1b:00.0" / "virtfn0").symlink_to(f"../{address}")
        else:
            put(machine, f"{folder}/sriov_totalvfs", 8)
        (machine / "sys/bus/pci/devices" / address).symlink_to(
            f"../../../devices/pci0000:17/{address}"
        )
    return machine


@pytest.fixture
def earlier(at_home):
    """The files of a release whose default did not tell the fabrics apart."""

    def write():
        at_home.declare(roles=list(BEFORE), role_options=identities("ids", "gpu", "vf"))
        assert at_home()[0] == 0
        (at_home.folder / "node.yaml").unlink()
        for path in at_home.folder.glob("*.conf"):
            text = re.sub(r"\n\[hpc\]\n(device_role = .*\n)+", "", path.read_text("ascii"))
            path.write_text(text, encoding="ascii")
        assert "CUSTOM_" not in "".join(contents(at_home.folder).values())

    return write


def by_name(at_home):
    return {alias["name"]: alias for alias in map(json.loads, at_home.told("alias"))}


def by_role(at_home):
    entries = map(json.loads, at_home.told("device_spec"))
    return {entry["hpc_role"]: entry for entry in entries}


def test_fabrics_are_different_on_a_new_node(at_home):
    assert at_home()[0] == 0
    entries, aliases = by_role(at_home), by_name(at_home)
    assert sorted(entries) == sorted(aliases) == ["ethvf", "gpu", "vf"]
    for role, name in (("vf", "CUSTOM_HPC_VF"), ("ethvf", "CUSTOM_HPC_ETHVF")):
        assert entries[role]["resource_class"] == entries[role]["hpc_resource_class"] == name
        assert aliases[role]["resource_class"] == name
        assert aliases[role]["traits"] == entries[role]["traits"] == "CUSTOM_PCI_15B3_101E"
    assert at_home()[1] == "Nothing to do.\n"


def test_the_ports_know_better_than_the_class(at_home, machine):
    """An adapter whose ports speak Ethernet, whatever it calls itself."""
    pf = "/sys/devices/pci0000:17/0000:19:00.0/infiniband/mlx5_0"
    put(machine, f"{pf}/node_guid", "0002:c903:0041:2d20")
    put(machine, f"{pf}/ports/1/link_layer", "Ethernet")
    assert at_home()[0] == 0
    assert sorted(by_role(at_home)) == ["ethvf", "gpu"]


def test_the_interface_of_the_physical_function(at_home, machine):
    """The adapter that manages the machine, on the same fabric as another."""
    (machine / "sys/devices/pci0000:17/0000:1b:00.0/net/mgmt0").mkdir(parents=True)
    management = {"role": "mgmt", "vendor_id": "15b3", "interface": "mgmt*"}
    at_home.declare(roles=[management, {"role": "vf", "vendor_id": "15b3"}])
    assert at_home()[0] == 0
    assert by_role(at_home)["mgmt"]["address"] == "0000:1b:00.0"
    assert by_role(at_home)["vf"]["address"] == "0000:19:00.0"


def test_a_node_that_is_configured_keeps_its_classes_and_roles(at_home, earlier):
    earlier()
    before = contents(at_home.folder)
    status, _, err = at_home()
    assert status == 0
    assert contents(at_home.folder) == before
    assert at_home()[1] == "Nothing to do.\n"
    assert "The role vf stays: a node that is configured now has ethvf for these devices" in err


def test_a_new_node_of_an_old_cloud(at_home, earlier, machine):
    """Its devices are asked for by the aliases that there are."""
    earlier()
    compute = at_home.folder / settings.file_name(settings.COMPUTE)
    compute.unlink()
    assert at_home()[0] == 0
    gpu = by_role(at_home)["gpu"]
    assert "resource_class" not in gpu
    assert "traits" not in gpu


def test_devices_of_a_cloud_without_this_project(at_home):
    """Servers may have them: only traits can be added."""
    at_home.nova('[pci]\ndevice_spec = {"vendor_id": "15b3", "product_id": "101e"}\n')
    answer = at_home("--replace", "0000:18:00.0")
    refused(answer, "the roles ethvf (0000:1b:00.0) and vf (0000:19:00.0) cannot be distinguished")
    # What it says is what has to be written.
    line = re.search(r"otherwise by trait \((.*)\)", answer[2])[1]
    head = "schema: nova-hpc/node\nversion: 1\n"
    (at_home.folder / "node.yaml").write_text(f"{head}{line}\n", encoding="utf-8")
    status, _, err = at_home("--replace", "0000:18:00.0")
    assert status == 2
    assert "Nova takes this entry for 0000:19:00.1, 0000:1b:00.1, and not" in err
    at_home.nova("")
    assert at_home()[0] == 0
    assert "resource_class" not in by_role(at_home)["ethvf"]
    assert by_name(at_home)["ethvf"]["traits"] == "CUSTOM_HPC_ROLE_ETHVF"


def test_roles_that_have_the_same_ids_are_refused_by_name(at_home, earlier):
    earlier()
    before = contents(at_home.folder)
    at_home.declare(roles=list(SPLIT))
    answer = at_home()
    refused(
        answer, "the roles ethvf (0000:1b:00.0) and ibvf (0000:19:00.0) cannot be distinguished"
    )
    assert "role_options: {ethvf: {identity: trait}, ibvf: {identity: trait}}" in answer[2]
    assert contents(at_home.folder) == before


def test_traits_tell_them_apart_while_servers_have_devices(at_home, earlier):
    earlier()
    at_home.declare(roles=[BEFORE[0], *SPLIT], role_options=identities("trait", "ibvf", "ethvf"))
    status, _, err = at_home()
    assert status == 0
    entries, aliases = by_role(at_home), by_name(at_home)
    for role in ("ibvf", "ethvf"):
        trait = f"CUSTOM_HPC_ROLE_{role.upper()}"
        assert "resource_class" not in entries[role]
        assert entries[role]["traits"] == entries[role]["hpc_traits"] == trait
        assert aliases[role] == {
            "name": role,
            "vendor_id": "15b3",
            "product_id": "101e",
            "traits": trait,
            "device_type": "type-VF",
        }
    # Flavors name it, so it is not taken away.
    assert "traits" not in aliases["vf"]
    assert "The alias vf requests devices of the roles ethvf and ibvf" in err
    # From now on this is how the node is.
    status, out, _ = at_home()
    assert (status, out) == (0, "Nothing to do.\n")


def test_the_class_of_a_device_in_use_is_not_changed_in_passing(at_home, earlier):
    earlier()
    at_home.declare(role_options=identities("class", "gpu"))
    answer = at_home("--replace", "gpu")
    refused(answer, "0000:18:00.0: resource_class is CUSTOM_PCI_10DE_2330 and would be CUSTOM_HPC")
    assert "nova-compute does not start with that (InventoryInUse)" in answer[2]
    assert "role_options: {gpu: {identity: trait}} in the declaration does without" in answer[2]
    assert at_home("--replace", "gpu", "--replace", "0000:18:00.0")[0] == 0
    assert by_role(at_home)["gpu"]["resource_class"] == "CUSTOM_HPC_GPU"
    assert at_home()[1] == "Nothing to do.\n"


def test_two_roles_below_one_physical_function(at_home, machine):
    folder = machine / "sys/devices/pci0000:17"
    put(machine, "/sys/devices/pci0000:17/0000:1b:00.2/vendor", "0x15b3")
    put(machine, "/sys/devices/pci0000:17/0000:1b:00.2/device", "0x101e")
    put(machine, "/sys/devices/pci0000:17/0000:1b:00.2/class", "0x020700")
    (folder / "0000:1b:00.2/physfn").symlink_to("../0000:1b:00.0")
    (folder / "0000:1b:00.0/virtfn1").symlink_to("../0000:1b:00.2")
    (machine / "sys/bus/pci/devices/0000:1b:00.2").symlink_to(
        "../../../devices/pci0000:17/0000:1b:00.2"
    )
    at_home.declare(roles=list(SPLIT))
    refused(at_home(), "0000:1b:00.0 with the roles ethvf and ibvf")
    assert contents(at_home.folder) == {}
    at_home.declare(left_out=["0000:1b:00.0"])
    assert at_home()[0] == 0


def test_devices_of_ports(at_home):
    """Their physical network is their role: no class, no trait, no alias."""
    at_home.declare(role_options={"ethvf": {"physical_network": "physnet1"}})
    assert at_home()[0] == 0
    assert sorted(by_name(at_home)) == ["gpu", "vf"]
    assert by_role(at_home)["ethvf"] == {
        "vendor_id": "15b3",
        "product_id": "101e",
        "address": "0000:1b:00.0",
        "physical_network": "physnet1",
        "hpc_tags": "1",
        "hpc_role": "ethvf",
        "hpc_root": "pci0000:17",
        "hpc_numa": "0",
        "hpc_socket": "0",
    }
    # As it is configured from now on.
    assert at_home()[1] == "Nothing to do.\n"
    at_home.declare(role_options={"ethvf": {"physical_network": "physnet2"}})
    refused(at_home(), "0000:1b:00.0: physical_network is physnet1 and would be physnet2")


def test_devices_that_an_operator_has_for_ports_are_in_no_alias(at_home):
    entry = {"vendor_id": "15b3", "address": "0000:1b:00.0", "physical_network": "physnet1"}
    at_home.nova(f"[pci]\ndevice_spec = {json.dumps(entry)}\n")
    declare_as_told(at_home, at_home("--replace", "device_spec")[2])
    at_home.nova("")
    assert at_home()[0] == 0
    assert sorted(by_name(at_home)) == ["gpu", "vf"]
    assert by_role(at_home)["ethvf"]["physical_network"] == "physnet1"
    assert by_role(at_home)["vf"]["resource_class"] == "CUSTOM_HPC_VF"


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        (
            {"role_options": {role: {"resource_class": "CUSTOM_X"} for role in ("vf", "ethvf")}},
            "the roles ethvf and vf would have the same resource class CUSTOM_X: rename one, or "
            "declare a class of its own (role_options: {ethvf: {resource_class: CUSTOM_X_2}})",
        ),
        (
            {
                "roles": [
                    {"role": "a-b", "vendor_id": "15b3", "link_layer": "Ethernet"},
                    {"role": "A_B", "vendor_id": "15b3"},
                ]
            },
            "the roles A_B and a-b would have the same resource class CUSTOM_HPC_A_B",
        ),
        (
            {"roles": [{"role": "a", "link_layer": "Omni-Path"}]},
            "'link_layer' is 'Omni-Path', not InfiniBand or Ethernet",
        ),
        ({"roles": [{"role": "a", "interface": "a b"}]}, "'interface' is 'a b'"),
        (
            {"role_options": {role: {"physical_network": "a"} for role in ("vf", "ethvf")}},
            "the roles ethvf and vf would have the same physical network a",
        ),
    ],
)
def test_declarations_by_which_roles_cannot_be_told_apart(at_home, wishes, why):
    at_home.declare(**wishes)
    refused(at_home(), why)
    assert contents(at_home.folder) == {}


def test_what_an_entry_of_stock_nova_means_is_said(at_home):
    at_home.nova('[pci]\ndevice_spec = {"vendor_id": "10de", "address": "0000:18:00.0"}\n')
    words = ("--part", "compute", "--part", "common", "--replace", "device_spec")
    first = "Nova takes this entry for 0000:18:00.0, and not the one with tags"
    status, _, err = at_home(*words)
    assert status == 2
    assert err.count("(role_options: {gpu: {identity: ids}})") == 1
    assert "The role vf goes" not in err
    assert first in err
    # Decided, so it is not said again; the entry still comes first.
    assert declare_as_told(at_home, err) == {"role_options": identities("ids", "gpu")}
    status, _, err = at_home(*words)
    assert (status, "role_options" in err, first in err) == (2, False, True)
    at_home.nova("")
    assert at_home(*words)[0] == 0
    assert "resource_class" not in by_role(at_home)["gpu"]
