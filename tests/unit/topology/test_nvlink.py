# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import nvlink
from nova_hpc.wire import tags


def test_sets_are_put_together_from_their_members():
    table = nvlink.rebuild_nvlink_sets({"a": "left:2,all:3", "b": "left:2,all:3", "c": "all:3"})
    assert table.sets == (frozenset("abc"), frozenset("ab"))
    assert table.faults == ()


def test_a_set_that_lacks_a_member_is_not_free_and_no_mistake():
    assert nvlink.rebuild_nvlink_sets({"a": "all:3", "b": "all:3"}) == nvlink.NvlinkSetTable()


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({"a": "x:2", "b": "x:3"}, "NVLink set 'x': its members disagree about its size (2, 3)"),
        (
            {"a": "x:2", "b": "x:2", "c": "x:2"},
            "NVLink set 'x': it has 3 members, but its tag gives 2",
        ),
        ({"a": "x", "b": "x:2"}, "NVLink set 'x': '' is no size (2 to 64)"),
        ({"a": "x:1"}, "NVLink set 'x': '1' is no size (2 to 64)"),
        ({"a": "x:٢", "b": "x:2"}, "NVLink set 'x': '٢' is no size (2 to 64)"),
        ({"a": "x:2,x:2", "b": "x:2"}, "NVLink set 'x': a device names it twice"),
        ({"a": "x:2", "b": "x:2,,"}, "NVLink set '' has no usable name"),
        ({"a": "x:2", "vf": "x:2"}, "'x': one of its members is shared by several functions"),
    ],
)
def test_a_mistake_costs_its_own_set_only(texts, fault):
    texts = {key: f"{text},good:2" if key in "ab" else text for key, text in texts.items()}
    texts.setdefault("b", "good:2")
    table = nvlink.rebuild_nvlink_sets(texts, shared={"vf"})
    assert frozenset("ab") in table.sets
    assert any(fault in text for text in table.faults)
    if "no usable name" not in fault:
        assert len(table.sets) == 1


def test_two_names_for_one_set():
    assert nvlink.rebuild_nvlink_sets({"a": "x:2,y:2", "b": "y:2,x:2"}).sets == (frozenset("ab"),)


@given(st.dictionaries(st.sampled_from("abcdef"), st.text("xy:,2 34\n٢", max_size=12)))
def test_any_tag_gives_only_sets_that_all_members_name(texts):
    table = nvlink.rebuild_nvlink_sets(texts)
    for members in table.sets:
        assert members <= set(texts)
        words = [{word.strip() for word in texts[each].split(",")} for each in members]
        assert any(word.endswith(str(len(members))) for word in set.intersection(*words))


@given(
    st.dictionaries(
        st.text("abc01_.-", min_size=1, max_size=8).filter(nvlink.NAME.fullmatch),
        st.sets(st.sampled_from("pqrstu"), min_size=2),
        max_size=4,
    )
)
def test_what_is_written_reads_back(sets):
    texts = {}
    for device in "pqrstu":
        mine = {name: len(members) for name, members in sets.items() if device in members}
        if text := nvlink.format_nvlink_tag(mine):
            texts[device] = text
    table = nvlink.rebuild_nvlink_sets(texts)
    assert set(table.sets) == {frozenset(members) for members in sets.values()}
    assert table.faults == ()


def test_the_tag_is_part_of_the_contract():
    parsed = tags.parse_tags({"hpc_tags": "1", "hpc_nvlink": "left:4"})
    assert parsed.nvlink == "left:4"
    assert parsed.to_spec() == {"hpc_tags": "1", "hpc_nvlink": "left:4"}
    # Whatever it says, the device itself can be used.
    assert tags.parse_tags({"hpc_tags": "1", "hpc_nvlink": "::"}).nvlink == "::"
