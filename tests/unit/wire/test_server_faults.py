# SPDX-License-Identifier: Apache-2.0
"""The eight words of faults, as tags that Nova accepts."""

from __future__ import annotations

import itertools
import re

from nova_hpc_common.wire.server_faults import FaultWord, read_fault_tags


def test_each_word_is_a_tag_that_nova_accepts() -> None:
    assert len(FaultWord) == 8
    for word in FaultWord:
        # nova/api/validation/parameter_types.py: tag; nova/objects/tag.py: MAX_TAG_LENGTH.
        assert re.fullmatch(r"[^,/]{1,60}", word.tag)
        assert word.meaning


def test_tags_are_read_in_any_order_and_beside_others() -> None:
    for order in itertools.permutations(("hpc-fault=link", "mine", "hpc-fault=gone")):
        assert read_fault_tags(order) == (FaultWord.GONE, FaultWord.LINK)


def test_other_tags_are_no_faults() -> None:
    assert read_fault_tags(("hpc-fault=", "hpc-fault=LINK", "hpc-fault", "link", 7, None)) == ()
    assert read_fault_tags(("hpc-fault=of-a-later-release",)) == ()
