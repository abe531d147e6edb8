# SPDX-License-Identifier: Apache-2.0
"""Who reaches whom, and what somebody from outside can do about it.

ibsim carries no packets between queue pairs: that two ports do not talk is what their P_Key tables,
the switch ports facing them and the subnet manager's answers say.
"""

import re
import sys
import time
from pathlib import Path

import pytest

from nova_hpc_lab.fabric import subnet_manager
from tests.fabric.bare_fabric import wait_until
from tests.fabric.matrix import (
    FULL,
    FULL_DEFAULT,
    LIMITED_DEFAULT,
    LIMITED_TAG,
    Sampler,
    bound_ports,
    broken_invariants,
    file_members,
    wait_for_rest,
    wrong_tables,
)
from tests.fabric.tenants import Tenants, guid_of

RED, BLUE = 0x1F4, 0x1F5
INTRUDER = str(Path(__file__).with_name("intruder.py"))


@pytest.fixture
def tenants(tidy):
    return Tenants(tidy)


@pytest.fixture
def places(plane):
    """Ports of the fabric that nobody has, far from one another."""
    return plane.net.ports[::9]


@pytest.fixture
def members(plane, view, tenants, places):
    """Two members of each of two projects' networks, and a place that has none."""
    red, blue = tenants.network("red", RED), tenants.network("blue", BLUE)
    found = {
        "red 1": places[0],
        "blue 1": places[1],
        "red 2": places[2],
        "blue 2": places[3],
        "stranger": places[4],
        "stranger 2": places[5],
    }
    for name, place in found.items():
        project = name.partition(" ")[0]
        if project in ("red", "blue"):
            tenants.member(project, red if project == "red" else blue, place)
    wait_for_rest(plane, view)
    return {name: guid_of(place) for name, place in found.items()}


def _paths(view, members, sure=False):
    """(from, to) -> P_Key of the path or None."""
    whole = {**members, "manager": view.manager}
    found = {}
    for source, own in members.items():
        for target, peer in whole.items():
            if own != peer:
                together = _expected(source, target) is not None
                ask = view.path_in_time if together and not sure else view.path
                found[source, target] = ask(own, peer)
    return found


def _expected(source, target):
    """The key that two of :func:`members` share."""
    if target == "manager":
        return LIMITED_DEFAULT
    if source.partition(" ")[0] == target.partition(" ")[0] != "stranger":
        return (RED if source.startswith("red") else BLUE) | FULL
    return None


def _show(title, paths):
    names = list(dict.fromkeys(name for pair in paths for name in pair))
    print(f"\nRESULT: {title}: the P_Key of the path, as its source asks for it")
    print("RESULT:", " " * 10, *(f"{name:>10}" for name in names))
    for source in names[:-1]:
        cells = [
            "-" if source == target else hex(key) if (key := paths[source, target]) else "none"
            for target in names
        ]
        print("RESULT:", f"{source:10}", *(f"{cell:>10}" for cell in cells))


def test_members_reach_their_own_and_the_manager_and_nobody_else(plane, view, members):
    paths = _paths(view, members)
    _show("two members of each network, two strangers", paths)
    assert paths == {pair: _expected(*pair) for pair in paths}
    assert wrong_tables(view, bound_ports(plane)) == []
    tables = view.tables([members["red 1"], members["stranger"]])
    assert tables[members["red 1"]] == ([RED | FULL, LIMITED_DEFAULT][::-1],) * 2
    assert tables[members["stranger"]] == ([LIMITED_DEFAULT],) * 2
    # All of it holds with a subnet manager that has just started.
    plane.stop("opensm")
    plane.start("opensm")
    paths = _paths(view, members)
    assert paths == {pair: _expected(*pair) for pair in paths}
    assert broken_invariants(plane, view) == []
    print(
        f"RESULT: {len(view.topology)} ports and the {len(view.topology)} switch ports facing"
        f" them are exactly as Neutron says; {len(paths)} paths, the same after a restart"
    )


