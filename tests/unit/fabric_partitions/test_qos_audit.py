# SPDX-License-Identifier: Apache-2.0
"""The row of ``fabric check`` for service levels: a level is served by a lane of its own."""

import pytest

from nova_hpc.fabric.partitions import hardening
from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.qos_audit import audit_service_levels

LEVELS = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\nred=0x101, sl=2 : 0x1=full ;\n"


def row_of(partitions, **options):
    (row,) = audit_service_levels(options, partitions)
    return row


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n",
        "red=0x101, sl=0 : 0x1=full ;\n",
        "# red=0x101, sl=2 : 0x1=full ;\n",
        "red-sl=0x101 : 0x1=full ;\n",
    ],
)
def test_without_levels_there_is_no_row(text):
    assert audit_service_levels({"qos": "FALSE"}, text) == ()


def test_the_defaults_of_opensm_have_quality_of_service_off():
    row = row_of(LEVELS)
    assert row.state is AuditState.NOT_MET
    assert row.found == "partitions have level 2, and qos is FALSE"
    assert "qos TRUE" in row.cure


@pytest.mark.parametrize("word", ["true", "True", "yes", "1", "TRUE_"])
def test_opensm_takes_one_word_for_on(word):
    row = row_of(LEVELS, qos=word)
    assert row.state is AuditState.NOT_MET
    assert row.found == f"partitions have level 2, and qos is {word}"


@pytest.mark.parametrize(
    "options",
    [
        {"qos": "TRUE"},
        {"qos": "TRUE", "qos_sl2vl": "(null)", "qos_vlarb_low": "(null)"},
        {"qos": "TRUE", "qos_vlarb_high": "2:64", "qos_vlarb_low": "0:4,1:4"},
        {"qos": "TRUE", "qos_sl2vl": "0,1,1,3,4,5,6,7,8,9,10,11,12,13,14,7"},
    ],
)
def test_a_lane_with_a_weight_is_met(options):
    row = row_of(LEVELS, **options)
    assert (row.state, row.cure) == (AuditState.MET, "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"qos_vlarb_high": "0:4", "qos_vlarb_low": "0:4,1:4"}, "VL 2 of level 2 has no weight"),
        ({"qos_vlarb_high": "2:0", "qos_vlarb_low": "2:0"}, "VL 2 of level 2 has no weight"),
        ({"qos_sl2vl": "0,1,0,3,4,5,6,7,8,9,10,11,12,13,14,7"}, "shares VL 0 with level 0"),
        ({"qos_sl2vl": "0,1,15,3,4,5,6,7,8,9,10,11,12,13,14,7"}, "packets are dropped"),
        ({"qos_max_vls": "2"}, "there are 2 virtual lanes, and level 2 is on 2"),
        # One kind of ports alone: its options win.
        ({"qos_swe_sl2vl": "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0"}, "qos_swe_sl2vl: level 2 shares"),
        ({"qos_ca_vlarb_high": "0:1", "qos_ca_vlarb_low": "0:1"}, "qos_ca_vlarb: VL 2"),
    ],
)
def test_a_level_without_a_lane_of_its_own_is_not_met(options, text):
    row = row_of(LEVELS, qos="TRUE", **options)
    assert row.state is AuditState.NOT_MET
    assert text in row.found


@pytest.mark.parametrize(
    "options",
    [
        {"qos_sl2vl": "0,1,2"},
        {"qos_sl2vl": "0,1,16,3,4,5,6,7,8,9,10,11,12,13,14,7"},
        {"qos_vlarb_low": "0:4,x:4"},
        {"qos_vlarb_high": "2"},
        {"qos_max_vls": "many"},
    ],
)
def test_a_value_that_makes_no_sense_is_unknown(options):
    assert row_of(LEVELS, qos="TRUE", **options).state is AuditState.UNKNOWN


def test_options_that_cannot_be_read_are_unknown():
    (row,) = audit_service_levels(None, LEVELS)
    assert row.state is AuditState.UNKNOWN


def test_both_managers_have_the_row_and_it_refuses_no_start():
    for audit in (hardening.audit_opensm, hardening.audit_nvidia_manager):
        rows = [row for row in audit("qos FALSE\n", LEVELS) if row.name == "service_levels"]
        assert [(row.state, row.needed) for row in rows] == [(AuditState.NOT_MET, False)]
