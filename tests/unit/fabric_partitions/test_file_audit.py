# SPDX-License-Identifier: Apache-2.0
"""What a file of partitions makes of the fabric, whoever has written it."""

import pytest

from nova_hpc.fabric.partitions import file_audit
from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, render_body, render_file

LIMITED = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n"
OWN = "storage=0x0200, ipoib : ALL=limited, 0x0002c90000100011=full ;\n"
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
        # opensm has the same rule for a file without one.
        "vc_A=0x0101 : ALL=limited ;",
        "Default=0x7fff : SELF=full ;",
        # The last word on a port holds.
        "Default=0x7fff : ALL_CAS=full, ALL=limited ;",
        f"Default=0x7fff : A=full, {PORT}=full ; x=0xffff : ALL=limited, SELF=full ;",
        # Not full: words are not those of opensm.
        "Default=0x7fff : ALL=FULL, SELF=full ;",
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
        "Default=0x7fff : ALL=both ;",
        "Default=0x7fff : ALL= ;",
        "Default=0x7fff, defmember= : ALL ;",
        f"{LIMITED}0xffff : ALL_CAS=full ;",
        f"{LIMITED}65535 : ALL_R=full ;",
        "Default=0x7fff, ipoib : ALL=limited, A=full ;",
        f"{LIMITED};\n",
        "Default=0x7fff :\nALL=limited,\nSELF=full\n;\n",
        "Default=0x7fff\n: ALL=limited ;",
        # opensm ends with a segmentation fault.
        f"{LIMITED}a=1, ipoib :\nmgid\n{PORT} ;",
        f"{LIMITED}a=1 : cn[01-64] ;",
        f"{LIMITED}a=1 : ALL_VCAS ;",
        LIMITED.replace("\n", "\r\n"),
        f"{LIMITED}more=0xffff : ALL=full ;",
        "Default=0x7fff : ALL=limited, SELF=full, ALL=full ;",
        f"{LIMITED}# {'x' * 9000}\n",
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Default=0x7fff : ALL=limited, A=full ;", "A makes every other adapter a full member"),
        (f"{LIMITED}0xffff : ALL_CAS=full ;", "ALL_CAS makes every other adapter a full member"),
        (f"{LIMITED}a=1 : cn[01-64] ;", "line 2: 'cn[01-64]' is no port GUID"),
        (f"{LIMITED}a=0x1 :\n{PORT}, {PORT}\n;\n", "line 4: the colon has to be on the line"),
    ],
)
def test_what_opens_the_fabric_is_named(text, said):
    assert said in file_audit.audit_default_partition(text).found


def test_ports_that_are_full_on_purpose_are_named():
    row = file_audit.audit_default_partition(f"Default=0x7fff : ALL, SELF=full, {PORT}=full ;")
    assert row.found.endswith(f"but for ports that the file names: {PORT}")


# -- where releases of opensm differ -------------------------------------------------------

#: 4,096 bytes cut the first GUID that they cut behind its 0; 8,192 do not.
LONG = f"{LIMITED}vcA=0x0101 : " + ", ".join([PORT] * 208) + " ;\n"


@pytest.mark.parametrize(
    ("trial", "state", "said"),
    [
        (None, AuditState.UNKNOWN, "releases of opensm read it differently"),
        (lambda _: None, AuditState.MET, "limited for all"),
        (lambda _: "PARSE ERROR: line 2", AuditState.NOT_MET, "PARSE ERROR: line 2"),
    ],
)
def test_a_trial_decides_what_the_text_does_not(trial, state, said):
    row = file_audit.audit_default_partition(LONG, trial)
    assert (row.state, said in row.found) == (state, True)


def test_what_all_releases_agree_in_needs_no_trial():
    # 4,096 bytes cut a GUID in two numbers, so that one more port is a member.
    text = f"{LIMITED}x=5 : " + ", ".join([PORT] * 208) + " ;\n"
    assert file_audit.audit_default_partition(text).state is AuditState.MET
    row = file_audit.audit_own_partitions(text, None, "/own")
    assert (row.state, "releases of opensm read it differently" in row.found) == (
        AuditState.UNKNOWN,
        True,
    )


def test_what_no_line_decides_is_unknown_after_a_trial():
    row = file_audit.audit_default_partition(f";{LIMITED}", lambda _: None)
    assert (row.state, "no line has filled" in row.found) == (AuditState.UNKNOWN, True)


def test_a_trial_that_fails_decides_nothing():
    def fail(_):
        raise OSError("no ibsim")

    row = file_audit.audit_default_partition(LONG, fail)
    assert (row.state, "no ibsim" in row.found) == (AuditState.UNKNOWN, True)


def test_a_trial_is_not_asked_about_what_is_sure():
    for text in (LIMITED, "", f"{LIMITED};"):
        assert file_audit.audit_default_partition(text, lambda _: 1 / 0).state


# -- partitions that would be lost -------------------------------------------------------

