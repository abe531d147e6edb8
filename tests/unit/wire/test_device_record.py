# SPDX-License-Identifier: Apache-2.0
"""Tags in Nova's records of devices."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.wire import device_record, tags
from nova_hpc.wire.device_record import DEVICE_RECORD


def test_only_own_tags_are_kept():
    text = device_record.write_device_record(
        {"hpc_tags": "1", "address": "0000:40:00.0", "hpc_root": "pci0000:40"}
    )
    assert device_record.read_device_record(text) == {"hpc_tags": "1", "hpc_root": "pci0000:40"}


@pytest.mark.parametrize("text", [None, "{}", '{"address": "0000:40:00.0"}'])
def test_what_is_no_record_has_no_tags(text):
    assert device_record.read_device_record(text) == {}


@pytest.mark.parametrize(
    "text",
    [7, "", "{", "[]", "[" * 4000, '{"hpc_tags": 1}', json.dumps({"hpc_root": "x" * 5000})],
)
def test_a_record_that_is_broken_makes_no_ordinary_device(text):
    with pytest.raises(tags.TagError, match="hpc_tags is 'unreadable'"):
        tags.parse_tags(device_record.read_device_record(text))


def test_the_longest_tags_fit():
    text = device_record.write_device_record(dict.fromkeys(tags.ALL, "x" * 255))
    assert len(text) <= DEVICE_RECORD.limit


@given(st.dictionaries(st.text(max_size=8).map("hpc_".__add__), st.text(max_size=20), max_size=9))
def test_there_and_back(tags):
    assert device_record.read_device_record(device_record.write_device_record(tags)) == tags
