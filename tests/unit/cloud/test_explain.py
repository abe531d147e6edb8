# SPDX-License-Identifier: Apache-2.0
"""What explain says, and that what it says is so."""

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import WantedCell
from nova_hpc_common.level import AffinityPolicy, Distance, Level
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import document as explain_document
from nova_hpc_tools.cloud.explain import explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion, FlavorReport
from nova_hpc_tools.cloud.explain.server_report import explain_server
from nova_hpc_tools.snapshot import SnapshotDevice, SnapshotError, SnapshotNode
from nova_hpc_tools.snapshot.direct_ports import DirectPorts, PortAdapter
from tests.unit.snapshot import clouds


def ask(*hosts: SnapshotNode, servers=(), flavor=None, **question) -> FlavorReport:
    flavor = clouds.flavor() if flavor is None else flavor
    cloud = clouds.cloud(*hosts, flavors=[flavor], servers=servers)
    return explain_flavor(cloud, FlavorQuestion(flavor.name, **question))


def kinds(report: FlavorReport) -> list[str]:
    return [remedy.kind for remedy in report.remedies]


def test_a_host_that_fits_gets_what_choose_says():
    node = clouds.node("one", [1, 2, 4])
    report = ask(node)
    (verdict,) = report.verdicts
    host = snapshot.engine_host(node, report.flavor.server.wants)
    assert (
        verdict.choice.devices
        == choose_device_sets(report.request, host, profile=clouds.cloud().profile).sets[0]
    )
    assert report.fits
    assert report.remedies == ()
    assert verdict.choice.providers() == {"one-1-0": 1, "one-1-1": 1}


def test_the_nearest_miss_and_what_is_wrong_with_devices():
    node = clouds.node(
        "node7",
        [1, 1, 1, 1],
        withheld={f"0000:4{n}:08.0": "it is quarantined" for n in range(6)},
        unusable=("0000:50:00.0: tag hpc_tags is '9', this release reads '1'",),
    )
    (verdict,) = ask(node).verdicts
    assert verdict.choice is None
    assert verdict.reason == "4 gpu free, but at most 1 under one switch (needs 2)"
    assert verdict.notes[0].startswith("0000:50:00.0: tag hpc_tags is '9'")
    assert "0000:40:08.0 is withheld: it is quarantined" in verdict.notes
    assert verdict.notes[-1] == "2 more devices are withheld"


def test_a_host_that_is_out_is_not_asked():
    report = ask(clouds.node("one", [4], out="its nova-compute is down"))
    assert report.verdicts[0].reason == "its nova-compute is down"
    assert not report.fits
    assert report.remedies == ()


def test_one_step_wider_and_a_smaller_group():
    report = ask(clouds.node("one", [1, 0, 1, 0]))
    texts = {remedy.kind: remedy.text for remedy in report.remedies}
    # On different sockets, which the steps in between do not allow.
    assert texts["affinity"] == "with hpc:affinity=host"
    assert texts["group"] == "in smaller groups, with hpc:group=gpu:1"
    assert texts["size"] == "with only 1 gpu"
    assert next(each for each in report.remedies if each.kind == "group").level is Level.SWITCH


def test_wider_affinity_names_novas_own_policy_where_that_must_change():
    cell = WantedCell(id=0, dedicated_cpus=2)
    flavor = clouds.flavor(affinity="numa", cells=[cell], numa_policy="required")
    report = ask(clouds.node("one", [1, 0, 1, 0]), flavor=flavor)
    (remedy,) = [each for each in report.remedies if each.kind == "affinity"]
    assert remedy.text == "with hpc:affinity=host and hw:pci_numa_affinity_policy=preferred"
    assert remedy.level is Level.HOST


def test_smaller_groups_of_several_aliases():
    flavor = clouds.flavor(wants={"gpu": 4, "vf": 4}, affinity="switch")
    node = clouds.node("one", [2, 2])
    node = attrs.evolve(node, devices=(*node.devices, clouds.vfs("one", 0), clouds.vfs("one", 1)))
    texts = {remedy.kind: remedy.text for remedy in ask(node, flavor=flavor).remedies}
    assert texts["group"] == "in smaller groups, with hpc:group=gpu:2,vf:2"
    assert texts["size"] == "with only 2 gpu and 2 vf"
    assert texts["affinity"] == "with hpc:affinity=numa"


def test_after_a_server_leaves():
    node = clouds.node("one", [[None, "s1"], ["s2", "s3"]])
    servers = [clouds.server(f"s{n}", "one") for n in (1, 2, 3)]
    report = ask(node, servers=servers)
    texts = [remedy.text for remedy in report.remedies if remedy.kind == "server"]
    assert texts == ["after server name-s1 (s1) leaves one"]
    assert "affinity" not in kinds(report)


