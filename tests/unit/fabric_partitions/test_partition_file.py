# SPDX-License-Identifier: Apache-2.0
"""The file that opensm gets."""

import re
from collections import defaultdict
from unittest.mock import ANY

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.partitions.default_rule import take_default_rule
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember, PartitionPolicy
from nova_hpc.fabric.partitions.opensm_grammar import parse_partitions
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions, parse_own_partitions
from nova_hpc.fabric.partitions.partition_file import (
    PartitionFileError,
    PartitionLayout,
    body_of_file,
    lay_out_partitions,
    parse_file,
    render_body,
    render_file,
)
from nova_hpc.fabric.partitions.partition_text import GroupFlags
from tests.unit.fabric_partitions.strategies import (
    FEW_GUIDS,
    FEW_PKEYS,
    GUIDS,
    MEMBERSHIPS,
    PKEYS,
    desired_partitions,
    own_partitions,
)

POLICIES = st.builds(
    PartitionPolicy,
    st.one_of(st.none(), st.integers(0, 15)),
    st.one_of(st.none(), st.integers(2, 18)),
    st.one_of(st.none(), st.integers(1, 5)),
)


@st.composite
def layouts(draw):
    partitions = draw(
        st.dictionaries(
            PKEYS, st.dictionaries(GUIDS, MEMBERSHIPS, min_size=1, max_size=8), max_size=6
        )
    )
    policies = {pkey: draw(POLICIES) for pkey in partitions if draw(st.booleans())}
    return PartitionLayout(
        partitions, {pkey: one for pkey, one in policies.items() if one != PartitionPolicy()}
    )


@given(layouts(), own_partitions(), st.integers(0, 10**18))
def test_what_is_written_is_read(layout, own, ticket) -> None:
    body = render_body(layout, own)
    text = render_file(body, ticket)
    read = parse_file(text)
    assert (read.ticket, read.own, read.layout) == (ticket, own, layout)
    assert read.unchanged
    assert body_of_file(text) == body
    assert all(len(line.encode()) <= 4000 for line in text.split("\n"))
    # At most one GUID of a network on a line.
    networks = body[body.index("# nova-hpc: networks") :]
    assert all(len(re.findall(r"0x[0-9a-f]{16}", line)) <= 1 for line in networks.split("\n"))


@given(layouts(), own_partitions())
def test_opensms_grammar_reads_what_was_laid_out(layout, own) -> None:
    read = parse_partitions(render_file(render_body(layout, own), 7))
    assert not read.strayed
    assert all(each.ended for each in read.definitions)
    assert take_default_rule(read.definitions[:1]) == own.default
    assert [each.rules for each in read.definitions[1:]][: len(own.partitions)] == [
        tuple(attrs.evolve(rule, line=ANY) for rule in each.rules) for each in own.partitions
    ]
    networks = read.definitions[1 + len(own.partitions) :]
    assert {
        each.pkey: {rule.who: Membership(rule.membership) for rule in each.rules}
        for each in networks
    } == layout.partitions
    for each in networks:
        policy = layout.policies.get(each.pkey, PartitionPolicy())
        assert (each.flags.mtu, each.flags.rate, each.flags.service_level) == (
            4 if policy.mtu is None else policy.mtu,
            3 if policy.rate is None else policy.rate,
            policy.service_level or 0,
        )


@given(layouts(), own_partitions(), st.data())
def test_any_change_by_others_is_seen(layout, own, data) -> None:
    text = render_file(render_body(layout, own), 7)
    at = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(st.sampled_from(("", "0", "\n", "# ")))
    changed = text[:at] + change + text[at + 1 :]
    if changed != text:
        assert body_of_file(changed) is None


@given(layouts(), own_partitions())
def test_a_file_that_is_cut_off_is_not_taken_for_whole(layout, own) -> None:
    text = render_file(render_body(layout, own), 7)
    for end in range(0, len(text), 7):
        assert body_of_file(text[:end]) is None
        try:
            read = parse_file(text[:end])
        except PartitionFileError:
            continue
        assert not read.unchanged


@given(desired_partitions(FEW_GUIDS, FEW_PKEYS), own_partitions())
def test_each_member_is_in_exactly_its_partition(desired, own) -> None:
    layout = lay_out_partitions(desired, own)
    expected = defaultdict(lambda: defaultdict(set))
    for member in desired.members:
        if member.wanted and member.row not in layout.refused:
            expected[member.pkey][member.guid].add(member.membership)
    assert {pkey: set(members) for pkey, members in layout.partitions.items()} == {
        pkey: set(members) for pkey, members in expected.items()
    }
    for pkey, members in layout.partitions.items():
        for guid, membership in members.items():
            # One entry of a table can say one membership.
            limited = Membership.LIMITED in expected[pkey][guid]
            assert membership is (Membership.LIMITED if limited else Membership.FULL)
    assert layout.partitions.keys().isdisjoint(own.pkeys())
    assert {member.row for member in desired.wanted() if member.pkey in own.pkeys()} <= set(
        layout.refused
    )
    assert layout.policies.keys() <= layout.partitions.keys()


