# SPDX-License-Identifier: Apache-2.0
import json
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology.model import Node, NumaNode
from nova_hpc_tools.site import aliases, declaration, device_spec, settings
from nova_hpc_tools.site.settings import SettingsOptions
from tests.unit.adopt.machines import ROLES, adapter, gpu, machines, node


def numa(number, *cores):
    return NumaNode(
        id=number,
        cpus=frozenset().union(*cores),
        smt_siblings=tuple(frozenset(core) for core in cores),
    )


def render(machine, others=(), terms=None, **options):
    return settings.render_settings(
        machine,
        device_spec.build_device_spec(machine, ROLES, terms),
        SettingsOptions(**options),
        others,
    )


def values(text, name):
    """The values of one option, without the help of oslo.config."""
    lines = [line.partition(" = ") for line in text.splitlines() if not line.startswith("#")]
    return [value for key, _, value in lines if key == name]


def value(text, name):
    found = values(text, name)
    assert len(found) == 1
    return found[0]


# --- aliases -------------------------------------------------------------------


def names(*specs, **options):
    return [alias["name"] for alias in aliases.build_aliases(specs, **options)]


def build(*functions, **terms):
    return device_spec.build_device_spec(node(*functions), ROLES, declaration.Declaration(**terms))


H100 = gpu("0000:19:00.0", total_vfs=16)
A30 = gpu("0000:1b:00.0", product_id="20b7")


def test_one_kind_is_called_as_its_role():
    parts = adapter("0000:1a:00.0", ["0000:1a:00.1"])
    assert aliases.build_aliases([build(H100, *parts)]) == [
        {"name": "gpu", "vendor_id": "10de", "product_id": "2330", "device_type": "type-PF"},
        {"name": "vf", "vendor_id": "15b3", "product_id": "101e", "device_type": "type-VF"},
    ]


def test_two_kinds_have_the_product_in_their_names():
    assert names(build(H100, A30)) == ["gpu-20b7", "gpu-2330"]


def test_nodes_of_two_kinds_share_one_set_of_names():
    assert names(build(H100), build(A30)) == ["gpu-20b7", "gpu-2330"]
    assert names(build(H100), build(H100)) == ["gpu"]


def test_product_names_do_not_depend_on_the_other_nodes():
    assert names(build(H100), product_names=True) == ["gpu-2330"]


def test_a_resource_class_joins_kinds():
    both = build(attrs.evolve(H100, total_vfs=None), A30, resource_classes={"gpu": "CUSTOM_GPU"})
    assert aliases.build_aliases([both]) == [
        {"name": "gpu", "resource_class": "CUSTOM_GPU", "device_type": "type-PCI"}
    ]


def test_a_resource_class_of_two_device_types():
    both = build(H100, A30, resource_classes={"gpu": "CUSTOM_GPU"})
    assert names(both) == ["gpu-pci", "gpu-pf"]


def test_one_product_of_two_vendors_and_two_types():
    assert names(build(H100, attrs.evolve(A30, product_id="2330", vendor_id="1002"))) == [
        "gpu-2330-1002",
        "gpu-2330-10de",
    ]
    assert names(build(H100, attrs.evolve(A30, product_id="2330"))) == [
        "gpu-2330-pci",
        "gpu-2330-pf",
    ]


@given(st.lists(machines(), max_size=3), st.booleans())
def test_every_offer_has_exactly_one_alias(nodes, product_names):
    specs = [device_spec.build_device_spec(machine, ROLES) for machine in nodes]
    named = aliases.build_aliases(specs, product_names)
    assert len({alias["name"] for alias in named}) == len(named)
    for spec in specs:
        for offer in spec.offers:
            mine = [
                alias
                for alias in named
                if (alias["vendor_id"], alias["product_id"], alias["device_type"])
                == (offer.vendor_id, offer.product_id, offer.dev_type)
                and alias["name"].startswith(offer.tags.role)
            ]
            assert len(mine) == 1


# --- filters and limits ----------------------------------------------------------


@pytest.mark.parametrize(
    ("given_filters", "expected"),
    [
        (["A"], ["A", "HpcTopologyFilter", "NUMATopologyFilter", "PciPassthroughFilter"]),
        (
            ["NUMATopologyFilter", "A"],
            ["HpcTopologyFilter", "NUMATopologyFilter", "A", "PciPassthroughFilter"],
        ),
        (
            [
                "A",
                "HpcFabricFilter",
                "PciPassthroughFilter",
                "HpcTopologyFilter",
                "NUMATopologyFilter",
            ],
            ["A", "HpcTopologyFilter", "PciPassthroughFilter", "NUMATopologyFilter"],
        ),
    ],
)
def test_our_filter_goes_before_those_that_check_candidates(given_filters, expected):
    expected = [*expected, "HpcFabricFilter"]
    assert settings.place_own_filters(given_filters) == expected
    assert settings.place_own_filters(expected) == expected


@pytest.mark.parametrize(("hosts", "limit"), [(1, "1000"), (999, "1000"), (1000, "1001")])
def test_limits_are_beyond_every_host_and_never_shrink(hosts, limit):
    files = render(node(H100), hosts=hosts).files
    assert value(files["controller"], "max_placement_results") == limit
    assert value(files["placement"], "max_allocation_candidates") == limit


