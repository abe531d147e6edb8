# SPDX-License-Identifier: Apache-2.0
"""What a block of a page is highlighted as, which names no language."""

import importlib.util
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def languages():
    spec = importlib.util.spec_from_file_location(
        "block_languages", TOP / "docs/block_languages.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("nova-hpc inventory", "bash"),
        ("# on the controller\nopenstack flavor create x", "bash"),
        ("HOST=node17\nssh $HOST true", "bash"),
        ("$ nova-hpc configure\nNothing to do.", "console"),
        ("# nova-hpc configure\nNothing to do.", "console"),
        ("[hpc]\ncheck = yes", "ini"),
        ("# for the node\n[hpc]", "ini"),
        ('{"a": 1}', "json"),
        ("[1, 2]", "json"),
        ("{a} and b", "none"),
        ("schema: nova-hpc/node\nroles:\n- {role: gpu}", "yaml"),
        ("node7: 4 GPUs free: none", "none"),
        ("Device  Role\n------  ----", "none"),
        ("# a remark alone", "none"),
        ("# ", "none"),
        ("", "none"),
    ],
)
def test_a_language_is_plain_or_none(languages, text, language):
    assert languages.choose_language(text) == language
