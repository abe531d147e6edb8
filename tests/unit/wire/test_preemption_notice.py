# SPDX-License-Identifier: Apache-2.0
"""The tag that a server will be shelved, against tags that owners write."""

from __future__ import annotations

import datetime

import pytest

from nova_hpc_common.wire.preemption_notice import format_notice_tag, read_notice_tags

TIME = datetime.datetime(2026, 12, 4, 8, 5, 59, tzinfo=datetime.UTC)


def test_a_notice_is_read_as_it_is_written() -> None:
    tag = format_notice_tag(TIME)
    assert tag == "hpc-preempt=2026-12-04T08:05Z"
    assert read_notice_tags(["mine", tag]) == {tag: TIME.replace(second=0)}


@pytest.mark.parametrize(
    "value", ["", "soon", "2026-13-04T08:05Z", "2026-12-04T08:05", "2026-12-04T08:05Z@device"]
)
def test_other_tags_are_none(value: str) -> None:
    assert read_notice_tags([f"hpc-preempt={value}", value, 7, None]) == {}
