# SPDX-License-Identifier: Apache-2.0
"""Snapshots: there and back, and every kind of damage."""

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import Want, WantedCell
from nova_hpc.placement.roles import RoleConflictError
from nova_hpc_tools import snapshot
from nova_hpc_tools.snapshot import ServerCell, Snapshot, SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.snapshot import clouds


def full() -> Snapshot:
    """A cloud in which every field has a value."""
    one = clouds.node(
        "one",
        [2, ["s1", "s1"]],
        nvlink=(frozenset({"one-0-0", "one-0-1"}), frozenset({"one-1-0", "one-1-1"})),
        aggregates={"fast": {"hpc:leaf": "l1"}},
        unusable=("0000:50:00.0: tag hpc_tags is '9', this release reads '1'",),
        withheld={"0000:60:00.0": "quarantined"},
        ailing={"0000:41:00.0": "narrow link"},
    )
    one = attrs.evolve(one, devices=(*one.devices, clouds.vfs("one", 0)))
    cell = WantedCell(id=0, dedicated_cpus=4, memory_kib=1 << 20, page_kib=2048)
    return clouds.cloud(
        one,
        clouds.node("two", [4], out="its nova-compute is down"),
        flavors=[
            clouds.flavor(cells=[cell], numa_policy="required"),
            attrs.evolve(clouds.flavor(), image="linux"),
            attrs.evolve(clouds.flavor("bad"), problem="no such alias", wants=()),
        ],
        servers=[clouds.server("s1", "one", decision='{"v":1}')],
    )


def test_there_and_back():
    taken = full()
    text = snapshot_document.dump_cloud_snapshot(taken)
    assert snapshot_document.load_cloud_snapshot(text) == taken
    assert (
        snapshot_document.dump_cloud_snapshot(snapshot_document.load_cloud_snapshot(text)) == text
    )
    # hash=False fields are compared, too.
    assert snapshot_document.load_cloud_snapshot(text).hosts[0].withheld == {
        "0000:60:00.0": "quarantined"
    }
    assert snapshot_document.load_cloud_snapshot(text).hosts[0].numa[0].pages == {2048: 1024}


def test_the_order_of_sets_is_not_written():
    taken = full()
    one = attrs.evolve(taken.hosts[0], nvlink=taken.hosts[0].nvlink[::-1])
    other = attrs.evolve(taken, hosts=(one, *taken.hosts[1:]))
    assert snapshot_document.dump_cloud_snapshot(other) == snapshot_document.dump_cloud_snapshot(
        taken
    )


