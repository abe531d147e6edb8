# SPDX-License-Identifier: Apache-2.0
"""What a host does at its start is what the node offers then, on every machine there is.

The files are read by a start of their own (:mod:`tests.unit.adopt.booting`), and what is
offered after it is asked of the node that has started, not of the plan.
"""

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.model import BridgeKind, address_key
from nova_hpc_tools.adopt import at_boot, host, host_files
from nova_hpc_tools.site import declared_vfs, device_spec, lstopo
from nova_hpc_tools.site.declaration import EVERY, Declaration
from nova_hpc_tools.site.kernel_options import KernelOptions
from nova_hpc_tools.wire.node_declaration import NodeWishes
from tests.nodes.catalogue import NODES
from tests.unit.adopt import machines
from tests.unit.adopt.booting import Booting, kernel_places
from tests.unit.adopt.machines import adapter, gpu, node

OWN = Path(__file__).parents[2] / "data/topology/virtual-node.tar.xz"
CAPTURES = ("32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2", "40intel64-2g2n4c+pcilocality.tar.bz2",
            "64amd64-4s2n4ca2co.tar.bz2", "nvidiagpunumanodes.tar.bz2",
            "nvidiaDGX2.xml", "16intel64-manyVFs.xml")  # fmt: skip
REPORTS = ("h200", "otherfabrics", "graphics", "graphics-vfio")
TABLES = (
    roles.parse_roles(DEFAULT_ROLES),
    roles.parse_roles(
        (
            '{"role": "gpu", "class": "03*"}',
            '{"role": "gpu", "class": "1200"}',
            '{"role": "disk", "class": "0108"}',
            '{"role": "vf", "class": "02*", "dev_type": "type-VF"}',
            '{"role": "pf", "class": "02*"}',
        )
    ),
)
#: Words of notes that say that less is done than is offered.
VFIO = {"vfio-pci", "nvgrace_gpu_vfio_pci", "mlx5_vfio_pci"}
SPARED = ("so its driver stays", "none are switched on", "they keep its driver", "goes on doing so")


@pytest.fixture(scope="module")
def read(synthetic, tmp_path_factory):
    """Gives a node by its name."""
    known = {}

    def one(name):
        if name in NODES:
            return sysfs.read_sysfs_node(synthetic(name))
        data = os.environ.get("NOVA_HPC_TEST_DATA")
        if name != OWN.name and not data:
            pytest.skip("NOVA_HPC_TEST_DATA names no folder of captures")
        folder = tmp_path_factory.mktemp("capture")
        if name in REPORTS:
            script = Path(data, "reports/node/nodes.py")
            root = folder / "node"
            place = str(Path(__file__).parents[3])
            subprocess.run(
                [sys.executable, script, name, root],
                check=True,
                env={**os.environ, "PYTHONPATH": place},
            )
            return sysfs.read_sysfs_node(root)
        path = OWN if name == OWN.name else Path(data, "hwloc", name)
        if path.suffix == ".xml":
            return lstopo.read_lstopo_file(path)
        subprocess.run(["tar", "-xf", path, "-C", folder], check=True)
        tops = [folder, *folder.iterdir()]
        return sysfs.read_sysfs_node(next(top for top in tops if (top / "sys").is_dir()))

    def cached(name):
        if name not in known:
            known[name] = one(name)
        return known[name]

    return cached


