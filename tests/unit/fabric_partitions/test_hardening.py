# SPDX-License-Identifier: Apache-2.0
"""What of a subnet manager's own files keeps partitions apart, key by key."""

from pathlib import Path

import pytest

from nova_hpc.fabric.partitions import hardening
from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.manager_options import RunningOptions, read_manager_options

#: What ``opensm --create-config`` of release 3.3.23 writes.
DEFAULTS = Path(__file__).parents[2].joinpath("data/opensm/3.3.23.conf").read_text()
LIMITED = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n"
GOOD_KEY = "0x9d31c60ab84ef217"
#: The lines that the cures ask for.
CURED = (
    f"{DEFAULTS}\nsa_key {GOOD_KEY}\nsm_key 0x71f0e1c29ab35d48\nm_key 0x0c95b3ee61d2748a\n"
    "m_key_protection_level 2\n"
)
#: The seven keys of SDN04-05 but the P_Key itself, which is SDN04-04.
SIX = {"m_key", "am_key", "vs_key", "cc_key", "n2n_key", "m2n_key"}
NVIDIA = (
    "m_key 0xFFFFFFFFFFFFFFFF\nm_key_per_port TRUE\nm_key_protection_level 2\n"
    "cc_key_enable 2\nvs_key_enable 2\nn2n_key_enable 2\nkey_mgr_seed 0xffffffffffffffff\n"
    f"sm_key {GOOD_KEY}\nsa_key 0x71f0e1c29ab35d48\nsa_enhanced_trust_model TRUE\n"
    "allowed_sm_guids 0x1070fd03001763d4,0x966daefffe2ac8d2\n"
    "topo_config_enabled TRUE\ntopo_config_file /opt/ufm/files/conf/opensm/topoconfig.conf\n"
)


def states(rows):
    return {row.name: row.state.value for row in rows}


def row_of(rows, name):
    (row,) = [row for row in rows if row.name == name]
    return row


def test_the_defaults_of_opensm_are_an_open_fabric():
    rows = hardening.audit_opensm(DEFAULTS, None, "/etc/opensm/partitions.conf")
    assert states(rows) == {
        "default_partition": "not met",
        "partition_config_file": "met",
        "part_enforce": "met",
        "sa_key": "not met",
        "sm_key": "not met",
        "m_key": "not met",
        "m_key_protection_level": "not met",
        "m_key_per_port": "not available",
        "am_key": "not available",
        "vs_key": "not available",
        "cc_key": "not available",
        "n2n_key": "not available",
        "m2n_key": "not available",
        "allowed_sm_guids": "not available",
        "topoconfig": "not available",
        "sa_enhanced_trust_model": "not available",
    }
    assert row_of(rows, "sa_key").found == row_of(rows, "sm_key").found == "the well-known default"
    assert row_of(rows, "m_key").found == "0, which switches it off"
    assert {row.name for row in hardening.list_open_rows(rows)} == {
        "default_partition",
        "sa_key",
        "sm_key",
        "m_key",
        "m_key_protection_level",
    }


def test_the_cures_of_opensm_are_its_own_options_and_close_it():
    rows = hardening.audit_opensm(CURED, LIMITED)
    assert hardening.list_open_rows(rows) == ()
    known = set(read_manager_options(DEFAULTS))
    for row in hardening.audit_opensm(DEFAULTS, ""):
        if row.needed and row.state is AuditState.NOT_MET and row.name != "default_partition":
            assert row.cure.split()[0] in known


def test_what_opensm_cannot_set_says_what_that_leaves_open():
    for row in hardening.audit_opensm(CURED, LIMITED):
        if row.state is AuditState.NOT_AVAILABLE:
            assert row.cure.startswith("open: ")
            assert not row.needed
        else:
            assert row.cure == ""


