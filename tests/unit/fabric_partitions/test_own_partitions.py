# SPDX-License-Identifier: Apache-2.0
"""What an administrator may write, and what would open the fabric."""

import re

import pytest
from hypothesis import given

from nova_hpc.fabric.partitions.own_partitions import OwnPartitionsError, parse_own_partitions
from tests.unit.fabric_partitions.strategies import own_texts

EXAMPLE = """\
# Storage: every node reaches it.
storage=0x7001, ipoib, sl=2, defmember=limited :
 ALL, # and these two for them
 0x0002c90000300001=full, 0x0002c90000300011=full ;
0x7002 : SELF=full;other = 0xf003,indx0: 12345 ,
 0x10=full;
storage=0x7001 : 0x10=limited ;
Default=0x7fff : 0x0002c90000300001=full;
groups=0x7004, ipoib :
 mgid=ff12:401b::0707,sl=1
 mgid=ff12:601b::16
 SELF=full ;
"""


def test_what_is_written_is_what_opensm_makes_of_it() -> None:
    own = parse_own_partitions(EXAMPLE)
    assert own.text == EXAMPLE
    assert own.pkeys() == {0x7001, 0x7002, 0x7003, 0x7004}
    assert own.entries_of(0x0002C90000300001) == {0xF001, 0xFFFF}
    # The last word on a port holds.
    assert own.entries_of(0x10) == {0x7001, 0xF003}
    assert parse_own_partitions("a=1 : 0x10=full, ALL ;").entries_of(0x10) == {0x0001}
    assert own.entries_of(12345) == {0x7001, 0x7003}
    assert own.entries_of(0x99, manages=True) == {0x7001, 0xF002, 0xF004}
    assert own.entries_of(0x99, kind="switch") == {0x7001}


def test_nothing_is_nothing() -> None:
    assert parse_own_partitions("# " + "x" * 3998).partitions == ()
    assert parse_own_partitions("").partitions == ()
    assert parse_own_partitions("# nothing\n\n").partitions == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a=0x7001 : " + "0x10, " * 700 + "SELF ;", "line 1 has over 4000 bytes"),
        ("#\n# " + "x" * 4000, "line 2 has over 4000 bytes"),
        ("# " + "ü" * 2000, "line 1 has over 4000 bytes"),
        ("a=0x7001, ipoib\n: SELF ;", "colon has to be on the line"),
        ("Default=0x7fff ; : ALL=full ;", "colon has to be on the line"),
        ("a=0x7001 : SELF=full", "does not end"),
        ("a=0x7001 : SELF=full ;\nb=0x7002 : 0x10,", "definition of line 2 does not end"),
        ("a : SELF ;", "has no P_Key"),
        ("Default : ALL=full ;", "has no P_Key"),
        ("a=0 : SELF ;", "is no P_Key"),
        ("a=0x8000 : SELF ;", "is no P_Key"),
        ("a=0x17001 : SELF ;", "is no P_Key"),
        ("a=0x70g1 : SELF ;", "is no P_Key"),
        ("a=0777 : SELF ;", "is no number"),
        ("a=0x7001 : A=full ;", "port GUID"),
        ("a=0x7001 : 010 ;", "is no number"),
        ("a=0x7001 : 0x10=ful ;", "is no membership"),
        ("a=0x7001 : 0x10=both ;", "is no membership"),
        ("a=0x7001 : 0x10= ;", "is no membership"),
        ("a=0x7001 : =full ;", "is no number"),
        ("a=0x7001 : 0x0 ;", "is no port GUID"),
        ("a=0x7001 : 0x1ffffffffffffffff ;", "is no port GUID"),
        ("a=0x7001, defmember=both : SELF ;", "is no membership"),
        ("a=0x7001, i : SELF ;", "does not support the flag"),
        ("a=0x7001, sl : SELF ;", "does not support the flag"),
        ("a=0x7001, sl=x : SELF ;", "is no number"),
        ("a=0x7001, ipoib=1 : SELF ;", "does not support the flag"),
        ("a=0x7001 : mgid=full,SELF=full ;", "colon has to be on the line"),
        ("a=0x7001 : SELF ;\r\n", "has a character"),
        ("a=0x7001 : SËLF ;", "has a character"),
        ("# \0", "has a NUL"),
        ("# nova-hpc: networks", "are the agent's"),
        ("Default=0x7fff, ipoib : ALL=full ;", "the agent writes that one"),
        ("Default=0xffff, defmember=full : ALL ;", "the agent writes that one"),
        ("Default=0x7fff : ALL=limited ;", "the agent writes that one"),
        ("x=0x7fff : ALL_CAS=full ;", "the agent writes that one"),
        ("a=0x7001 : ALL=full ;", "opens the fabric"),
        ("a=0x7001, defmember=full : ALL_CAS ;", "opens the fabric"),
        ("a=0x7001 : ALL_ROUTERS=full ;", "opens the fabric"),
        # opensm reads on behind such a semicolon, in what an earlier line has left.
        ("a=0x7001 :\n 0x10=full\n;\n", "colon has to be on the line"),
        ("a=0x7001 :\n\t ; # none\n", "colon has to be on the line"),
        ("a=1 : 0x10,\n;\n", "write the semicolon behind a member"),
        ("a=0x7001, ipoib : mgid=ff12:401b::0707;\n", "one definition after the other"),
        ("a=0x7001 : SELF ;;\n", "colon has to be on the line"),
        ("a=0x7001, ipoib :\n mgid\n SELF ;", "an mgid without a value"),
        ("cn[1-4]=0x7001 : SELF ;", "is no name of a partition"),
        ("a=0x7001 : cn01 ;", "is no port GUID"),
        ("a=0x7001 : ALL_VCAS ;", "is no port GUID"),
        ("a=0x7001 : SELF, NONE ;", "leaves it out"),
        ("a=0x7001, ipoib :\n mgid=ff12::1,q=4\n SELF ;", "is no flag of a group"),
    ],
)
def test_what_opens_the_fabric_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(OwnPartitionsError, match=re.escape(reason)):
        parse_own_partitions(text)


@given(own_texts())
def test_texts_are_read_as_they_are(text: str) -> None:
    assert parse_own_partitions(text).text == text


@given(own_texts())
def test_a_text_that_is_cut_off_means_no_more_than_the_whole(text: str) -> None:
    whole = parse_own_partitions(text).partitions
    for end in range(len(text)):
        try:
            part = parse_own_partitions(text[:end]).partitions
        except OwnPartitionsError:
            continue
        assert part == whole[: len(part)]