@st.composite
def worlds(draw, found):
    """What an operator has declared for a node and what its host uses."""
    places = [each.address for each in found.functions if not each.is_bridge]
    adapters = [each for each in found.functions if each.dev_type == "type-PF"]
    some = st.lists(st.sampled_from(places), max_size=6, unique=True) if places else st.just([])
    future = [
        address
        for each in adapters
        for address in kernel_places(found)(each, min(4, each.total_vfs or 0))
    ]
    away = st.lists(st.sampled_from(future), max_size=3) if future else st.just([])
    counts = {}
    for each in adapters:
        if draw(st.booleans()):
            counts[each.address] = draw(st.integers(0, min(9, (each.total_vfs or 0) + 1)))
    if draw(st.booleans()):
        counts["pf"] = draw(st.integers(0, 4))
    pfs = [each.address for each in adapters]
    whole = draw(
        st.just([])
        | st.just([EVERY])
        | (st.lists(st.sampled_from(pfs), max_size=2) if pfs else st.just([]))
    )
    return (
        draw(st.sampled_from(TABLES)),
        NodeWishes(vfs=counts),
        Declaration(
            whole=frozenset(whole),
            left_out=frozenset([*draw(some), *draw(away)]),
            withheld=dict.fromkeys([*draw(some), *draw(away)], "it is part of a bond"),
            networks=draw(st.sampled_from([{}, {}, {"vf": "physnet1"}])),
            switches=draw(st.booleans()),
        ),
        draw(some),
    )


def after(booting):
    """The node that has started."""
    found = []
    for each in booting.devices.values():
        family = [
            one.address
            for one in booting.devices.values()
            if one.function.physical_function == each.address
        ]
        function = attrs.evolve(
            each.function, virtual_functions=tuple(sorted(family, key=address_key))
        )
        if function.physical_function and function.product_id is None:
            function = attrs.evolve(function, product_id="beef")
        found.append(function)
    ordered = tuple(sorted(found, key=lambda each: address_key(each.address)))
    return attrs.evolve(booting.node, functions=ordered)


def check(found, table, wishes, declaration, used=(), hidden=(1, 1), natives=None):
    """Start the node with the files and compare with what it offers then."""
    boot = at_boot.foresee_boot(
        found, table, wishes, whole=declaration.whole, left_out=declaration.left_out
    )
    # As configure does it: an adapter with declared virtual functions is not given whole.
    declaration = attrs.evolve(
        declaration, vfs=declared_vfs.list_declared_vfs(wishes, table, boot.node)
    )
    spec = device_spec.build_device_spec(boot.node, table, declaration)
    beside = host.companions_of_devices(boot, spec, table, declaration)
    plan = host.plan_host_start(
        boot,
        spec,
        table,
        wishes,
        declaration,
        never=frozenset(),
        used={each: "somebody" for each in beside if each in used},
        iommu="amd",
        kernel=KernelOptions(),
    )
    files = {
        each.path: each.text
        for each in host_files.build_host_files(plan, "grub", "initramfs-tools")
    }
    places = kernel_places(found, hidden)
    # Whoever has switched virtual functions on does so again where nobody has declared any.
    others = {
        each: switched.count for each, switched in boot.switched.items() if not switched.declared
    }
    started = [
        Booting(found, places, files, early, natives or {}, others).run() for early in (True, False)
    ]
    for booting in started:
        compare(booting, plan, table, declaration, used)
    return plan, files, started


def compare(booting, plan, table, declaration, used):
    now = after(booting)
    spec = device_spec.build_device_spec(now, table, declaration)
    offer = {each for one in spec.offers if not one.network for each in one.functions}
    ports = {each for one in spec.offers if one.network for each in one.functions}
    spared = {note.split(": ")[0] for note in plan.notes if any(map(note.__contains__, SPARED))}
    spared |= {each.address for each in now.functions if each.physical_function in spared}
    slots = {
        (each.partition(".")[0], now.function(each).iommu_group)
        for each in offer - spared
        if now.function(each).iommu_group is not None and not now.function(each).physical_function
    }
    beside = {
        each.address
        for each in now.functions
        if (each.address.partition(".")[0], each.iommu_group) in slots
        and not each.is_bridge
        and each.dev_type == "type-PCI"
        and not each.class_code.startswith(("01", "02", "0500", "0501", "0502"))
        and table.role_of(each, now) is None
        and each.address not in declaration.left_out
        and each.address not in used
    }
    # Nothing else is named; each is bound; and it is exactly the offer.
    assert booting.touched <= offer | beside
    assert offer - spared <= booting.touched
    assert beside <= booting.touched
    assert booting.on(VFIO) == booting.touched
    for each in booting.touched:
        # A variant that the kernel has for the ids, or that is bound now, is the driver.
        known = booting.node.function(each)
        assert known is None or booting.devices[each].driver == known.guest_driver
    for each in booting.devices.values():
        if each.address not in booting.touched:
            assert each.driver == each.native, f"{each.address} has lost its driver"
    parents = {now.function(each).physical_function for each in offer | ports}
    declared = {each.address for each in plan.adapters}
    assert booting.switched <= parents | declared


