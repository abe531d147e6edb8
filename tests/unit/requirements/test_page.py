# SPDX-License-Identifier: Apache-2.0
"""The operator's page has what the code says."""

from __future__ import annotations

from nova_hpc_requirements.judging_cloud import MOST_AGE
from nova_hpc_requirements.step_names import DOCUMENTS, ON_NODE
from nova_hpc_requirements.verdicts import RequirementState
from tests.unit.requirements.requirements_page import TABLE, write_table


def test_the_table_is_that_of_the_code():
    """``python -m tests.unit.requirements.requirements_page`` writes it again."""
    assert TABLE.read_text(encoding="utf-8") == write_table()


def test_the_page_says_the_words_of_the_code():
    page = TABLE.with_name("requirements.rst").read_text(encoding="utf-8")
    text = " ".join(page.split())
    for word in (*RequirementState, *(f"``{name}``" for name in (*DOCUMENTS, *ON_NODE))):
        assert word in text
    assert f"{MOST_AGE} seconds" in text
    assert ".. include:: requirements-table.inc\n" in page