@pytest.mark.parametrize("audit", [hardening.audit_opensm, hardening.audit_nvidia_manager])
def test_both_managers_have_a_row_for_each_of_the_keys(audit):
    rows = audit(CURED, LIMITED)
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    assert {row.name for row in rows if row.requirement == "SDN04-05"} >= SIX
    assert row_of(rows, "default_partition").requirement == "SDN04-04"
    assert {"allowed_sm_guids", "topoconfig", "sa_enhanced_trust_model", "sa_key"} <= set(names)


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "1",
        "0x0100000000000000",
        "0x1234567890abcdef",
        "0x1111111111111111",
        "123456",
        "no",
        "0x771d2fe77f553d47",
        "0xffffffffffffffff",
        "0xdeadbeef",
        "",
    ],
)
def test_a_key_that_can_be_guessed_is_not_met_and_never_shown(value):
    rows = hardening.audit_opensm(f"{CURED}m_key {value}\n", LIMITED)
    row = row_of(rows, "m_key")
    assert row.state is AuditState.NOT_MET
    assert row in hardening.list_open_rows(rows)
    text = hardening.format_open_row(row)
    assert "SDN04-05" in text
    assert "m_key 0x" in text
    assert len(value) < 5 or value not in row.found


@pytest.mark.parametrize("value", [GOOD_KEY, "0x5ec7e75ec7e7", "5038492033181012345"])
def test_a_key_that_cannot_be_guessed_is_met_and_never_shown(value):
    row = row_of(hardening.audit_opensm(f"{CURED}sa_key {value}\n", LIMITED), "sa_key")
    assert (row.state, row.found, row.cure) == (AuditState.MET, "set", "")


def test_the_last_line_of_an_option_counts():
    rows = hardening.audit_opensm(f"{CURED}sm_key 0x1\n", LIMITED)
    assert row_of(rows, "sm_key").state is AuditState.NOT_MET
    rows = hardening.audit_opensm(f"sm_key 0x1\n{CURED}#sm_key 0x1\n", LIMITED)
    assert row_of(rows, "sm_key").state is AuditState.MET


def test_an_option_that_is_left_out_has_the_default_of_opensm():
    with_lines = states(hardening.audit_opensm(DEFAULTS, LIMITED, "/elsewhere"))
    assert states(hardening.audit_opensm("", LIMITED, "/elsewhere")) == with_lines
    assert with_lines["partition_config_file"] == "not met"


def test_a_file_that_cannot_be_read_is_unknown_and_closed():
    rows = hardening.audit_opensm(None, LIMITED)
    assert row_of(rows, "m_key").state is AuditState.UNKNOWN
    assert {row.name for row in hardening.list_open_rows(rows)} >= {"m_key", "sa_key", "sm_key"}


@pytest.mark.parametrize("lines", ["part_enforce off", "no_partition_enforcement TRUE"])
def test_switches_that_let_everything_through_are_not_met(lines):
    row = row_of(hardening.audit_opensm(f"{CURED}{lines}\n", LIMITED), "part_enforce")
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)


@pytest.mark.parametrize("word", ["true", "1", "yes"])
def test_a_word_that_opensm_takes_for_off_does_not_open_switches(word):
    text = f"{CURED}no_partition_enforcement {word}\n"
    row = row_of(hardening.audit_opensm(text, LIMITED), "part_enforce")
    assert row.state is AuditState.MET


@pytest.mark.parametrize("level", ["0", "1", ""])
def test_a_protection_level_at_which_keys_can_be_read_is_not_met(level):
    rows = hardening.audit_opensm(f"{CURED}m_key_protection_level {level}\n", LIMITED)
    assert "m_key_protection_level" in {row.name for row in hardening.list_open_rows(rows)}


# -- NVIDIA's manager --------------------------------------------------------------------