def test_limited_members_reach_full_ones_alone(plane, view, tenants, places):
    network = tenants.network("red", RED)
    found = {}
    for name, place in zip(("full", "limited 1", "limited 2"), places, strict=False):
        port = tenants.port("red", network)
        if name.startswith("limited"):
            status, _ = plane.callers["red"].call("PUT", f"/ports/{port}/tags/{LIMITED_TAG}")
            assert status in (200, 201)
        assert tenants.bind(port, place) == 200
        tenants.wait_for(port)
        found[name] = guid_of(place)
    wait_for_rest(plane, view)
    assert view.path_in_time(found["limited 1"], found["full"]) is not None
    assert view.path_in_time(found["full"], found["limited 2"]) is not None
    assert view.path(found["limited 1"], found["limited 2"]) is None
    assert view.path(found["limited 2"], found["limited 1"]) is None
    assert view.tables([found["limited 1"]])[found["limited 1"]][1] == [RED, LIMITED_DEFAULT]


def test_a_change_of_one_network_is_none_of_another(plane, view, tenants, members, places):
    allowed = {guid: set() for guid in members.values()}
    for name, guid in members.items():
        if not name.startswith("stranger"):
            allowed[guid] = {RED if name.startswith("red") else BLUE}
    newcomer = places[6]
    allowed[guid_of(newcomer)] = {RED}
    (red,) = plane.callers["red"].call("GET", "/networks?fields=id")[1]["networks"]
    with Sampler(plane, allowed) as sampler:
        for _ in range(3):
            port = tenants.member("red", red["id"], newcomer)
            assert tenants.delete(port) == 204
            gone = (guid_of(newcomer), RED)
            wait_until(lambda gone=gone: gone not in file_members(plane), "it is gone")
            wait_for_rest(plane, view)
        wrong = sampler.end()
    print(f"\nRESULT: {sampler.rounds} rounds of reading during 6 changes, wrong: {wrong}")
    assert wrong == []
    assert sampler.rounds > 20


# A stranger with root in a guest.


def _intrude(plane, node, *words):
    """What a program on the stranger's node was answered."""
    return plane.ask(node, sys.executable, INTRUDER, *words)


def test_a_chosen_mac_chooses_nobody(plane, view, tenants, members, places):
    """A project may set a MAC, and the same as another's: the GUID is the operator's."""
    victim = plane.admin.call("GET", "/ports")[1]["ports"][0]
    red = tenants.network("red", RED + 8)
    port = tenants.port("red", red, mac_address=victim["mac_address"])
    assert tenants.bind(port, places[6]) == 200
    tenants.wait_for(port)
    wait_for_rest(plane, view)
    assert view.tables([guid_of(places[6])])[guid_of(places[6])][0] == [
        LIMITED_DEFAULT,
        (RED + 8) | FULL,
    ]
    # Neither where it is nor what it is there can be chosen.
    for body in (
        {"binding:profile": {"pci_slot": places[7].functions[0]}},
        {"binding:host_id": places[7].host},
    ):
        status, _ = plane.callers["red"].call("PUT", f"/ports/{port}", {"port": body})
        assert status == 403


def test_an_own_table_leads_nowhere(plane, view, members):
    """The stranger writes the key of others into its own port's table."""
    stranger = members["stranger"]
    node = view.nodes[stranger]
    said = _intrude(plane, node, "own-table", hex(RED | FULL))
    own, facing = view.tables([stranger])[stranger]
    print(f"\nRESULT: own table: {said.strip()}; it has {own and [hex(key) for key in own]}")
    print(f"RESULT: own table: the switch port facing it has {[hex(key) for key in facing]}")
    # Its switch takes no packet with that key, whatever the port says.
    assert facing == [LIMITED_DEFAULT]
    # And the subnet manager names it no path: it goes by what it has set, not by what is there.
    assert view.path(stranger, members["red 1"]) is None
    assert view.path(stranger, members["red 2"]) is None
    assert view.path(members["red 1"], stranger) is None
    plane.stop("opensm")
    plane.start("opensm")
    wait_until(lambda: wrong_tables(view, bound_ports(plane)) == [], "all tables are right again")