ALL = [*NODES, OWN.name, *CAPTURES, *REPORTS]


@pytest.mark.parametrize("name", ALL)
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_every_machine_starts_with_exactly_its_offer(read, name, data):
    found = read(name)
    world = data.draw(worlds(found))
    check(found, *world, hidden=data.draw(st.sampled_from([(1, 1), (16, 1), (128, 2)])))


@given(data=st.data())
def test_any_machine_starts_with_exactly_its_offer(data):
    found = data.draw(machines.machines())
    check(found, *data.draw(worlds(found)))


# --- single cases -------------------------------------------------------------------------

PF = "0000:40:00.0"
VFS = [f"0000:40:00.{number}" for number in range(1, 5)]


def one(declaration, vfs=VFS, counts=None, **values):
    found = node(gpu("0000:10:00.0"), *adapter(PF, vfs, **values))
    return check(found, TABLES[1], NodeWishes(vfs=counts or {}), declaration)


def test_two_of_the_hosts_bond_keep_their_driver():
    """Before: sriov_drivers_autoprobe=0 and a rule by the adapter took all four."""
    bond = dict.fromkeys(VFS[2:], "it is part of a bond")
    _, files, started = one(Declaration(withheld=bond))
    text = files[host_files.UDEV]
    assert "autoprobe" not in text
    assert not any(each in text for each in VFS[2:])
    assert {*VFS[:2]} <= started[0].touched
    assert started[0].devices[VFS[3]].driver == "native"


def test_one_that_is_left_out_keeps_its_driver():
    _, files, started = one(Declaration(left_out=frozenset({VFS[0]})))
    assert VFS[0] not in files[host_files.UDEV]
    assert started[0].devices[VFS[0]].driver == "native"


def test_all_of_them_are_bound_by_one_rule():
    _, files, _ = one(Declaration())
    text = files[host_files.UDEV]
    assert 'sriov_drivers_autoprobe}="0"' in text
    assert not any(each in text for each in VFS)


def test_an_adapter_of_which_none_is_offered_is_not_named():
    """Nobody has declared a number, and whoever switches them on now will do so again."""
    _, files, _ = one(Declaration(left_out=frozenset(VFS)))
    assert PF not in files[host_files.UDEV]


def test_the_virtual_functions_of_a_gpu_that_is_never_given():
    """Before: no line at all."""
    never = {PF: "its reset hangs"}
    found = node(*adapter(PF, VFS, product="74a1", vf_product="74b5"))
    card = tuple(attrs.evolve(each, class_code="120000") for each in found.functions)
    plan, _, started = check(
        attrs.evolve(found, functions=card), TABLES[1], NodeWishes(), Declaration(withheld=never)
    )
    assert [each.address for each in plan.adapters] == [PF]
    assert started[0].touched == {*VFS}


def with_registers(offset, stride, *others):
    """An adapter without virtual functions that says where they will be."""
    found = adapter(PF, ())[0]
    told = attrs.evolve(found, vf_offset=offset, vf_stride=stride, vf_product="101e")
    return node(told, *others)


