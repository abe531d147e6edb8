# SPDX-License-Identifier: Apache-2.0
"""Desired partitions and own partitions, made up."""

import attrs
from hypothesis import strategies as st

from nova_hpc.fabric.partitions.default_rule import DefaultRule
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember, PartitionPolicy
from nova_hpc.fabric.partitions.own_partitions import parse_own_partitions
from nova_hpc.fabric.partitions.partition_text import GroupFlags

GUIDS = st.integers(1, (1 << 64) - 1)
PKEYS = st.integers(1, 4094)
MEMBERSHIPS = st.sampled_from(Membership)
#: Few of each, so that they meet.
FEW_GUIDS = st.integers(1, 4)
FEW_PKEYS = st.integers(1, 3)


@st.composite
def own_texts(draw):
    """The administrator's own partitions, with P_Keys that networks may have as well."""
    text = ""
    for number in range(draw(st.integers(0, 3))):
        pkey = draw(st.one_of(PKEYS, st.integers(0x1000, 0x7FFE)))
        who = draw(
            st.lists(
                st.one_of(
                    st.sampled_from(("ALL=limited", "ALL_CAS=limited", "SELF=full", "SELF")),
                    st.builds(
                        lambda guid, kind: f"{guid:#x}={kind}",
                        GUIDS,
                        st.sampled_from(("full", "limited")),
                    ),
                ),
                min_size=1,
                max_size=4,
            )
        )
        flags = draw(
            st.sampled_from(("", ", ipoib", ",ipoib , sl=1, defmember=limited", ", indx0"))
        )
        text += f"own{number} = {pkey:#06x}{flags} :\n\t" + ",\n ".join(who) + " ; # ü\n"
    return text + draw(st.sampled_from(("", "# the end", "\n\n", "#")))


@st.composite
def desired_partitions(draw, guids=GUIDS, pkeys=PKEYS):
    """Rows of one fabric."""
    members = draw(
        st.lists(
            st.builds(
                PartitionMember,
                row=st.integers(1, 10_000),
                port_id=st.just("port"),
                guid=guids,
                pkey=pkeys,
                membership=MEMBERSHIPS,
                wanted=st.booleans(),
                port_status=st.sampled_from(("ACTIVE", "DOWN", "ERROR", None)),
            ),
            max_size=20,
            unique_by=lambda member: member.row,
        )
    )
    policies = draw(
        st.dictionaries(
            pkeys,
            st.builds(
                PartitionPolicy,
                st.one_of(st.none(), st.integers(0, 15)),
                st.one_of(st.none(), st.integers(2, 18)),
                st.one_of(st.none(), st.integers(1, 5)),
            ),
            max_size=4,
        )
    )
    return DesiredPartitions(draw(st.integers(0, 10**18)), tuple(members), policies)


@st.composite
def default_rules(draw):
    """What a site may have in the default partition."""
    flags = GroupFlags(
        mtu=draw(st.integers(1, 5)),
        rate=draw(st.integers(2, 18)),
        service_level=draw(st.integers(0, 15)),
        scopes=draw(st.sampled_from((0, 1 << 2, 1 << 2 | 1 << 5 | 1 << 14))),
        q_key=draw(st.sampled_from((0, 0xB1B))),
        t_class=draw(st.integers(0, 3)),
        flow_label=draw(st.integers(0, 9)),
    )
    groups = draw(
        st.lists(
            st.tuples(st.sampled_from(("ff12::1", "ff12:401b::707")), st.just("mtu=4, Q_Key=0x9")),
            unique_by=lambda group: group[0],
        )
    )
    return DefaultRule(draw(st.booleans()), draw(st.booleans()), flags, tuple(groups))


def own_partitions():
    """The same, read, with a site's default rule."""
    return st.builds(
        lambda text, rule: attrs.evolve(parse_own_partitions(text), default=rule),
        own_texts(),
        default_rules(),
    )