def _set(path: str, value: Any) -> Any:
    """A change of the document: a path like ``hosts.0.devices.1.free``."""

    def change(document: dict[str, Any]) -> None:
        *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = document
        for part in above:
            place = place[part]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "texts"),
    [
        ("hosts", [], ["no hosts", "discover_hosts"]),
        ("hosts", {}, ["hosts is {}, not a list"]),
        ("hosts.0", 7, ["host number 0 is 7, not an object"]),
        ("hosts.0.devices.0.free", -1, ["host one", "0000:40:00.0", "free is -1", "0 to"]),
        ("hosts.0.devices.0.free", 10**12, ["0000:40:00.0", "free is 1000000000000"]),
        ("hosts.0.devices.0.free", True, ["0000:40:00.0", "free is true, not a whole number"]),
        ("hosts.0.devices.0.free", 1.5, ["free is 1.5, not a whole number"]),
        ("hosts.0.devices.0.free", "1", ['free is "1", not a whole number']),
        ("hosts.0.devices.0.numa", -1, ["0000:40:00.0", "numa is -1"]),
        ("hosts.0.devices.0.root", None, ["0000:40:00.0", "switches needs a root"]),
        ("hosts.0.devices.0.address", "", ["host one", "address", "not a text"]),
        ("hosts.0.devices.1.address", "0000:40:00.0", ["host one", "0000:40:00.0 is there twice"]),
        ("hosts.0.devices.1.provider", "one-0-0", ["provider one-0-0 is also that of one"]),
        ("hosts.1.devices.0.provider", "one-0-0", ["host two", "also that of one, 0000:40:00.0"]),
        ("hosts.0.devices.0.wings", 2, ["host one", "wings is no known field"]),
        ("hosts.0.devices.2.used.0.server", "s9", ["server s9 is not among the servers"]),
        (
            "hosts.0.numa.0.dedicated_cpus",
            -4,
            ["host one", "numa number 0", "dedicated_cpus is -4"],
        ),
        ("hosts.0.numa.0.pages", {"0": 1}, ["pages has the size", "above 0"]),
        ("hosts.0.numa.0.pages", {"2048": -1}, ["pages: 2048 is -1"]),
        ("hosts.0.numa.1.id", 0, ["host one: two NUMA nodes have the same id"]),
        ("hosts.0.nvlink.0", ["nobody"], ["host one: nvlink: provider nobody"]),
        ("hosts.0.nvlink.0", [], ["host one: nvlink"]),
        ("hosts.0.withheld", {"0000:60:00.0": 3}, ["host one: withheld: 0000:60:00.0 is 3"]),
        ("hosts.0.aggregates", {"fast": []}, ["host one: aggregates: fast is []"]),
        ("hosts.1.host", "one", ["host"]),
        ("flavors.0.wants.0.count", 0, ["flavor pair", "count is 0; it must be 1 to 1024"]),
        ("flavors.0.cells.0.page_kib", 0, ["flavor pair", "page_kib is 0; it must be 1"]),
        ("flavors.1.image", None, ["flavor pair with None is there twice"]),
        ("servers.0.cells.0.memory_kib", -1, ["memory_kib is -1"]),
        ("servers.0.cells.0.memory_kib", (1 << 50) + 1, ["must be 0 to 1125899906842624"]),
        ("flavors.0.wants.0.count", 1025, ["flavor pair: wants number 0: count is 1025"]),
        ("flavors.0.cells.0.host_node", 1, ["cells number 0: host_node is no known field"]),
        ("flavors.0.wants", {"gpu": 2}, ["flavor pair: wants is", "not a list"]),
        ("flavors.0.extra_specs", {"a": 1}, ["flavor pair: extra_specs: a is 1, not a text"]),
        ("aliases.1.name", "gpu", ["alias gpu is there twice"]),
        ("aliases.0.traits", "CUSTOM", ['alias gpu: traits is "CUSTOM", not a list']),
        ("hosts.0.numa.0.pages", {"1" * 16: 1}, ["pages has the size"]),
        ("hosts.0.numa.0.pages", {"2048": (1 << 50) + 1}, ["pages: 2048 is", "must be 0 to"]),
        ("hosts.0.numa.0.pages", [], ["numa number 0: pages is [], not an object"]),
        ("hosts.0.numa.0.socket", 1_000_001, ["socket is 1000001; it must be 0 to 1000000"]),
        (
            "hosts.0.devices.0.used",
            [{"address": "a", "server": "s1"}] * 2,
            ["host one: device 0000:40:00.0: used: function a is there twice"],
        ),
        ("hosts.0.devices.0", [], ["host one: devices number 0 is [], not an object"]),
        ("servers.0.name", "a\x1b[2J", ["server number 0: name is", "cannot be printed"]),
        ("hosts.0.withheld", {"a": "\ud800"}, ["host one: withheld: a is", "cannot be printed"]),
        ("profile.0.weight", 0, ["profile number 0", "weight is 0"]),
        ("profile.0.groups", 0, ["profile number 0", "groups is 0; it must be 1 to 1024"]),
        ("profile.0.level", "rack", ["profile number 0", 'level is "rack", not one of']),
        ("profile.0.counts", {"gpu": 0}, ["profile number 0", "counts: gpu is 0"]),
        ("taken", None, ["taken is null, not a text"]),
        ("version", 5, ["version 5", "newer", "update nova-hpc"]),
        ("version", True, ["version true", "take the snapshot again"]),
        ("version", 0, ["version 0", "take the snapshot again"]),
        ("schema", "nova-hpc/inventory", ["no snapshot", "nova-hpc simulate snapshot"]),
    ],
)
def test_damage_is_named(path, value, texts):
    document = snapshot_document.build_snapshot_document(full())
    if path == "hosts.1.host":
        document["hosts"][1]["node"] = "one"
    _set(path, value)(document)
    with pytest.raises(SnapshotError) as error:
        snapshot_document.load_cloud_snapshot(json.dumps(document))
    assert str(error.value).isprintable()
    for text in texts:
        assert text in str(error.value)


def test_a_server_that_is_there_twice_is_named():
    document = snapshot_document.build_snapshot_document(full())
    document["servers"] *= 2
    with pytest.raises(SnapshotError, match="server s1 is there twice"):
        snapshot_document.load_cloud_snapshot(json.dumps(document))


@pytest.mark.parametrize("value", [0, 1, 1024])
def test_bounds_are_inside(value):
    document = snapshot_document.build_snapshot_document(full())
    document["hosts"][0]["devices"][0]["free"] = value
    document["profile"][0]["groups"] = value or 1
    assert (
        snapshot_document.load_cloud_snapshot(json.dumps(document)).hosts[0].devices[0].free
        == value
    )


def test_a_field_that_is_missing_is_named():
    document = snapshot_document.build_snapshot_document(full())
    del document["hosts"][0]["devices"][0]["free"]
    with pytest.raises(SnapshotError, match=r"host one: devices 0000:40:00.0: free is missing"):
        snapshot_document.load_cloud_snapshot(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, "{}"])
def test_what_is_no_document(text):
    with pytest.raises(SnapshotError):
        snapshot_document.load_cloud_snapshot(text)


def test_files_are_named(tmp_path):
    with pytest.raises(SnapshotError, match=r"none\.json cannot be read: No such file"):
        snapshot_document.read_snapshot_file(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SnapshotError, match=r"bytes\.json cannot be read"):
        snapshot_document.read_snapshot_file(tmp_path / "bytes.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(SnapshotError, match=r"bad\.json: it is no snapshot"):
        snapshot_document.read_snapshot_file(tmp_path / "bad.json")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        value = value.items()
    elif isinstance(value, list):
        value = enumerate(value)
    else:
        return
    for key, each in value:
        yield from _paths(each, (*path, key))


_ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([[]]),
    st.just([{}]),
    st.just({"": None}),
)