def test_after_all_servers_leave_where_none_alone_suffices():
    node = clouds.node("one", [["s1", "s2"]])
    report = ask(node, servers=[clouds.server(f"s{n}", "one") for n in (1, 2)])
    assert [remedy.text for remedy in report.remedies] == [
        "after all 2 servers with devices leave one"
    ]


def test_a_device_that_will_be_withheld_is_no_remedy():
    node = clouds.node("one", [["s1", None]], ailing={"0000:40:00.0": "narrow link"})
    report = ask(node, servers=[clouds.server("s1", "one")])
    assert "server" not in kinds(report)


def test_cpus_count_when_a_server_leaves():
    """Its devices are not wanted; the CPUs that it gives back are."""
    cell = WantedCell(id=0, dedicated_cpus=4)
    flavor = clouds.flavor(affinity="numa", cells=[cell], numa_policy="required")
    node = clouds.node("one", [3, ["s1"]], cpus=2)
    report = ask(node, flavor=flavor, servers=[clouds.server("s1", "one")])
    assert "CPU" in report.verdicts[0].reason
    assert [remedy.text for remedy in report.remedies if remedy.kind == "server"] == [
        "after server name-s1 (s1) leaves one"
    ]


def test_several_servers_consume():
    nodes = [clouds.node("one", [3]), clouds.node("two", [2, 2])]
    report = ask(*nodes, count=4)
    assert not report.fits
    assert [placed.before.name for placed in report.placed].count("two") == 2
    assert len(report.placed) == 3
    # All that is left is one GPU.
    assert kinds(report) == ["size"]
    assert ask(*nodes, count=3).fits


def test_only_one_host():
    nodes = [clouds.node("one", [1]), clouds.node("two", [2])]
    assert ask(*nodes).fits
    report = ask(*nodes, host="one")
    assert not report.fits
    assert [verdict.node.host for verdict in report.verdicts] == ["one"]


def test_what_cannot_be_answered():
    cloud = clouds.cloud(
        clouds.node("node1", [1]),
        flavors=[
            clouds.flavor(),
            attrs.evolve(clouds.flavor("plain"), extra_specs={}),
            attrs.evolve(clouds.flavor("refused"), problem="PCI alias tpu is not defined"),
            clouds.flavor("odd", affinity="nonsense"),
            clouds.flavor("none", wants={}),
        ],
    )
    for question, text in (
        (FlavorQuestion("pear"), "no flavor 'pear'; there is: pair"),
        (FlavorQuestion("pair", image="linux"), "was not read with image 'linux'"),
        (FlavorQuestion("plain"), "has no hpc: keys"),
        (FlavorQuestion("refused"), "Nova refuses it: PCI alias tpu is not defined"),
        (FlavorQuestion("odd"), "hpc:affinity is 'nonsense'"),
        (FlavorQuestion("none"), "requests none"),
        (FlavorQuestion("pair", host="node7"), "no host 'node7'; there is: node1"),
    ):
        with pytest.raises(SnapshotError) as error:
            explain_flavor(cloud, question)
        assert text in str(error.value)
    with pytest.raises(SnapshotError, match="discover_hosts"):
        explain_flavor(clouds.cloud(), FlavorQuestion("pair"))


def test_the_id_of_a_flavor_is_as_good_as_its_name():
    assert explain_flavor(clouds.cloud(clouds.node("one", [2])), FlavorQuestion("id-pair")).fits