def test_those_that_are_not_there_yet_are_found_by_offset_and_stride():
    first, second = "0000:40:10.0", "0000:40:10.2"
    _, files, started = check(
        with_registers(128, 2),
        TABLES[1],
        NodeWishes(vfs={PF: 3}),
        Declaration(left_out=frozenset({second})),
    )
    assert f'KERNEL=="{first}"' in files[host_files.UDEV]
    assert second not in files[host_files.UDEV]
    assert started[0].devices[second].driver == "native"
    # More than are there now: those that are there say where the others will be.
    _, files, started = one(Declaration(withheld={VFS[1]: "a bond"}), vfs=VFS[:2], counts={PF: 4})
    assert started[0].touched >= {VFS[0], VFS[2], VFS[3]}
    assert started[0].devices[VFS[1]].driver == "native"


def test_where_nobody_can_tell_none_is_bound_and_a_note_says_so():
    plan, files, started = one(
        Declaration(left_out=frozenset({"0000:40:00.2"})), vfs=(), counts={PF: 3}
    )
    (said,) = [note for note in plan.notes if note.startswith(PF)]
    assert "they keep its driver. Run the command again" in said
    assert 'sriov_numvfs}="3"' in files[host_files.UDEV]
    assert started[0].touched == {"0000:10:00.0"}
    # Nothing of this node is held back, so all of them are for servers wherever they are.
    plan, files, started = one(Declaration(), vfs=(), counts={PF: 3})
    assert len(started[0].touched) == 4


@pytest.mark.parametrize("present", [0, 2])
@pytest.mark.parametrize("joined", [True, False])
def test_new_virtual_functions_join_the_group_of_a_port_without_acs(present, joined):
    """Before: none had a group, so those of one adapter seemed to be in two, and none was bound."""
    port = gpu("0000:3f:00.0", 5, class_code="060400", bridge=BridgeKind.ROOT_PORT)
    apart = [20 + number for number in range(present)]
    family = adapter(
        PF,
        VFS[:present],
        [5] * present if joined else apart,
        group=5 if joined else 6,
        vf_offset=1,
        vf_stride=1,
        path=(port.address,),
    )
    family[0] = attrs.evolve(family[0], vf_product="101e")
    found = node(port, *family)
    boot = at_boot.foresee_boot(found, TABLES[1], NodeWishes(vfs={PF: 4}), whole=(), left_out=())
    groups = [boot.node.function(each).iommu_group for each in VFS]
    assert groups == ([5] * 4 if joined else [*apart, *[None] * (4 - present)])
    _, _, started = check(found, TABLES[1], NodeWishes(vfs={PF: 4}), Declaration())
    assert started[0].touched == {*VFS}


def test_where_somebody_else_is_no_virtual_function_is_expected():
    found = with_registers(0x100, 1, gpu("0000:41:00.0"))
    boot = at_boot.foresee_boot(
        found, TABLES[1], NodeWishes(vfs={PF: 2}), whole=(), left_out=frozenset()
    )
    assert boot.switched[PF].unplaced
    assert boot.node.function("0000:41:00.0") == found.function("0000:41:00.0")


def companion(code, **values):
    card = gpu("0000:10:00.0", 7)
    return attrs.evolve(card, address="0000:10:00.1", class_code=code, product_id="22ba", **values)


@pytest.mark.parametrize(
    ("code", "declared", "used", "goes"),
    [
        ("040300", Declaration(), (), True),
        ("0c0330", Declaration(), (), True),
        ("040300", Declaration(left_out=frozenset({"0000:10:00.1"})), (), False),
        ("040300", Declaration(), ("0000:10:00.1",), False),
        # The other port of a card may be the host's way into its network.
        ("020000", Declaration(), (), False),
        ("010802", Declaration(), (), False),
        ("050210", Declaration(), (), False),
        # A memory controller, as of an FPGA, keeps no data.
        ("058000", Declaration(), (), True),
    ],
)
def test_what_goes_with_a_card(code, declared, used, goes):
    found = node(gpu("0000:10:00.0", 7), companion(code))
    plan, _, started = check(found, TABLES[0], NodeWishes(), declared, used)
    assert ("0000:10:00.1" in started[0].touched) is goes
    assert any("stays with the host" in note for note in plan.notes) is bool(used)
