# SPDX-License-Identifier: Apache-2.0
"""Storage devices: none reaches a server unless a cleaner proves that its data are erased."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.tenancy.forbidden import ForbiddenDevices
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.stage.erasers import find_erasers
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError
from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.model import Node
from nova_hpc_tools.site import device_spec, lstopo
from nova_hpc_tools.site.declaration import EVERY, Declaration
from nova_hpc_tools.site.layout_cures import render_cure
from nova_hpc_tools.site.storage_findings import find_kept_storage
from tests.nodes.catalogue import NODES
from tests.nodes.reported import REPORTED
from tests.nodes.write import write
from tests.unit.tenancy.hygiene_node import owners_of

ARCHIVES = (
    "32em64t-2n8c+dax+nvme+mic+dimms",
    "40intel64-2g2n4c+pcilocality",
    "64amd64-4s2n4ca2co",
    "nvidiagpunumanodes",
)
XMLS = ("nvidiaDGX2.xml", "16intel64-manyVFs.xml")
#: Names and patterns of roles that an operator may write.
NAMES = ("gpu", "vf", "pf", "disk", "nvme", "nvme-144d")
PATTERNS = st.fixed_dictionaries(
    {
        "role": st.sampled_from(NAMES),
        "class": st.sampled_from(["*", "01*", "0108", "0104", "0?0*"]),
    },
    optional={
        "vendor_id": st.sampled_from(["*", "144d", "8086", "1???"]),
        "dev_type": st.sampled_from(["*", "type-PCI", "type-PF", "type-VF"]),
    },
)


def all_machines(folder: Path) -> list[Node]:
    """Every machine in the tree, and the captures if their folder is known."""
    made = [{**NODES, **REPORTED}[name] for name in sorted({*NODES, *REPORTED})]
    nodes = [sysfs.read_sysfs_node(write(each, folder / each.name)) for each in made]
    data = os.environ.get("NOVA_HPC_TEST_DATA")
    if data:
        nodes += [lstopo.read_lstopo_file(Path(data) / "hwloc" / name) for name in XMLS]
        for name in ARCHIVES:
            place = folder / f"capture-{name}"
            place.mkdir()
            archive = Path(data) / "hwloc" / f"{name}.tar.bz2"
            subprocess.run(["tar", "-xf", archive, "-C", place], check=True)
            root = next(top for top in place.iterdir() if (top / "sys").is_dir())
            nodes.append(sysfs.read_sysfs_node(root))
    return nodes


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    return all_machines(tmp_path_factory.mktemp("machines"))


def storage_of(node):
    """Addresses of storage functions, by the class alone."""
    return {
        each.address
        for each in node.functions
        if not each.is_bridge and (each.class_code or "").startswith("01")
    }


def test_the_machines_have_storage(machines):
    assert sum(bool(storage_of(node)) for node in machines) >= 6


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_declaration_offers_storage_without_a_proof(machines, data):
    node = machines[data.draw(st.integers(0, len(machines) - 1))]
    entries = data.draw(st.lists(PATTERNS, min_size=1, max_size=4))
    table = roles.parse_roles(list(map(json.dumps, entries)))
    addresses = st.sampled_from(sorted(function.address for function in node.functions) or ["-"])
    networks = st.sampled_from(["physnet1", ""])
    wishes = Declaration(
        whole=data.draw(st.sampled_from([frozenset(), frozenset({EVERY})])),
        networks=data.draw(st.dictionaries(st.one_of(st.sampled_from(NAMES), addresses), networks)),
        kept=data.draw(
            st.dictionaries(addresses, st.just({"resource_class": "CUSTOM_DISK", "managed": "no"}))
        ),
        one_time_use=data.draw(st.sampled_from([frozenset(), frozenset({"nvme"})])),
        switches=data.draw(st.booleans()),
        resource_classes=data.draw(st.sampled_from([{}, {"nvme": "CUSTOM_DISK"}])),
    )
    spec = device_spec.build_device_spec(node, table, wishes)
    storage = storage_of(node)
    assert not storage & {address for offer in spec.offers for address in offer.functions}
    # Each that has a role is named with the reason.
    told = {item.address: item.reason for item in spec.omitted}
    for address in storage:
        function = node.function(address)
        if table.role_of(function, node) is not None and function.unknown is None:
            assert "erase" in told[address] or "domains" in told[address]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_compute_node_withholds_storage_whatever_its_entries_say(machines, data):
    """Also entries without tags, and whatever ``[hpc]offer_anyway`` names."""
    node = machines[data.draw(st.integers(0, len(machines) - 1))]
    storage = storage_of(node)
    offered = {each.address: data.draw(st.sampled_from([None, *NAMES])) for each in node.functions}
    anyway = {*storage, *(f"{f.vendor_id}:{f.product_id}" for f in node.functions)}
    step = ForbiddenDevices(
        root=Path("/nonexistent"),
        read=lambda address: None,
        cache=Path("/nonexistent/vpd"),
        anyway=data.draw(st.sampled_from([frozenset(), frozenset(anyway)])),
    )
    view = NodeView(node, offered)
    withheld = step.withhold(view, owners_of(Path("/nonexistent"))).findings
    assert storage <= withheld.keys()
    assert all("offer_anyway" not in withheld[address].reason for address in storage)
    for address in sorted(storage)[:1]:
        tenant = DeviceTenant("server", (address,), owners=owners_of(Path("/nonexistent")))
        with pytest.raises(RefusedError) as refused:
            step.before_start(tenant, view)
        assert address not in refused.value.user


def test_a_virtual_function_of_storage_is_storage(machines):
    """An NVMe drive with SR-IOV: its functions share its namespaces."""
    node = next(node for node in machines if storage_of(node))
    address = min(storage_of(node))
    part = attrs.evolve(
        node.function(address), address="0000:ee:00.1", physical_function=address, class_code="1200"
    )
    table = roles.parse_roles(['{"role": "disk", "vendor_id": "*", "class": "*"}'])
    more = attrs.evolve(node, functions=(*node.functions, part))
    spec = device_spec.build_device_spec(more, table)
    assert "0000:ee:00.1" not in {each for offer in spec.offers for each in offer.functions}


class Scrubber(cleaner.Generic):
    """A cleaner of an operator's, which erases NVMe disks."""

    erases = ("0108",)


