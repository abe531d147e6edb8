# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc flavor create``: families of flavors that leave nothing of a node over."""

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.flavor import check_flavor
from nova_hpc_tools.cloud import family
from nova_hpc_tools.cloud.capacity import measure_flavor
from nova_hpc_tools.fabric import nova_aggregates
from nova_hpc_tools.main import main
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.snapshot import clouds


def host(gpus=(2, 2, 2, 2), vfs=True, cpus=34, pages=1000, name="node7", **more):
    """Four switches on two NUMA nodes, each with GPUs and an adapter."""
    found = clouds.node(name, list(gpus), cpus=cpus, **more)
    numa = tuple(attrs.evolve(each, pages={2048: pages, 4: 1 << 20}) for each in found.numa)
    devices = found.devices + tuple(clouds.vfs(name, switch) for switch in range(len(gpus)) if vfs)
    return attrs.evolve(found, devices=devices, numa=numa)


def built(node, beside="vf", **more):
    cloud = clouds.cloud(node, **more)
    return family.build_flavor_family(cloud, node, "hpc", "gpu", beside)


def said(member):
    specs = member.flavor.extra_specs
    return (
        member.flavor.name,
        member.flavor.vcpus,
        member.flavor.memory_mb,
        member.level,
        specs.get("hw:numa_nodes", "1"),
        member.fit,
    )


def test_a_family_of_a_node_with_pairs_below_each_switch():
    # 34 CPUs for four GPUs of a NUMA node are eight each, and 1000 pages 250.
    assert [said(each) for each in built(host())] == [
        ("hpc.gpu1", 8, 500, "switch", "1", 8),
        ("hpc.gpu2", 16, 1000, "switch", "1", 4),
        ("hpc.gpu4", 32, 2000, "switch", "1", 2),
        ("hpc.gpu8", 64, 4000, "switch", "2", 1),
    ]
    specs = built(host())[2].flavor.extra_specs
    assert specs["hpc:group"] == "gpu:1,vf:1"
    assert specs["pci_passthrough:alias"] == "gpu:4,vf:4"
    assert specs["hw:mem_page_size"] == "2048"


def test_without_adapters_the_level_is_what_the_gpus_alone_can_have():
    assert [(each.flavor.name, each.level, each.fit) for each in built(host(vfs=False), None)] == [
        ("hpc.gpu1", "numa", 8),
        ("hpc.gpu2", "switch", 4),
        ("hpc.gpu4", "numa", 2),
        ("hpc.gpu8", "numa", 1),
    ]


def test_a_level_that_would_cost_servers_is_not_asked_for():
    # Three below one switch, one below another: two pairs only without the switch.
    (_, two, _) = built(host((3, 1, 0, 0), vfs=False), None)
    assert said(two) == ("hpc.gpu2", 16, 1000, "numa", "1", 2)


def test_servers_that_are_there_do_not_count():
    full = clouds.node("node7", [["s1", "s1"], [None, None]], cpus=12)
    server = clouds.server("s1", "node7")
    empty = clouds.node("node7", [2, 2], cpus=16)
    mine, bare = built(full, None, servers=[server]), built(empty, None)
    assert [(each.flavor.name, each.level, each.fit) for each in mine] == [
        (each.flavor.name, each.level, each.fit) for each in bare
    ]
    assert [each.fit for each in mine] == [4, 2, 1]