@given(desired_partitions(FEW_GUIDS, FEW_PKEYS), own_partitions(), st.randoms())
def test_the_order_of_rows_means_nothing(desired, own, random) -> None:
    members = list(desired.members)
    random.shuffle(members)
    shuffled = DesiredPartitions(desired.ticket, tuple(members), desired.policies)
    one, other = lay_out_partitions(desired, own), lay_out_partitions(shuffled, own)
    assert (one, one.refused) == (other, other.refused)
    assert render_body(one, own) == render_body(other, own)


def _member(row, guid, pkey, **more):
    return PartitionMember(row, f"port{row}", guid, pkey, **more)


def test_the_default_rule_of_a_site_stays() -> None:
    site = (
        "Default=0x7fff, ipoib, mtu=5, rate=12, scope=5 :\n"
        "mgid=ff12:401b::707, Q_Key=0xb1b, rate=12\nALL=limited, SELF=full ;\n"
    )
    rule = take_default_rule(parse_partitions(site).definitions)
    assert rule.render() == site
    own = OwnPartitions().with_default(rule)
    assert parse_file(render_file(render_body(PartitionLayout(), own), 7)).own == own
    # What own partitions state for the group of IPoIB replaces what is in force.
    more = parse_own_partitions("Default=0x7fff, ipoib, mtu=4, rate=7 : 0x10=full ;")
    assert more.with_default(rule).default.flags == GroupFlags(rate=7)
    assert more.with_default(rule).default.groups == rule.groups
    more = parse_own_partitions("Default=0x7fff : 0x10=full ;")
    assert more.with_default(rule).default == rule


def test_a_port_has_31_keys_and_the_next_row_is_refused_by_name() -> None:
    own = parse_own_partitions("a=0x7001 : ALL=limited ;\nb=0x7002 : 0x10=full ;\n")
    rows = [_member(row, 0x10, 0x100 + row) for row in range(31)]
    layout = lay_out_partitions(DesiredPartitions(1, (*rows, _member(99, 0x11, 0x100))), own)
    assert set(layout.refused) == {29, 30}
    assert "0x0000000000000010 is in 31 partitions already" in layout.refused[29]
    assert layout.partitions[0x100].keys() == {0x10, 0x11}


@pytest.mark.parametrize("pkey", [0, 4095, 0x7FFF, 0x8001, -1])
def test_a_reserved_key_is_refused_and_stops_nobody(pkey: int) -> None:
    rows = (_member(1, 0x10, pkey), _member(2, 0x10, 0x101))
    layout = lay_out_partitions(DesiredPartitions(1, rows), OwnPartitions())
    assert set(layout.refused) == {1}
    assert layout.partitions == {0x101: {0x10: Membership.FULL}}


def test_what_opensm_gets() -> None:
    own = parse_own_partitions("storage=0x7001 : ALL=limited ;")
    rows = (_member(1, 0x11, 0x101), _member(2, 0x10, 0x101, membership=Membership.LIMITED))
    policies = {0x101: PartitionPolicy(3, 6), 0x102: PartitionPolicy(1)}
    body = render_body(lay_out_partitions(DesiredPartitions(1, rows, policies), own), own)
    plain = [line for line in body.split("\n") if line and not line.startswith("#")]
    assert plain == [
        "Default=0x7fff, ipoib : ALL=limited, SELF=full ;",
        "storage=0x7001 : ALL=limited ;",
        "network_0101=0x0101, ipoib, sl=3, rate=6 :",
        " 0x0000000000000010=limited,",
        " 0x0000000000000011=full;",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# ticket 7", "# ticket x"),
        ("ALL=limited, SELF", "ALL=full, SELF"),
        ("partitions, 0 characters", "partitions, 1 characters"),
        ("0x0101,", "0x0102,"),
        ("=full;", "=full,"),
        (" 0x0000000000000010", "0x10"),
    ],
)
def test_a_file_that_is_another_one_says_where(old: str, new: str) -> None:
    layout = PartitionLayout({0x101: {0x10: Membership.FULL}})
    text = render_file(render_body(layout, OwnPartitions()), 7)
    assert old in text
    with pytest.raises(PartitionFileError):
        parse_file(text.replace(old, new))
