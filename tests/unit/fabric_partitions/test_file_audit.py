# SPDX-License-Identifier: Apache-2.0
"""What a file of partitions makes of the fabric, whoever has written it."""

import pytest

from nova_hpc.fabric.partitions import file_audit
from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, render_body, render_file

LIMITED = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n"
OWN = "storage=0x0200, ipoib : 0x0002c90000100011=full, ALL=limited ;\n"
PORT = "0x0002c90000100011"


@pytest.mark.parametrize(
    "text",
    [
        LIMITED,
        "Default=0x7fff : ALL, SELF=full ;",
        "Default=0xffff, ipoib, defmember=limited : ALL, SELF=full;",
        "# ours\nDefault = 0x7fff ,ipoib :\n ALL=limi,\n SELF=full ; vc_A=0x0101 : ALL=full ;",
        "Default : ALL=limited, SELF=full ;",
        "other=32767 : ALL=limited, SELF ;",
        f"Default=0x7fff : ALL=limited, SELF=full, {PORT}=full ;",
        "Default=0x7fff : mgid=ff12:401b::0707,sl=1\nALL=limited, SELF=full ;",
        # A comment that is no UTF-8, as the file is read.
        f"# \udcfc\n{LIMITED}",
    ],
)
def test_limited_for_all_is_met(text):
    row = file_audit.audit_default_partition(text)
    assert (row.state, row.cure) == (AuditState.MET, "")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "\n# Default=0x7fff : ALL=limited ;\n",
        "Default=0x7fff : ALL=full, SELF=full ;",
        "Default=0x7fff, defmember=full : ALL ;",
        "Default=0x7fff, ipoib : ALL=limited, ALL_SWITCHES=full, SELF=full ;",
        "Default=0x7fff : ALL_CAS=full, ALL=limited ;",
        "Default=0x7fff : ALL=both ;",
        f"{LIMITED}more=0xffff : ALL=full ;",
        "Default=0x7fff : ALL=limited, SELF=full, ALL=full ;",
        "Default=0x7fff : SELF=full ;",
        "vc_A=0x0101 : ALL=limited ;",
        f"{LIMITED}vc_A=0x0101 : " + ", ".join([PORT] * 420) + " ;",
        # The buffer of later releases has 4 KiB.
        f"{LIMITED}# {'x' * 4094}\n",
    ],
)
def test_anything_else_is_open(text):
    row = file_audit.audit_default_partition(text)
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    assert file_audit.audit_default_partition(row.cure.partition(": ")[2]).state is AuditState.MET


def test_the_agents_own_file_is_limited_for_all():
    text = render_file(render_body(PartitionLayout(), OwnPartitions()), 3)
    assert file_audit.audit_default_partition(text).state is AuditState.MET
    assert file_audit.audit_own_partitions(text, None, "/own").state is AuditState.MET


# -- partitions that would be lost -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (None, None),
        ("", None),
        (LIMITED, None),
        (LIMITED + OWN, OWN),
        (LIMITED + OWN, "# ours\nother=512 : SELF=full ;\n"),
        # The agent's file, edited by hand: it is healed.
        ("# nova-hpc: written by nova-hpc-fabric-agent\n" + LIMITED + OWN, None),
    ],
)
def test_nothing_is_lost(text, own):
    row = file_audit.audit_own_partitions(text, own, "/own")
    assert (row.state, row.cure) == (AuditState.MET, "")


@pytest.mark.parametrize(
    ("text", "own", "named"),
    [
        (LIMITED + OWN, None, "0x0200"),
        (LIMITED + OWN, "", "0x0200"),
        (LIMITED + OWN + "two=0x0201 : SELF ;", OWN, "0x0201"),
        (LIMITED + "auto : SELF=full ;", OWN, "one without a P_Key"),
    ],
)
def test_an_administrators_partitions_are_not_taken_away(text, own, named):
    row = file_audit.audit_own_partitions(text, own, "/own")
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    assert row.found == f"not the agent's: {named}"
    assert "/own" in row.cure