def test_a_decision_of_the_past():
    node = clouds.node("one", [["s1", "s1"], ["s2"]], ailing={"0000:40:00.0": "narrow link"})
    servers = [
        clouds.server(
            "s1", "one", decision='{"v":1,"asked":"switch","policy":"preferred","reached":"numa"}'
        ),
        clouds.server("s2", "one", decision='{"v":7}'),
    ]
    cloud = clouds.cloud(node, servers=servers)
    past = explain_server(cloud, "name-s1")
    assert (past.decision.asked, past.decision.reached) == (Level.SWITCH, Level.NUMA)
    assert past.decision.policy is AffinityPolicy.PREFERRED
    # By where they sit now they are closer than what the record says.
    assert (past.level, past.distance) == (Level.SWITCH, Distance.PIX)
    assert [each.addresses for each in past.given] == [("0000:40:00.0",), ("0000:40:01.0",)]
    assert "switch was preferred" in past.notes[0]
    assert past.notes[1] == "0000:40:00.0 stays with the server, but: narrow link"
    record = '{"v":1,"asked":"switch","policy":"required","reached":"switch","redirected":[2,3]}'
    away = clouds.cloud(node, servers=[clouds.server("s1", "one", decision=record), servers[1]])
    said = explain_server(away, "s1")
    assert "2 of the 3 pairs" in said.notes[0]
    assert explain_document.describe_server_report(said)["decision"]["redirected"] == [2, 3]
    record = record[:-1] + ',"peers":{"no-ats":"0-1","ats":"0-7"}}'
    paired = clouds.cloud(node, servers=[clouds.server("s1", "one", decision=record), servers[1]])
    said = explain_server(paired, "s1")
    # The second pair is of a device that it does not have any more.
    assert explain_document.describe_server_report(said)["decision"]["peers"] == [
        {"gpu": "0000:40:00.0", "adapter": "0000:40:01.0", "why": "no-ats", "as_wished": None}
    ]
    record = record[:-1] + ',"wish":"translated"}'
    paired = clouds.cloud(node, servers=[clouds.server("s1", "one", decision=record), servers[1]])
    wished = explain_server(paired, "s1")
    assert wished.notes[-1] == f"{said.notes[-1]}, not as wished (translated)"
    decision = explain_document.describe_server_report(wished)["decision"]
    assert (decision["peer_wish"], decision["peers"][0]["as_wished"]) == ("translated", False)
    assert said.notes[-1].startswith("peer-to-peer of 0000:40:00.0 with 0000:40:01.0 when")
    other = explain_server(cloud, "s2")
    assert other.decision is None
    assert "not one that this release reads" in other.notes[0]


def test_the_level_of_the_past_is_that_of_its_groups():
    flavor = clouds.flavor(group="gpu:1")
    server = clouds.server("s1", "one", extra_specs=flavor.extra_specs)
    cloud = clouds.cloud(
        clouds.node("one", [["s1"], [], ["s1"]]), flavors=[flavor], servers=[server]
    )
    assert explain_server(cloud, "s1").level is Level.SWITCH
    changed = clouds.cloud(
        clouds.node("one", [["s1"], [], ["s1"]]), flavors=[clouds.flavor()], servers=[server]
    )
    assert explain_server(changed, "s1").level is Level.HOST


def test_servers_that_are_not_there():
    cloud = clouds.cloud(
        clouds.node("one", [["s1"], ["s2"]]),
        servers=[clouds.server(each, "one", name="same") for each in ("s1", "s2")],
    )
    with pytest.raises(SnapshotError, match="no host has a server 's9'"):
        explain_server(cloud, "s9")
    with pytest.raises(SnapshotError, match="2 servers are called 'same'; give one's UUID: s1, s2"):
        explain_server(cloud, "same")


def test_documents_are_json():
    cloud = clouds.cloud(
        clouds.node("one", [2]),
        clouds.node("two", [["s1"]]),
        servers=[clouds.server("s1", "two")],
    )
    report = json.loads(
        explain_document.dump_explain_document(explain_flavor(cloud, FlavorQuestion("pair")))
    )
    assert (report["schema"], report["version"], report["fits"]) == ("nova-hpc/explain", 1, True)
    assert [host["fits"] for host in report["hosts"]] == [True, False]
    assert [each["address"] for each in report["placed"][0]["devices"]] == [
        "0000:40:00.0",
        "0000:40:01.0",
    ]
    past = json.loads(explain_document.dump_explain_document(explain_server(cloud, "s1")))
    assert past["devices"][0]["address"] == "0000:40:00.0"


