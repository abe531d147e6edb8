# SPDX-License-Identifier: Apache-2.0
"""The eight words of faults, as tags that Nova accepts."""

from __future__ import annotations

import itertools
import re

from nova_hpc_common.wire.server_faults import (
    OWNER_WORDS,
    FaultWord,
    read_fault_tags,
    read_report_tags,
)


def test_each_word_is_a_tag_that_nova_accepts() -> None:
    assert len(FaultWord) == 8
    for word in FaultWord:
        # nova/api/validation/parameter_types.py: tag; nova/objects/tag.py: MAX_TAG_LENGTH.
        assert re.fullmatch(r"[^,/]{1,60}", word.tag)
        assert re.fullmatch(r"[^,/]{1,60}", word.report_tag)
        assert word.meaning


def test_tags_are_read_in_any_order_and_beside_others() -> None:
    for order in itertools.permutations(("hpc-fault=link", "mine", "hpc-fault=gone")):
        assert read_fault_tags(order) == (FaultWord.GONE, FaultWord.LINK)


def test_other_tags_are_no_faults() -> None:
    assert read_fault_tags(("hpc-fault=", "hpc-fault=LINK", "hpc-fault", "link", 7, None)) == ()
    assert read_fault_tags(("hpc-fault=of-a-later-release",)) == ()


def test_a_report_is_no_fault_and_a_fault_no_report() -> None:
    tags = [*(word.tag for word in FaultWord), "hpc-report=", "hpc-report=SLOW", "hpc-report=host"]
    assert read_report_tags([*tags, 7, None]) == ()
    reports = [word.report_tag for word in reversed(OWNER_WORDS)]
    assert read_report_tags(reports) == OWNER_WORDS
    assert read_fault_tags(reports) == ()