@pytest.fixture
def erasers(monkeypatch):
    monkeypatch.setattr(cleaner, "_OWN", {**cleaner._OWN, "scrub": Scrubber})
    return find_erasers(options(cleaners={"disk": "scrub", "gpu": "generic", "raid": "gone"}))


def options(**values):
    plain = {"clean_devices": True, "cleaners": {}, "clean_stage": {}}
    return SimpleNamespace(**{**plain, "clean_checks": {}, "clean_drivers": {}, **values})


def test_the_roles_whose_cleaner_erases(erasers):
    assert erasers.of_role == {"disk": ("0108",)}
    told = options(cleaners={"disk": "scrub"}, clean_devices=False)
    assert find_erasers(told).of_role == {}


def test_the_roles_whose_stage_erases():
    """In a service VM; on the host with the driver that the erase needs."""
    told = {"clean_stage": {"nvme": "host"}, "clean_checks": {"nvme": "nvme"}}
    driver = {"clean_drivers": {"nvme": "nvme"}}
    assert find_erasers(options(**told, **driver)).of_role == {"nvme": ("0108",)}
    vm = {**told, "clean_stage": {"nvme": "service-vm"}}
    assert find_erasers(options(**vm)).of_role == {"nvme": ("0108",)}
    for wrong in (
        {"clean_devices": False},
        {"clean_stage": {"nvme": "none"}},
        {"clean_checks": {"nvme": "memory"}},
        {"clean_drivers": {}},
        {"clean_drivers": {"nvme": "vfio-pci"}},
    ):
        assert find_erasers(options(**{**told, **driver, **wrong})).of_role == {}


def test_a_disk_whose_cleaner_erases_it_is_offered(erasers, machines):
    """Its class has to be one that the cleaner erases, and no data may be shared with VFs."""
    node = next(node for node in machines if storage_of(node))
    (disk, *_) = (node.function(address) for address in sorted(storage_of(node)))
    assert erasers.explain_refusal(node, disk, "disk") is None
    raid = attrs.evolve(disk, class_code="010400")
    shared = attrs.evolve(disk, virtual_functions=("0000:ee:00.1",))
    part = attrs.evolve(disk, physical_function=disk.address)
    for function, role in ((disk, "gpu"), (disk, None), (raid, "disk"), (shared, "disk")):
        assert "a reset erases nothing" in erasers.explain_refusal(node, function, role)
    assert "with virtual functions" in erasers.explain_refusal(node, part, "disk")


def test_memory_is_storage(machines):
    """CXL memory may be persistent, and a reset erases none of it."""
    node = next(node for node in machines if storage_of(node))
    disk = node.function(min(storage_of(node)))
    memory = attrs.evolve(disk, class_code="050210")
    erasers = Erasers({"disk": ("0108",), "memory": ("0502",)})
    for role in (None, "disk"):
        assert "(class 0502)" in erasers.explain_refusal(node, memory, role)
    assert erasers.explain_refusal(node, memory, "memory") is None


@pytest.mark.parametrize("tags", [{}, {"hpc_role": "disk"}])
def test_an_entry_that_offers_a_disk_is_named(machines, tags):
    """Also one of others, without tags."""
    node = next(node for node in machines if storage_of(node))
    address = min(storage_of(node))
    table = roles.parse_roles(DEFAULT_ROLES)
    spec = device_spec.build_device_spec(node, table)
    lines = [json.dumps({"address": address, **tags})]
    found = find_kept_storage(node, table, spec, lines, Erasers())
    (said,) = (each for each in found if address in each.seen)
    assert said.check == "offered-never"
    assert "a reset erases nothing" in said.seen
    assert ("--replace" in render_cure(said.cure)) is bool(tags)
    known = Erasers({"disk": ("0108",)})
    left = find_kept_storage(node, table, spec, lines, known)
    assert any(address in each.seen for each in left) is not bool(tags)