def test_placement_does_not_retry_within_a_stale_transaction():
    files = render(node(H100)).files
    assert value(files["placement"], "allocation_conflict_retry_count") == "1"


def test_schedulers_do_not_all_choose_the_same_of_equal_hosts():
    files = render(node(H100)).files
    assert value(files["controller"], "shuffle_best_same_weighed_hosts") == "true"


# --- the node --------------------------------------------------------------------


def cpu_sets(*numa_nodes, cores=1):
    machine = Node(source="test", numa_nodes=numa_nodes)
    result = render(machine, housekeeping_cores=cores)
    text = result.files["compute"]
    pair = [values(text, name) for name in ("cpu_shared_set", "cpu_dedicated_set")]
    return [each[0] if each else None for each in pair], result.remarks


def test_siblings_stay_together():
    pair, _ = cpu_sets(numa(0, {0, 8}, {1, 9}, {2, 10}), numa(1, {4, 12}, {5, 13}))
    assert pair == ["0,4,8,12", "1-2,5,9-10,13"]


def test_more_housekeeping():
    pair, _ = cpu_sets(numa(0, {0, 8}, {1, 9}, {2, 10}), cores=2)
    assert pair == ["0-1,8-9", "2,10"]


def test_no_housekeeping():
    pair, _ = cpu_sets(numa(0, {0}, {1}), cores=0)
    assert pair == [None, "0-1"]


def test_the_last_core_of_a_node_is_for_servers():
    pair, remarks = cpu_sets(numa(0, {0}), numa(1, {1}, {2}), cores=2)
    assert pair == ["1", "0,2"]
    assert (
        "NUMA node 0: 0 of 1 cores kept for the host, not 2, so that servers have one." in remarks
    )
    assert (
        "NUMA node 1: 1 of 2 cores kept for the host, not 2, so that servers have one." in remarks
    )


def test_memory_without_cpus():
    pair, _ = cpu_sets(numa(0, {0}, {1}), NumaNode(id=1))
    assert pair == ["0", "1"]


def test_unknown_cpus_are_said():
    pair, remarks = cpu_sets(NumaNode(id=0))
    assert pair == [None, None]
    assert any("cpu_dedicated_set yourself" in remark for remark in remarks)


def parse(text):
    found = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=3),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_cpu_sets_split_the_machine_by_cores(layout, keep, random):
    numbers = list(range(sum(map(sum, layout))))
    random.shuffle(numbers)
    nodes = [
        numa(index, *({numbers.pop() for _ in range(threads)} for threads in threads_of_cores))
        for index, threads_of_cores in enumerate(layout)
    ]
    (shared, dedicated), _ = cpu_sets(*nodes, cores=keep)
    shared, dedicated = parse(shared), parse(dedicated)
    assert not shared & dedicated
    assert shared | dedicated == set().union(*(each.cpus for each in nodes))
    for each in nodes:
        assert each.cpus & dedicated
        kept = [core for core in each.smt_siblings if core & shared]
        assert all(core <= shared for core in kept)
        assert len(kept) == min(keep, len(each.smt_siblings) - 1)


def test_the_node_offers_its_devices():
    text = render(node(H100, A30)).files["compute"]
    assert value(text, "compute_driver") == "hpc.HpcLibvirtDriver"
    assert value(text, "report_in_placement") == "true"
    assert [json.loads(each)["product_id"] for each in values(text, "device_spec")] == [
        "2330",
        "20b7",
    ]
    assert "device_role" not in text
    assert all(json.loads(each)["managed"] == "no" for each in values(text, "device_spec"))


def test_a_node_without_devices_says_so():
    result = render(node())
    assert "No device of this node is offered to servers." in result.remarks
    assert values(result.files["compute"], "device_spec") == []


def test_given_roles_are_written():
    entry = '{"role": "gpu", "class": "03*"}'
    text = render(node(H100), device_role=[entry]).files["compute"]
    assert values(text, "device_role") == [entry]


def test_nothing_is_substituted():
    text = render(node(attrs.evolve(H100, root="pci$oops"))).files["compute"]
    assert '"pci$$oops"' in text


def test_a_controller_claims_in_placement_without_the_common_file():
    # Of a node without devices, the controller's file alone is written.
    assert value(render(node(H100)).files["controller"], "pci_in_placement") == "true"


def test_options_are_disjoint_between_the_files():
    files = render(node(H100)).files
    assert tuple(files) == settings.PARTS
    seen = {}
    for part, text in files.items():
        section = None
        for line in text.splitlines():
            if line.startswith("["):
                section = line
            elif " = " in line and not line.startswith("#"):
                seen.setdefault((section, line.split(" = ")[0]), set()).add(part)
    # A compute service counts with it, too, and a controller may have no common file.
    shared = seen.pop(("[filter_scheduler]", "pci_in_placement"))
    assert shared == {"common", "controller"}
    assert seen
    assert all(len(parts) == 1 for parts in seen.values())


@given(machines())
def test_rendering_is_deterministic(machine):
    first, second = render(machine), render(machine)
    assert first == second
    assert all(text.endswith("\n") for text in first.files.values())
    assert all(not (a == "" == b) for t in first.files.values() for a, b in pairwise(t.split("\n")))