@given(
    st.lists(
        st.lists(st.lists(st.sampled_from([None, "s1", "s2"]), max_size=3), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["switch", "root", "numa", "socket", "host"]),
    st.integers(1, 4),
)
def test_every_remedy_is_true(shapes, affinity, count):
    """It fits, or a remedy that is named makes it fit by the letter of its text."""
    nodes = [clouds.node(f"h{number}", gpus) for number, gpus in enumerate(shapes)]
    servers = [clouds.server(uuid, "h0", cells=()) for uuid in ("s1", "s2")]
    flavor = clouds.flavor(wants={"gpu": count}, affinity=affinity)
    report = ask(*nodes, servers=servers, flavor=flavor)
    assert report.fits == any(verdict.choice for verdict in report.verdicts)
    assert not (report.fits and report.remedies)
    for remedy in report.remedies:
        changed, hosts = flavor, nodes
        if remedy.kind in ("affinity", "group"):
            key, value = remedy.text.split("with ")[1].split("=")
            changed = attrs.evolve(flavor, extra_specs={**flavor.extra_specs, key: value})
        elif remedy.kind == "size":
            changed = clouds.flavor(wants={"gpu": int(remedy.text.split()[2])}, affinity=affinity)
        elif "all" not in remedy.text:
            (gone,) = [each for each in servers if f"({each.uuid})" in remedy.text]
            hosts = [
                snapshot.release_from_node(node, gone) if node.name == remedy.node else node
                for node in nodes
            ]
        else:
            hosts = [
                snapshot.release_from_node(snapshot.release_from_node(node, servers[0]), servers[1])
                if node.name == remedy.node
                else node
                for node in nodes
            ]
        again = ask(*hosts, servers=servers, flavor=changed, host=remedy.node)
        assert again.fits
        assert again.placed[0].choice.devices.level == remedy.level


# -- direct ports -----------------------------------------------------------------------


def adapter(
    host: str, switch: int, network: str | None = "physnet4", **more: object
) -> SnapshotDevice:
    free = more.pop("free", 4)
    found = clouds.vfs(host, switch, free)
    return attrs.evolve(
        found, aliases=frozenset(), resource_class=None, ports=PortAdapter(network, **more)
    )


def with_adapters(node: SnapshotNode, *adapters: SnapshotDevice) -> SnapshotNode:
    return attrs.evolve(node, devices=(*node.devices, *adapters))


def test_ports_are_placed_with_the_devices():
    """The GPU beside the port's adapter, though another is as good for it alone."""
    node = with_adapters(clouds.node("one", [1, 1, 1]), adapter("one", 0, "other"))
    ports = (DirectPorts("PHYSNET4"),)
    flavor = clouds.flavor(wants={"gpu": 1})
    report = ask(with_adapters(node, adapter("one", 2)), flavor=flavor, ports=ports)
    (verdict,) = report.verdicts
    assert verdict.choice.providers() == {"one-2-0": 1, "one-2-vf": 1}
    document = json.loads(explain_document.dump_explain_document(report))
    assert document["request"]["ports"][0]["network"] == "PHYSNET4"
    assert {"alias": "port", "group": 0}.items() <= document["hosts"][0]["devices"][1].items()


def test_the_nearest_miss_of_ports():
    node = with_adapters(clouds.node("one", [2, 0]), adapter("one", 1))
    report = ask(node, ports=(DirectPorts("physnet4", 2),))
    assert not report.fits
    assert "2 gpu and 2 port free, but" in report.verdicts[0].reason
    texts = {remedy.kind: remedy.text for remedy in report.remedies}
    assert texts["affinity"] == "with hpc:affinity=numa"
    none = ask(node, ports=(DirectPorts("nowhere"),))
    assert "0 functions of adapters free for 1 ports" in none.verdicts[0].reason


def test_each_server_takes_the_functions_of_its_ports():
    nodes = with_adapters(clouds.node("one", [2, 2]), adapter("one", 0, free=1), adapter("one", 1))
    flavor = clouds.flavor(wants={"gpu": 1})
    report = ask(nodes, flavor=flavor, count=3, ports=(DirectPorts("physnet4"),))
    assert report.fits
    switches = [placed.choice.devices.picks[0].pool[:5] for placed in report.placed]
    assert sorted(switches) == ["one-0", "one-1", "one-1"]


def test_only_adapters_that_nova_would_take():
    ports = DirectPorts("physnet4")
    assert ports.fits(PortAdapter("physnet4"))
    assert ports.fits(PortAdapter("physnet4", trusted=True))
    assert not ports.fits(PortAdapter("physnet4", whole=True))
    assert not ports.fits(PortAdapter("physnet4", remote=True))
    assert not ports.fits(PortAdapter(None))
    assert not attrs.evolve(ports, trusted=True).fits(PortAdapter("physnet4"))
    assert DirectPorts(None).fits(PortAdapter(None))


def test_ports_by_the_role_of_their_network():
    node = with_adapters(clouds.node("one", [1, 1]), adapter("one", 0, "ib0"))
    flavor = clouds.flavor(wants={"gpu": 2}, group="gpu:1,rail:1")
    cloud = attrs.evolve(
        clouds.cloud(with_adapters(node, adapter("one", 1, "ib1")), flavors=[flavor]),
        port_roles=("rail:ib*",),
    )
    ports = (DirectPorts("ib0"), DirectPorts("ib1"))
    report = explain_flavor(cloud, FlavorQuestion(flavor.name, ports=ports))
    assert report.fits
    assert {pick.group for pick in report.placed[0].choice.devices.picks} == {0, 1}
    many = FlavorQuestion(flavor.name, ports=(DirectPorts("ib0", 3),))
    with pytest.raises(SnapshotError, match="at most 1 rail in each of 2 groups"):
        explain_flavor(cloud, many)


def test_a_flavors_devices_are_none_of_ports():
    node = with_adapters(clouds.node("one", [1]), adapter("one", 0))
    report = ask(node, flavor=clouds.flavor(wants={"gpu": 1, "vf": 1}))
    assert not report.fits