@given(st.data())
def test_any_damage_is_an_error_or_a_snapshot(data):
    """Never another exception, and what is read can be written again."""
    document = snapshot_document.build_snapshot_document(full())
    path = data.draw(st.sampled_from([each for each in _paths(document) if each]))
    place: Any = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = data.draw(_ANYTHING)
    try:
        read = snapshot_document.load_cloud_snapshot(json.dumps(document))
    except SnapshotError:
        pass
    else:
        assert (
            snapshot_document.load_cloud_snapshot(snapshot_document.dump_cloud_snapshot(read))
            == read
        )


def test_taking_and_releasing_undo_each_other():
    node = clouds.node("one", [2, 2])
    cell = WantedCell(id=0, dedicated_cpus=4, memory_kib=4096, page_kib=2048)
    flavor = clouds.flavor(cells=[cell], numa_policy="required")
    request = snapshot.request_of_flavor(flavor, [node])
    (chosen,) = choose_device_sets(request, snapshot.engine_host(node, flavor.server.wants)).sets
    after = snapshot.take_from_node(node, chosen, request.cells, "new")
    numa = {each.id: each for each in after.numa}[chosen.cells[0]]
    assert (numa.dedicated_cpus, numa.pages) == (12, {2048: 1022})
    assert sum(device.free for device in after.devices) == 2
    held = clouds.server("new", "one", cells=(ServerCell(chosen.cells[0], 4, 4096, 2048),))
    again = snapshot.release_from_node(after, held)
    assert again == node
    assert [each.pages for each in again.numa] == [each.pages for each in node.numa]


def test_a_device_that_ails_does_not_become_free():
    node = clouds.node("one", [["s1", "s1"]], ailing={"0000:40:00.0": "narrow"})
    left = snapshot.release_from_node(node, clouds.server("s1", "one"))
    assert [device.free for device in left.devices] == [0, 1]


def test_cpus_of_a_server_that_moves_are_given_back_at_home_only():
    node = clouds.node("one", [["s1"]])
    left = snapshot.release_from_node(node, clouds.server("s1", "elsewhere"))
    assert [device.free for device in left.devices] == [1]
    assert left.numa == node.numa


def test_only_nvlink_sets_that_are_free_are_offered():
    host = snapshot.engine_host(full().hosts[0], ())
    assert host.nvlink == (frozenset({"one-0-0", "one-0-1"}),)


def test_an_alias_is_of_the_role_of_its_name():
    odd = clouds.node("odd", [1])
    odd = attrs.evolve(odd, devices=tuple(attrs.evolve(d, role="fpga") for d in odd.devices))
    wants = clouds.flavor().server.wants
    hosts = [odd, clouds.node("a", [1])]
    assert snapshot.roles_of_wants(hosts, wants) == {"0": "gpu"}
    assert snapshot.roles_of_wants([odd], wants) == {"0": "fpga"}
    # Somebody has the devices that are called so.
    taken = clouds.node("b", [["s1"]])
    assert snapshot.roles_of_wants([odd, taken], wants) == {"0": "gpu"}
    assert snapshot.engine_host(odd, wants, {"0": "gpu"}).pools[0].serves == frozenset()
    assert snapshot.engine_host(odd, wants, {"0": "fpga"}).pools[0].serves == {"0"}


def test_devices_of_several_roles_under_another_name():
    odd = clouds.node("odd", [1])
    odd = attrs.evolve(odd, devices=tuple(attrs.evolve(d, role="fpga") for d in odd.devices))
    hosts = [odd, clouds.node("a", [1])]
    hosts = [
        attrs.evolve(
            host,
            devices=tuple(attrs.evolve(d, aliases=frozenset({"any"})) for d in host.devices),
        )
        for host in hosts
    ]
    assert [text.partition(";")[0] for text in snapshot.mixed_aliases(hosts)] == [
        "Nova serves the alias any with devices of the roles fpga and gpu"
    ]
    with pytest.raises(RoleConflictError, match=r"the alias any .* roles fpga and gpu"):
        snapshot.roles_of_wants(hosts, clouds.flavor(wants={"any": 1}).server.wants)


def test_the_aliases_of_a_device_count_as_in_the_scheduler() -> None:
    """Those that a flavor does not ask for, too; a device for ports serves none."""
    node = full().hosts[0]
    (one, *_) = node.devices
    plain = attrs.evolve(one, free=1, aliases=frozenset({"gpu"}), ports=None)
    special = attrs.evolve(plain, provider="other", aliases=frozenset({"gpu", "h100"}))
    wants = (Want("0", "gpu", 1),)
    host = snapshot.engine_host(attrs.evolve(node, devices=(plain, special), nvlink=()), wants)
    assert {pool.id: pool.aliases for pool in host.pools} == {plain.provider: 1, "other": 2}