AGENTS = "# nova-hpc: written by nova-hpc-fabric-agent\n"
FOUR_K = "Default=0x7fff, ipoib, mtu=5, rate=12, scope=2, scope=5 : ALL=limited, SELF=full ;\n"
GROUPS = "Default=0x7fff :\nmgid=ff12:401b::0707,Q_Key=0xb1b\nmgid=ff15::1, mtu=5\nALL, SELF=full ;"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (None, None),
        ("", None),
        ("# nothing\n", None),
        (LIMITED, None),
        (FOUR_K, None),
        (GROUPS, None),
        ("Default=0x7fff, sl=2, indx0 : ALL=limited, SELF=full ;", None),
        (LIMITED + OWN, OWN),
        (LIMITED + OWN, f"# more than that\n{OWN}other=512 : SELF=full ;\n"),
        (LIMITED + "a=0x9 : ALL ;", "a=0x9 : ALL_CAS, ALL_SWITCHES, ALL_ROUTERS, SELF ;"),
        # It becomes a full member.
        (LIMITED + f"a=0x9 : {PORT} ;", f"a=0x9 : {PORT}=full ;"),
        # The agent's file, edited by hand: it is healed.
        (AGENTS + LIMITED + OWN, None),
    ],
)
def test_nothing_is_lost(text, own):
    row = file_audit.audit_own_partitions(text, own, "/own")
    assert (row.state, row.cure) == (AuditState.MET, "")


@pytest.mark.parametrize(
    ("text", "own", "named"),
    [
        (LIMITED + OWN, None, (f"port {PORT}: 0x8200", "every other adapter: 0x0200")),
        (LIMITED + OWN, "", (f"port {PORT}: 0x8200", "every other switch: 0x0200")),
        (LIMITED + OWN + "two=0x0201 : SELF ;", OWN, ("the subnet manager's port: 0x0201",)),
        (LIMITED + "auto : SELF=full ;", OWN, ("the subnet manager's port: 0x8001",)),
        # Fewer members of the same P_Key, and one that is limited then.
        (
            LIMITED + f"a=0x9 : {PORT}=full, 0x5=full, 0x6 ;",
            f"a=0x9 : {PORT} ;",
            (
                f"port {PORT}: 0x8009 becomes 0x0009",
                "port 0x0000000000000005: 0x8009",
                "port 0x0000000000000006: 0x0009",
            ),
        ),
        (
            f"Default=0x7fff : ALL, {PORT}=full ;",
            None,
            (f"port {PORT}: 0xffff becomes 0x7fff",),
        ),
        (
            LIMITED + f"a=0x9, ipoib, mtu=5 : {PORT} ;",
            f"a=0x9, ipoib : {PORT} ;",
            ("partition 0x0009: the IPoIB group of scope 2: mtu=5 ", " becomes mtu=4 "),
        ),
        # opensm takes the flags of the first definition for the group.
        (
            FOUR_K + "more=0x7fff, ipoib, scope=7 : SELF=full;",
            None,
            ("partition 0x7fff: the IPoIB group of scope 7", "becomes gone"),
        ),
    ],
)
def test_what_would_be_lost_is_named(text, own, named):
    row = file_audit.audit_own_partitions(text, own, "/own")
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    for part in named:
        assert part in row.found
    assert "/own" in row.cure
    assert "--accept-losses" in row.cure
    losses = file_audit.list_file_losses(text, own)
    row = file_audit.audit_own_partitions(text, own, "/own", accepted=losses)
    assert (row.state, row.cure) == (AuditState.MET, "")
    row = file_audit.audit_own_partitions(text, own, "/own", accepted=losses[1:])
    assert row.found == f"would be lost: {losses[0]}"


@pytest.mark.parametrize(
    "text", [f"{LIMITED};\n", f"{LIMITED}a=1 : cn01 ;", "Default=0x7fff : ALL"[:14]]
)
def test_a_file_that_opensm_drops_is_not_taken_for_empty(text):
    row = file_audit.audit_own_partitions(text, None, "/own")
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    assert "opensm does not take the file" in row.found


def test_own_partitions_that_cannot_be_used_are_named():
    row = file_audit.audit_own_partitions(LIMITED, "a=1 : ALL=full ;", "/own")
    assert row.state is AuditState.NOT_MET
    assert "/own: line 1: ALL=full in partition 0x0001" in row.found


# -- files that were reported --------------------------------------------------------------


def test_the_reported_files_are_judged_as_opensm_does(captures):
    folder = captures / "reports/partitions"
    read = {path.name: path.read_text() for path in folder.glob("*.conf")}
    states = {
        name: file_audit.audit_default_partition(text).state.value for name, text in read.items()
    }
    assert states == {
        "bare_numbers.conf": "met",
        "bare_numbers.own.conf": "met",
        "default_4k.conf": "met",
        "unparsable_opens.conf": "not met",
    }
    row = file_audit.audit_own_partitions(
        read["bare_numbers.conf"], read["bare_numbers.own.conf"], "/own"
    )
    assert row.found == (
        "would be lost: port 0x0002c90300100003: 0x8002; port 0x0002c90300100004: 0x8002"
    )
    row = file_audit.audit_own_partitions(read["default_4k.conf"], None, "/own")
    assert row.state is AuditState.MET
    row = file_audit.audit_own_partitions(read["unparsable_opens.conf"], None, "/own")
    assert row.state is AuditState.NOT_MET