def test_a_forged_guid_gets_no_key(plane, view, members):
    """The stranger asks for a member's GUID as one more of its own, and for others' paths."""
    stranger = members["stranger"]
    node = view.nodes[stranger]
    lid = view.topology[stranger][0]
    said = _intrude(plane, node, "alias-guid", lid, members["red 1"])
    print(f"\nRESULT: forged GUID: {said.strip()}")
    time.sleep(1.0)
    assert wrong_tables(view, bound_ports(plane)) == []
    assert view.path(stranger, members["red 2"]) is None
    # A path from one member to another, asked for by somebody who is neither.
    lids = f"{view.topology[members['red 1']][0]}:{view.topology[members['red 2']][0]}"
    said = plane.ask(node, "saquery", "--src-to-dst", lids)
    print(f"RESULT: a path of two others, asked for by a stranger: {said.strip()[-120:]}")
    assert "pkey" not in said
    # And what tables they have: the key of trust is random.
    for words in ((), ("--smkey", "1")):
        said = plane.ask(node, "saquery", *words, "PKTR", view.topology[members["red 1"]][0])
        assert hex(RED | FULL) not in said, said


@pytest.mark.slow
def test_an_own_subnet_manager(plane, view, members):
    """What keeps one out is the M_Key, which ibsim neither keeps nor asks for.

    So it is shown what somebody could do on a fabric without one, that it is noticed, and that what
    was in force comes back; and that opensm was told to set the key.
    """
    keys = dict(line.split(" ", 1) for line in plane.files.config.read_text().splitlines())
    assert int(keys["m_key"], 16) > 1
    assert keys["m_key_protection_level"] == "2"
    said = plane.ask("manager", "smpquery", "-K", "-G", "portinfo", members["red 1"], "1")
    print(f"\nRESULT: ibsim's M_Key of a port: {re.search(r'Mkey:[.]+(0x[0-9a-f]+)', said)[1]}")
    rogue = subnet_manager.manager_files(plane.paths, "rogue")
    subnet_manager.prepare_manager(plane.paths, "rogue")
    text = rogue.config.read_text()
    for option in ("m_key", "sm_key", "sa_key"):
        text = re.sub(rf"^{option} .*$", f"{option} 0x0000000000000001", text, flags=re.M)
    rogue.config.write_text(text + "sm_priority 15\nm_key_lookup FALSE\n")
    rogue.partitions.write_text("Default=0x7fff, ipoib : ALL=full ;\n")
    service = subnet_manager.opensm_service(plane.paths, "rogue", view.nodes[members["stranger"]])
    try:
        service.process.spawn(service.argv, service.environ)
        wait_until(lambda: rogue.log.exists() and "OpenSM" in rogue.log.read_text(), "it runs")
        time.sleep(4.0)
        state = re.findall(r"Entering (\w+) state", rogue.log.read_text())
        opened = [
            guid
            for guid, sides in view.tables().items()
            if guid != view.manager and any(FULL_DEFAULT in (one or ()) for one in sides)
        ]
        print(f"RESULT: own subnet manager of priority 15: its states {state}")
        print(f"RESULT: ports that it opened on ibsim, which asks for no M_Key: {len(opened)}")
    finally:
        service.process.stop()
        plane.free_places()
    log = plane.services()["fabric-agent"].process.log
    alarms = re.findall(r"Partition alarm.*: (the fabric is open.*)", log.read_text())
    print(f"RESULT: the agent's alarm: {alarms[0] if alarms else 'none'}")
    assert alarms
    # opensm goes by what it has set, and does not look whether it is still so; a new one does.
    plane.restart("opensm")
    view.look_again()
    print(f"RESULT: right again {wait_for_rest(plane, view, 60.0):.1f} s after opensm began anew")
