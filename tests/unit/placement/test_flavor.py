# SPDX-License-Identifier: Apache-2.0
"""The words of the ``hpc:`` keys, and the rules between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement import flavor
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.flavor import FlavorError, build_request, check_flavor, check_value
from nova_hpc.placement.model import DeviceGroup, FreeHost, Nvlink, Want, WantedCell
from nova_hpc_common.level import AffinityPolicy, Level

GPU2 = (Want("g", "gpu", 2),)
BOTH = (Want("g", "gpu", 4), Want("v", "vf", 4))
ONE = (WantedCell(0, 8),)
TWO = (WantedCell(0, 4), WantedCell(1, 4))
POLICY = "hw:pci_numa_affinity_policy"


def specs(**keys: str) -> dict[str, str]:
    numa = keys.pop("numa_policy", None)
    found = {f"hpc:{key}": value for key, value in keys.items()}
    return found if numa is None else {**found, POLICY: numa}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hpc:affinity", word) for word in ("switch", "root", "numa", "socket", "host")),
        ("hpc:affinity_policy", "required"),
        ("hpc:affinity_policy", "preferred"),
        ("hpc:group", "gpu:1"),
        ("hpc:group", "gpu:1,vf:16"),
        ("hpc:group", " gpu:1 , vf : 1 "),
        ("hpc:group", "a100-80GB sxm:1024"),
        ("hpc:nvlink", "none"),
        ("hpc:nvlink", "preferred"),
        ("hpc:nvlink", "required"),
        ("hpc:guest_topology", "flat"),
        ("hpc:movable", "yes"),
        ("hpc:movable", "no"),
        ("hpc:preemptible", "yes"),
        ("hpc:preemptible", "no"),
        ("hpc:guest_topology", "numa"),
        ("hpc:guest_topology", "mirror"),
        ("hpc:shared_memory", "2"),
        ("hpc:shared_memory", "4096"),
        ("hpc:shared_memory_policy", "required"),
        ("hpc:shared_memory_policy", "preferred"),
    ],
)
def test_values_that_mean_something(key: str, value: str) -> None:
    check_value(key, value)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("hpc:affinity", "", "must be one of switch, root, numa, socket, host"),
        ("hpc:affinity", "Switch", "hpc:affinity is 'Switch'; it must be one of switch"),
        ("hpc:affinity", "switch ", "it must be one of switch"),
        ("hpc:affinity", "pix", "must be one of switch"),
        ("hpc:affinity", "x" * 100_000, r"is 'x{56}\.\.\.; it must"),
        *(
            ("hpc:shared_memory", value, "it must be an even number of MiB from 2 to 4096")
            for value in ("", "0", "1", "3", "4098", "-2", "+2", " 2", "2.0", "64MiB", "2\n", "٢")
        ),
        ("hpc:shared_memory", "x" * 100_000, r"is 'x{56}\.\.\.; it must"),
        ("hpc:shared_memory_policy", "strict", "must be one of required, preferred"),
        ("hpc:affinity_policy", "strict", "must be one of required, preferred"),
        ("hpc:affinity_policy", "", "must be one of required, preferred"),
        ("hpc:nvlink", "yes", "must be one of required, preferred, none"),
        ("hpc:guest_topology", "tree", "must be one of mirror, numa, flat"),
        ("hpc:movable", "true", "must be one of yes, no"),
        ("hpc:preemptible", "True", "must be one of yes, no"),
        ("hpc:affinty", "switch", "'hpc:affinty' is no known key; the hpc: keys are hpc:affinity"),
        ("hpc:", "switch", "'hpc:' is no known key"),
        ("hpc:group", "", "hpc:group is empty"),
        ("hpc:group", "   ", "hpc:group is empty"),
        ("hpc:group", ",", "hpc:group has the term ''; each must be name:count"),
        ("hpc:group", "gpu", "hpc:group has the term 'gpu'; each must be name:count"),
        ("hpc:group", "gpu:1,", "hpc:group has the term ''"),
        ("hpc:group", ":1", "hpc:group has the term ':1'"),
        ("hpc:group", "gpu:1:1", "hpc:group has the term 'gpu:1:1'"),
        ("hpc:group", "gpu:", "requests '' of 'gpu'; the count must be 1 to 1024"),
        ("hpc:group", "gpu:0", "requests '0' of 'gpu'; the count must be 1 to 1024"),
        ("hpc:group", "gpu:-1", "requests '-1' of 'gpu'"),
        ("hpc:group", "gpu:+1", "the count must be 1 to 1024"),
        ("hpc:group", "gpu:1.5", "the count must be 1 to 1024"),
        ("hpc:group", "gpu:1_0", "the count must be 1 to 1024"),
        ("hpc:group", "gpu:1025", "the count must be 1 to 1024"),
        ("hpc:group", "gpu:" + "9" * 100_000, "the count must be 1 to 1024"),
        ("hpc:group", "gpu:\N{ARABIC-INDIC DIGIT TWO}", r"requests '\\u0662' of 'gpu'"),
        ("hpc:group", "gpu:\N{SUPERSCRIPT TWO}", "the count must be 1 to 1024"),
        ("hpc:group", "gpu:1,vf:1,gpu:1", "hpc:group names 'gpu' twice; add the counts up"),
    ],
)
def test_values_that_mean_nothing(key: str, value: str, text: str) -> None:
    with pytest.raises(FlavorError, match=text):
        check_value(key, value)
    # And the same when the whole flavor is read, whatever else is right.
    with pytest.raises(FlavorError, match=text):
        check_flavor({**specs(affinity="host"), key: value}, GPU2, ())


def test_a_flavor_of_others() -> None:
    assert not flavor.has_hpc_keys({})
    assert not flavor.has_hpc_keys({"hw:cpu_policy": "dedicated", "xhpc:affinity": "numa"})
    assert flavor.has_hpc_keys({"hpc:affinty": "numa"})
    # Nova alone schedules a server that has only this key.
    assert not flavor.has_hpc_keys({"hpc:movable": "yes"})
    assert not flavor.has_hpc_keys({"hpc:preemptible": "yes"})


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({}, None),
        ({"hpc:affinity": "numa"}, None),
        ({"hpc:fabric": "leaf"}, flavor.Fabric("leaf", AffinityPolicy.REQUIRED)),
        (
            {"hpc:fabric": "nvlink_domain", "hpc:fabric_policy": "preferred"},
            flavor.Fabric("nvlink_domain", AffinityPolicy.PREFERRED),
        ),
    ],
)
def test_the_fabric_of_a_flavor(specs, expected):
    assert flavor.read_fabric(specs) == expected
    assert flavor.has_fabric_keys(specs) == (expected is not None)
    # It is about no device.
    assert flavor.has_hpc_keys(specs) == ("hpc:affinity" in specs)


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (
            {"hpc:fabric": "rack"},
            "hpc:fabric is 'rack'; it must be one of sub_domain, nvlink_domain, leaf",
        ),
        ({"hpc:fabric_policy": "preferred"}, "hpc:fabric_policy is set without hpc:fabric"),
        ({"hpc:fabric": "leaf", "hpc:fabric_policy": "soft"}, "hpc:fabric_policy is 'soft'"),
    ],
)
def test_a_fabric_that_is_refused(specs, text):
    assert flavor.has_fabric_keys(specs)
    with pytest.raises(flavor.FlavorError, match=text):
        flavor.read_fabric(specs)


PREFERRED, REQUIRED = AffinityPolicy.PREFERRED, AffinityPolicy.REQUIRED


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({}, None),
        ({"hpc:affinity": "numa", "hpc:fabric": "leaf"}, None),
        ({"hpc:shared_memory": "64"}, flavor.SharedMemoryWish(64, PREFERRED)),
        (
            {"hpc:shared_memory": "2", "hpc:shared_memory_policy": "required"},
            flavor.SharedMemoryWish(2, REQUIRED),
        ),
    ],
)
def test_the_shared_memory_of_a_flavor(specs, expected):
    assert flavor.read_shared_memory(specs, 256) == expected
    assert flavor.has_shared_memory_keys(specs) == (expected is not None)
    # It is about no device.
    assert flavor.has_hpc_keys(specs) == ("hpc:affinity" in specs)


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ({"hpc:shared_memory": "63"}, "hpc:shared_memory is '63'; it must be an even number"),
        ({"hpc:shared_memory_policy": "preferred"}, "is set without hpc:shared_memory; add it"),
        ({"hpc:shared_memory": "2", "hpc:shared_memory_policy": "soft"}, "_policy is 'soft'"),
        (
            {"hpc:shared_memory": "64"},
            "is 64 MiB, more than a quarter of the flavor's memory of 255 MiB; set it to 62 or",
        ),
    ],
)
def test_shared_memory_that_is_refused(specs, text):
    with pytest.raises(flavor.FlavorError, match=text):
        flavor.read_shared_memory(specs, 255)


@pytest.mark.parametrize("level", ["switch", "root", "numa", "socket", "host"])
@pytest.mark.parametrize("policy", ["required", "preferred"])
@pytest.mark.parametrize("numa", [None, "legacy", "required", "preferred", "socket"])
@pytest.mark.parametrize("cells", [(), ONE])
def test_the_table_of_numa_policies(
    level: str, policy: str, numa: str | None, cells: tuple[WantedCell, ...]
) -> None:
    if policy == "preferred" or level == "host":
        good, bad = {"preferred"}, {"required"}
    elif level == "socket":
        good, bad = {"socket", "preferred"}, {"required"}
    else:
        good, bad = {"required", "preferred"}, {"socket"}
    asked = specs(affinity=level, affinity_policy=policy, **({"numa_policy": numa} if numa else {}))
    if numa in bad or (cells and numa not in good):
        with pytest.raises(FlavorError, match=rf"hpc:affinity={level}.*needs {POLICY} to be"):
            check_flavor(asked, GPU2, cells)
    else:
        request = build_request(asked, GPU2, cells)
        assert request.level is Level.from_word(level)
        assert request.policy is AffinityPolicy(policy)
        assert request.on_cells is (bool(cells) and numa == "required")
    # What Nova will really do counts more than what the flavor says.
    if cells and numa is not None:
        with pytest.raises(FlavorError):
            check_flavor(asked, GPU2, cells, numa_policy=next(iter(bad)))


def test_the_default_of_nova_is_named() -> None:
    with pytest.raises(FlavorError) as caught:
        check_flavor(specs(affinity="switch"), GPU2, ONE)
    assert str(caught.value) == (
        "hpc:affinity=switch needs hw:pci_numa_affinity_policy to be required or preferred, "
        "it is 'legacy' (Nova's default)"
    )


@pytest.mark.parametrize(
    ("keys", "wants", "text"),
    [
        (specs(group="gpu:1"), GPU2, r"hpc:affinity is missing \(hpc:group is set\)"),
        (specs(affinity_policy="preferred"), GPU2, "hpc:affinity is missing"),
        (specs(guest_topology="flat"), GPU2, "hpc:affinity is missing"),
        ({}, GPU2, "hpc:affinity is missing"),
        (specs(affinity="numa"), (), "the flavor requests none; add pci_passthrough:alias"),
        (specs(affinity="numa", group="gpu:3"), GPU2, "3 gpu in each group, which does not divide"),
        (specs(affinity="numa", group="gpu:4"), GPU2, "does not divide the 2 gpu of the flavor"),
        (specs(affinity="numa", group="gpu:1"), BOTH, "hpc:group does not name vf"),
        (
            specs(affinity="numa", group="gpu:1,vf:2"),
            BOTH,
            "4 gpu make 4 groups, 4 vf make 2 groups",
        ),
        (
            specs(affinity="numa", group="gpu:1,nic:1"),
            BOTH,
            "names 'nic', which is no alias of the flavor; it has gpu, vf",
        ),
        (specs(affinity="numa"), (Want("g", "gpu", 0),), "requests '0' of 'gpu'"),
        (specs(affinity="numa"), (Want("g", "gpu", -1),), "requests '-1' of 'gpu'"),
        (specs(affinity="numa"), (Want("g", "gpu", 10**9),), "the count must be 1 to 1024"),
        (
            specs(affinity="numa"),
            (Want("g", "gpu", 1000), Want("h", "gpu", 1000)),
            "requests 2000 of 'gpu' altogether",
        ),
        (
            specs(affinity="numa"),
            tuple(Want(str(n), f"alias{n}", 1) for n in range(9)),
            "names 9 different aliases; with hpc: keys at most 8",
        ),
    ],
)
def test_contradictions(keys: dict[str, str], wants: tuple[Want, ...], text: str) -> None:
    with pytest.raises(FlavorError, match=text):
        check_flavor(keys, wants, ())


def test_cells_of_many_sizes() -> None:
    cells = tuple(WantedCell(n, n) for n in range(9))
    with pytest.raises(FlavorError, match="NUMA cells of 9 different sizes"):
        check_flavor(specs(affinity="switch", numa_policy="preferred", group="gpu:1"), GPU2, cells)


@pytest.mark.parametrize(
    ("keys", "wants", "cells", "expected"),
    [
        ({}, BOTH, (), [{"g": 4, "v": 4}]),
        ({}, BOTH, ONE, [{"g": 4, "v": 4}]),
        ({}, BOTH, TWO, [{"g": 2, "v": 2}] * 2),
        ({"group": "gpu:1,vf:1"}, BOTH, TWO, [{"g": 1, "v": 1}] * 4),
        ({"group": "vf:4,gpu:4"}, BOTH, TWO, [{"g": 4, "v": 4}]),
        (
            {"group": "gpu:1,vf:2"},
            (Want("g", "gpu", 1), Want("v", "vf", 2)),
            TWO,
            [{"g": 1, "v": 2}],
        ),
        # gpu:1,gpu:1 in pci_passthrough:alias is two requests of Nova's.
        ({}, (Want("a", "gpu", 1), Want("b", "gpu", 1)), (), [{"a": 1, "b": 1}]),
        ({}, (Want("a", "gpu", 1), Want("b", "gpu", 1)), TWO, [{"a": 1}, {"b": 1}]),
        (
            {"group": "gpu:2"},
            (Want("a", "gpu", 1), Want("b", "gpu", 3)),
            (),
            [{"a": 1, "b": 1}, {"b": 2}],
        ),
    ],
)
def test_groups(
    keys: dict[str, str],
    wants: tuple[Want, ...],
    cells: tuple[WantedCell, ...],
    expected: list[dict[str, int]],
) -> None:
    request = build_request(specs(affinity="numa", numa_policy="required", **keys), wants, cells)
    assert request.groups == tuple(DeviceGroup(counts) for counts in expected)
    assert request.wants == wants
    assert request.cells == cells
    choose_device_sets(request, FreeHost("empty", ()))  # the solver takes every request that passes


def test_devices_that_do_not_divide_among_the_cells() -> None:
    odd = (Want("g", "gpu", 3), Want("v", "vf", 4))
    for level in ("switch", "root", "numa"):
        with pytest.raises(
            FlavorError,
            match=f"hpc:affinity={level} makes one group for each of "
            "the guest's 2 NUMA cells, but 3 gpu can not be divided by 2",
        ):
            check_flavor(specs(affinity=level, numa_policy="preferred"), odd, TWO)
    for keys in (
        specs(affinity="socket", numa_policy="socket"),
        specs(affinity="host", numa_policy="preferred"),
        specs(affinity="switch", affinity_policy="preferred", numa_policy="preferred"),
    ):
        assert build_request(keys, odd, TWO).groups == (DeviceGroup({"g": 3, "v": 4}),)


def test_roles_in_groups() -> None:
    wants = (Want("1", "a100", 2), Want("2", "roce", 2))
    keys = specs(affinity="numa", group="gpu:1,vf:1")
    request = build_request(keys, wants, (), {"1": "gpu", "2": "vf"})
    assert request.groups == (DeviceGroup({"1": 1, "2": 1}),) * 2
    # An alias called like a role is the alias.
    swapped = build_request(
        keys, (Want("1", "vf", 1), Want("2", "gpu", 1)), (), {"1": "gpu", "2": "vf"}
    )
    assert swapped.groups == (DeviceGroup({"1": 1, "2": 1}),)
    with pytest.raises(FlavorError, match=r"role 'gpu', which several aliases.*\(a100, h100\)"):
        check_flavor(
            specs(affinity="numa", group="gpu:1"),
            (Want("1", "a100", 1), Want("2", "h100", 1)),
            (),
            {"1": "gpu", "2": "gpu"},
        )
    with pytest.raises(FlavorError, match="names 'a100' twice, as an alias and by its role 'gpu'"):
        check_flavor(specs(affinity="numa", group="a100:1,gpu:1"), wants, (), {"1": "gpu"})
    with pytest.raises(FlavorError, match="it has a100, roce, role gpu"):
        check_flavor(specs(affinity="numa", group="x:1"), wants, (), {"1": "gpu"})


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from([*flavor.KEYS, POLICY, "hw:numa_nodes"]),
            st.text(max_size=4).map("hpc:".__add__),
        ),
        st.one_of(
            st.text(max_size=12),
            st.sampled_from([*(w for words in flavor.WORDS.values() for w in words), "gpu:1"]),
        ),
        max_size=5,
    ),
    st.sampled_from([(), GPU2, BOTH]),
    st.sampled_from([(), ONE, TWO]),
)
def test_any_text_is_a_request_or_a_clear_error(
    keys: dict[str, str], wants: tuple[Want, ...], cells: tuple[WantedCell, ...]
) -> None:
    try:
        request = build_request(keys, wants, cells)
    except FlavorError as error:
        text = str(error)
    else:
        text = ""
        total = sum(want.count for want in wants)
        assert sum(group.size for group in request.groups) == total
        choose_device_sets(request, FreeHost("empty", ()))
    assert len(text) < 400
    assert text.isascii()


@pytest.mark.parametrize(
    ("word", "need"),
    [
        (None, Nvlink.NONE),
        ("none", Nvlink.NONE),
        ("preferred", Nvlink.PREFERRED),
        ("required", Nvlink.REQUIRED),
    ],
)
def test_the_need_of_nvlink_is_in_the_request(word: str | None, need: Nvlink) -> None:
    specs = {"hpc:affinity": "host"} | ({} if word is None else {"hpc:nvlink": word})
    request = build_request(specs, (Want("k", "gpu", 2),), ())
    assert request.nvlink is need


@pytest.mark.parametrize("level", ["switch", "host"])
def test_devices_of_cyborg_are_refused_with_the_reason(level: str) -> None:
    """Their place is known when they are bound, and that is after the host was chosen."""
    specs = {"hpc:affinity": level, "accel:device_profile": "fpga-a"}
    with pytest.raises(
        FlavorError, match=r"accel:device_profile='fpga-a' requests Cyborg"
    ) as raised:
        build_request(specs, [Want("0", "gpu", 1)], ())
    assert "remove the hpc: keys" in str(raised.value)
    # Ours or theirs alone.
    build_request({"hpc:affinity": level}, [Want("0", "gpu", 1)], ())
    assert not flavor.has_hpc_keys({"accel:device_profile": "fpga-a"})