def test_nvidias_guidelines_are_met():
    rows = hardening.audit_nvidia_manager(NVIDIA, LIMITED)
    assert {row.name for row in rows if row.state is not AuditState.MET} == {"am_key", "m2n_key"}
    assert row_of(rows, "m2n_key").state is AuditState.UNKNOWN
    assert row_of(rows, "am_key").state is AuditState.UNKNOWN
    assert hardening.list_open_rows(rows) == ()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("m_key_per_port FALSE", "m_key_per_port"),
        ("cc_key_enable 0", "cc_key"),
        ("vs_key_enable 1", "vs_key"),
        ("n2n_key_enable 1", "n2n_key"),
        ("n2n_key_enable 1", "m2n_key"),
        ("key_mgr_seed 0", "key_mgr_seed"),
        ("allowed_sm_guids (null)", "allowed_sm_guids"),
        ("topo_config_enabled FALSE", "topoconfig"),
        ("topo_config_file (null)", "topoconfig"),
        ("sa_enhanced_trust_model FALSE", "sa_enhanced_trust_model"),
        ("m_key 0x0", "m_key"),
    ],
)
def test_each_of_nvidias_settings_is_asked(line, name):
    row = row_of(hardening.audit_nvidia_manager(f"{NVIDIA}{line}\n", LIMITED), name)
    assert row.state is AuditState.NOT_MET
    assert row.cure


def test_nvidias_manager_without_a_file_of_options_is_open():
    rows = hardening.audit_nvidia_manager("", LIMITED)
    assert {row.name for row in hardening.list_open_rows(rows)} == {
        "sa_key",
        "sm_key",
        "m_key",
        "m_key_protection_level",
    }


# -- the manager that runs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "name", "found"),
    [
        ({"sm_key": "0x1"}, "sm_key", "the well-known default (on the command line"),
        ({"part_enforce": "off"}, "part_enforce", "off (on the command line"),
        ({"no_partition_enforcement": "TRUE"}, "part_enforce", "no_partition_enforcement TRUE (on"),
        ({"partition_config_file": "/b"}, "partition_config_file", "/b (on the command line"),
    ],
)
def test_the_command_line_wins_over_the_file(values, name, found):
    running = RunningOptions(values)
    row = row_of(
        hardening.audit_opensm(CURED, LIMITED, "/etc/opensm/partitions.conf", running), name
    )
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    assert row.found.startswith(found)
    assert "leave it out of the command line" in row.cure


def test_a_command_line_can_close_what_the_file_leaves_open():
    running = RunningOptions({"sm_key": GOOD_KEY, "part_enforce": "both"})
    text = f"{CURED}sm_key 0x1\npart_enforce off\n"
    assert hardening.list_open_rows(hardening.audit_opensm(text, LIMITED, "", running)) == ()


def test_a_command_line_that_is_hidden_makes_its_options_unknown():
    running = RunningOptions(unknown="the command line of opensm is hidden")
    path = "/etc/opensm/partitions.conf"
    for audit in (hardening.audit_opensm, hardening.audit_nvidia_manager):
        rows = hardening.list_open_rows(audit(CURED, LIMITED, path, running))
        assert {row.name for row in rows} == {"partition_config_file", "part_enforce", "sm_key"}
        assert {row.state for row in rows} == {AuditState.UNKNOWN}
        assert {row.found for row in rows} == {"the command line of opensm is hidden"}


def test_options_of_another_file_are_not_met():
    running = RunningOptions(other_config="/etc/other.conf")
    row = row_of(hardening.audit_opensm(CURED, LIMITED, "", running), "opensm_config")
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    assert row.cure == "[hpc_fabric_agent]opensm_config = /etc/other.conf"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sm_key 0x5\n", "0x5"),
        ("\t sm_key\t 0x5 \r\n", "0x5"),
        ("sm_key 0x5 # ours\n", "0x5"),
        ("sm_key 0x5#\n", "0x5"),
        ("sm_key '0x5'\n", "0x5"),
        ("sm_key \"0x5'\n", "\"0x5'"),
        ("sm_key 0x4\nsm_key 0x5\n", "0x5"),
        ("sm_key 0x5\n#sm_key 0x4\n# sm_key 0x3", "0x5"),
        ("sm_key\n", ""),
        # A longer line counts as two.
        (f"sa_key {'x' * 1015}sm_key 0x5\n", "0x5"),
        ("Sm_key 0x5\n", None),
        ("sm_key_0x5\n", None),
    ],
)
def test_a_file_of_options_is_read_as_opensm_reads_it(text, value):
    assert read_manager_options(text).get("sm_key") == value