@pytest.mark.parametrize(
    ("node", "beside", "text"),
    [
        (host(()), None, "no device that matches the alias gpu"),
        (host(vfs=False), "vf", "fewer devices of the alias vf"),
        (host(cpus=3), None, "not one dedicated CPU for each GPU"),
        (host(pages=3), None, "no hugepages on every NUMA node"),
        (attrs.evolve(host(), numa=()), None, "the NUMA nodes of its GPUs"),
    ],
)
def test_what_a_node_lacks_is_said(node, beside, text):
    with pytest.raises(SnapshotError, match=text):
        built(node, beside)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    st.integers(4, 70),
    st.integers(12, 3000),
    st.booleans(),
)
def test_every_flavor_is_legal_and_nothing_strands(gpus, cpus, pages, vfs):
    node = host(tuple(gpus), vfs, cpus, pages)
    cloud = clouds.cloud(node)
    try:
        found = family.build_flavor_family(cloud, node, "hpc", "gpu", "vf" if vfs else None)
    except SnapshotError:
        by_numa = [sum(gpus[numa * 2 : numa * 2 + 2]) for numa in range(2)]
        most = max(by_numa)
        assert cpus < most or pages < most or (vfs and len(gpus) * 4 < sum(gpus))
        return
    total = sum(gpus)
    assert {each.flavor.wants[0].count for each in found} <= {1, 2, 4, 8, total}
    for each in found:
        flavor = each.flavor
        check_flavor(
            flavor.extra_specs, flavor.server.wants, flavor.cells, numa_policy=flavor.numa_policy
        )
        assert each.fit == measure_flavor(cloud, flavor).total
        # Without any level, and on any cells, no more of them fit.
        assert 0 <= each.fit <= total // flavor.wants[0].count
    # One GPU each: the last one has its CPUs and its memory.
    assert found[0].fit == total


# --- the command --------------------------------------------------------------------------


