# SPDX-License-Identifier: Apache-2.0
"""What the host writes, the guest reads: on random hosts."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree
from nova_hpc_common.level import distance_between
from nova_hpc_guest import document, terms
from tests.unit.guest.servers import HOME, MEMORY, fewer, remove, run, servers, start, told
from tests.unit.guest.worlds import boot, domain_of
from tests.unit.topology import nccl_reader
from tests.unit.virt.tree_worlds import arranged
from virt_driver_patches.domain.guest_domain import GuestDomainXml


@fewer
@given(servers())
def test_a_mirrored_guest_is_as_promised(server):
    node, chosen, _ = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen)
        status, out, err = run(guest, "check")
        assert (status, err) == (0, "")
        assert out.endswith(f"As promised: {len(chosen)} devices, 2 NUMA nodes, topology mirror.\n")
        shown = json.loads(run(guest, "show", "--format", "json")[1])
        number = numbers(guest, chosen)
        assert sorted(number.values()) == list(range(len(chosen)))
        for one, other in itertools.permutations(chosen, 2):
            places = [node.function(each).location for each in (one, other)]
            said = shown["devices"][number[one]]["distances"][number[other]]
            assert said == distance_between(*places).name


def numbers(guest, chosen):
    """Host address -> number in the document, by the address in the guest."""
    shown = json.loads(run(guest, "show", "--format", "json")[1])
    found = {device["address"]: number for number, device in enumerate(shown["devices"])}
    return {address: found[guest.folders[address].name] for address in chosen}


@fewer
@given(servers(), st.sampled_from(list(TopologyMode)))
def test_the_trees_of_the_driver_are_as_promised(server, mode):
    """What the transform of the domain makes is what the guest is told."""
    node, chosen, _ = server
    devices = [TreeDevice(each, node.function(each).location) for each in chosen]
    abi = Abi(mode)
    xml = domain_of(node, chosen, HOME, False)
    xml = arranged(xml, plan_guest_pci_tree(devices, HOME, abi), abi)
    xml = told(xml, node, mode.value)
    laid_down = [path is not None for _, path in GuestDomainXml(xml).paths()]
    assert laid_down == [mode is not TopologyMode.FLAT] * len(chosen)
    with tempfile.TemporaryDirectory() as folder:
        guest = boot(Path(folder), xml, node, MEMORY)
        assert run(guest, "check") == (
            0,
            f"As promised: {len(chosen)} devices, 2 NUMA nodes, topology {mode.value}.\n",
            "",
        )


def unbind(guest, victim, dice):
    (victim / "driver").unlink()
    return "driver"


def rebind(guest, victim, dice):
    (victim / "driver").unlink()
    (victim / "driver").symlink_to("../../../bus/pci/drivers/pci-stub")
    return "driver"


def move_home(guest, victim, dice):
    wrong = dice.choice([-1, 1 - int((victim / "numa_node").read_text())])
    (victim / "numa_node").write_text(f"{wrong}\n")
    return "numa"


def swap_ids(guest, victim, dice):
    (victim / "device").write_text("0x0bad\n")
    return "device"


@fewer
@given(servers(), st.sampled_from([remove, unbind, rebind, move_home, swap_ids]))
def test_what_is_not_as_promised_is_named(server, break_it):
    node, chosen, seed = server
    dice = random.Random(seed)
    victim = dice.randrange(len(chosen))
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen, roles={chosen[victim]: "broken-one"})
        number = numbers(guest, chosen)[chosen[victim]]
        kind = break_it(guest, guest.folders[chosen[victim]], dice)
        drivers = ("--driver", "10de:2330=nvidia", "--driver", "1002:74a1=nvidia")
        drivers += ("--driver", "15b3:101e=mlx5_core", "--driver", "broken-one=nvidia")
        if node.function(chosen[victim]).class_code == "020700":
            drivers += ("--driver", "broken-one=mlx5_core")
        status, out, _ = run(guest, "check", "--quiet", *drivers)
        assert status == 1
        # A device on another NUMA node is also farther from its neighbours.
        named = [line for line in out.splitlines() if line.startswith(f"WRONG {kind}: ")]
        assert len(named) == 1
        assert named[0].startswith(f"WRONG {kind}: device {number} (broken-one ")
        found = json.loads(run(guest, "check", "--format", "json", *drivers)[1])
        assert not found["good"]
        assert number in {each["device"] for each in found["findings"] if each["wrong"]}


@fewer
@given(servers(), st.booleans())
def test_a_flat_guest_is_known_by_the_order(server, missing):
    node, chosen, seed = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen, "flat")
        assert run(guest, "check")[0] == 0
        shown = json.loads(run(guest, "show", "--format", "json")[1])
        for number, address in enumerate(chosen):
            assert shown["devices"][number]["address"] == guest.folders[address].name
            assert shown["devices"][number]["numa_node"] == -1
        if missing:
            victim = random.Random(seed).randrange(len(chosen))
            remove(guest, guest.folders[chosen[victim]], None)
            status, out, _ = run(guest, "check", "--quiet")
            assert status == 1
            assert f"device {victim} (" in out


@fewer
@given(servers(), st.sampled_from(["mirror", "flat"]))
def test_nccl_gets_the_hosts_distances_and_the_guests_addresses(server, topology):
    node, chosen, _ = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen, topology)
        assert run(guest, "install")[0] == 0
        seen = nccl_reader.devices(
            nccl_reader.read((guest.root / "run/nova-hpc/nccl-topology.xml").read_text())
        )
        names = {address: guest.folders[address].name for address in chosen}
        assert seen.keys() == set(names.values())
        for one, other in itertools.combinations(chosen, 2):
            kind = nccl_reader.path_type(seen[names[one]], seen[names[other]])
            assert kind == nccl_reader.expected_path(node, one, other)
        for address in chosen:
            cell = HOME[node.function(address).numa_node]
            above = seen[names[address]]
            while above.name != "cpu":
                above = above.above
            assert above.values["numaid"] == str(cell)


@given(servers(), st.sampled_from(["mirror", "flat"]))
def test_nothing_of_the_host_is_told(server, topology):
    node, chosen, _ = server
    xml = domain_of(node, chosen, HOME, topology == "mirror")
    domain = etree.fromstring(told(xml, node, topology))
    entries = {
        entry.get("name"): document.decode_entry(entry.text.encode()).decode()
        for entry in domain.iterfind("sysinfo/entry")
    }
    assert set(entries) == {terms.DOCUMENT, terms.NCCL}
    for text in entries.values():
        assert "secret" not in text
        for function in node.functions:
            assert function.address not in text
            assert all(bridge not in text for bridge in function.path)
            assert function.root not in text