class Made:
    """What Nova answers for a flavor."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Compute:
    """Stands for the compute proxy of openstacksdk."""

    def __init__(self):
        self.there = {}
        self.refuse = False

    def flavors(self, get_extra_specs):
        assert get_extra_specs
        return list(self.there.values())

    def create_flavor(self, **fields):
        made = Made(id=f"id-{fields['name']}", extra_specs={}, **fields)
        self.there[fields["name"]] = made
        return made

    def delete_flavor(self, ident):
        self.there = {name: each for name, each in self.there.items() if each.id != ident}

    def post(self, path, json, microversion):
        assert microversion == "2.86"
        if self.refuse:
            return Made(status_code=400, text="no such key")
        (mine,) = (each for each in self.there.values() if each.id in path)
        mine.extra_specs = json["extra_specs"]
        return Made(status_code=200, text="")


@pytest.fixture
def create(tmp_path, capsys, monkeypatch):
    def run(*words, cloud=None):
        path = tmp_path / "cloud.json"
        path.write_text(snapshot_document.dump_cloud_snapshot(cloud or clouds.cloud(host())))
        status = main(["flavor", "create", "--snapshot", str(path), *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    run.compute = Compute()
    monkeypatch.setattr(nova_aggregates, "connect_compute_proxy", lambda args: run.compute)
    return run


def test_shown_then_made_then_there(create):
    status, out, err = create()
    assert (status, err) == (1, "")
    assert "flavor create hpc.gpu8 --vcpus 64 --ram 4000 --disk 20" in out
    assert "--property hpc:group=gpu:1,vf:1" in out
    assert "Nothing was made" in out
    assert create.compute.there == {}
    status, out, _ = create("--yes", "-f", "json")
    assert status == 0
    assert [row["State"] for row in json.loads(out)] == ["made"] * 4
    assert create.compute.there["hpc.gpu4"].extra_specs["hpc:affinity"] == "switch"
    rows = json.loads(create("--yes", "-f", "json")[1])
    assert [row["State"] for row in rows] == ["is there"] * 4


def test_one_that_says_something_else_stops_all(create):
    create.compute.create_flavor(name="hpc.gpu4", vcpus=1, ram=1, disk=1)
    status, _, err = create("--yes")
    assert status == 2
    assert "hpc.gpu4: a flavor of that name has other settings" in err
    assert list(create.compute.there) == ["hpc.gpu4"]


def test_a_flavor_whose_properties_are_refused_does_not_stay(create):
    create.compute.refuse = True
    status, _, err = create("--yes")
    assert status == 2
    assert "no such key" in err
    assert create.compute.there == {}


def test_ports_in_place_of_functions(create):
    _, out, _ = create("--beside", "none", "--family", "rail", "-f", "json")
    first = json.loads(out)[0]
    assert first["Flavor"] == "rail.gpu1"
    assert "vf" not in first["Properties"]


def test_several_kinds_of_nodes_are_asked_about(create):
    cloud = clouds.cloud(host(), host((4, 4), name="node8"))
    status, _, err = create(cloud=cloud)
    assert status == 2
    assert "name one with --host (node7, node8)" in err
    assert create("--host", "node8", cloud=cloud)[0] == 1
    # Two of one kind are one.
    assert create(cloud=clouds.cloud(host(), host(name="node8")))[0] == 1


def test_a_root_disk_that_members_can_use(create):
    assert create("--yes")[0] == 0
    assert {flavor.disk for flavor in create.compute.there.values()} == {20}


def test_a_cloud_without_devices_has_a_status_of_its_own(create):
    bare = attrs.evolve(host(), devices=())
    status, out, err = create("--yes", cloud=clouds.cloud(bare))
    assert (status, out) == (3, "")
    assert err == "nova-hpc flavor create: no host of the cloud offers a device\n"


def without(node, *addresses):
    """The node that withholds these: it does not report them."""
    devices = tuple(each for each in node.devices if each.address not in addresses)
    reasons = dict.fromkeys(addresses, "its link is narrow")
    return attrs.evolve(node, devices=devices, withheld=reasons)


SICK = "0000:41:01.0"


@pytest.mark.parametrize("named", [(), ("--host", "node3"), ("--host", "node39")])
def test_one_withheld_device_among_equal_hosts(create, named):
    hosts = [host(name=f"node{number}") for number in range(40)]
    hosts[3] = without(hosts[3], SICK)
    status, out, err = create(*named, "-f", "json", cloud=clouds.cloud(*hosts))
    assert (status, err) == (1, "")
    assert [row["Flavor"] for row in json.loads(out)] == [f"hpc.gpu{n}" for n in (1, 2, 4, 8)]
    assert [row["Fit"] for row in json.loads(out)] == [8, 4, 2, 1]


def test_other_forms_of_a_withheld_device(create):
    whole, other = host(name="a"), host(name="b")
    adapter = next(each for each in other.devices if each.role == "nic")
    fewer = tuple(attrs.evolve(each, free=3) if each is adapter else each for each in other.devices)
    # One of its virtual functions; a sick GPU that a server has.
    one = attrs.evolve(other, devices=fewer, withheld={"0000:40:1f.3": "x"})
    sick = clouds.node("c", [[None, "s1"], 2, 2, 2], cpus=34, ailing={"0000:40:01.0": "x"})
    sick = attrs.evolve(
        sick, numa=whole.numa, devices=(*sick.devices, *(clouds.vfs("c", n) for n in range(4)))
    )
    server = clouds.server("s1", "c")
    for others in ([one], [sick], [one, sick]):
        servers = [server] if sick in others else []
        status, out, err = create("-f", "json", cloud=clouds.cloud(whole, *others, servers=servers))
        assert (status, err, len(json.loads(out))) == (1, "", 4)


def test_hosts_that_differ_in_more_are_no_kind(create):
    """Fewer devices without a reason, or another one at the place of the withheld one."""
    whole, second = host(name="a"), host(name="b")
    fewer = attrs.evolve(without(second, SICK), withheld={})
    two = attrs.evolve(without(second, SICK, "0000:40:00.0"), withheld={SICK: "x"})
    for other in (fewer, two, host((2, 2, 2, 1), name="b")):
        assert "several kinds" in create(cloud=clouds.cloud(whole, other))[2]


def test_a_withheld_device_that_no_other_host_shows_is_said(create):
    status, out, err = create("-f", "json", cloud=clouds.cloud(without(host(), SICK)))
    assert status == 1
    assert f"node7 withholds {SICK} (its link is narrow)" in err
    assert "hpc.gpu8" not in out


def test_servers_are_counted_once(create):
    """Their CPUs are given back once: the same flavors as on an empty host."""
    used = clouds.node("a", [["s1", None], 2, 2, 2], cpus=32)
    pages = {2048: 1000, 4: 1 << 20}
    used = attrs.evolve(
        used,
        numa=tuple(attrs.evolve(each, pages=pages) for each in used.numa),
        devices=(*used.devices, *(clouds.vfs("a", n) for n in range(4))),
    )
    cloud = clouds.cloud(used, servers=[clouds.server("s1", "a")])
    empty = create("-f", "json")[1]
    assert [row["VCPUs"] for row in json.loads(create("-f", "json", cloud=cloud)[1])] == [
        row["VCPUs"] for row in json.loads(empty)
    ]


def test_bad_words(create):
    assert create("--family", "a b")[0] == 2
    assert create("--gpu", "nothing")[0] == 2
