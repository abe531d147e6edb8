# SPDX-License-Identifier: Apache-2.0
"""The check for sites with ReFrame uses what the guest's command has and what its document says.

ReFrame itself is no part of the test environment (238 MB): with 4.10.4 the check was run by hand.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

from nova_hpc_guest.accept.options import add_accept_options

TOP = Path(__file__).parents[3]
CHECK = TOP / "etc/reframe/nova_hpc_accept_check.py"
GOLDEN = TOP / "tests/data/golden/wire/acceptance"


def read_texts() -> list[str]:
    """All texts of the check but for documentation."""
    tree = ast.parse(CHECK.read_text(encoding="utf-8"))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    ]


def test_its_options_are_those_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    add_accept_options(parser)
    words = {text for text in read_texts() if re.fullmatch(r"--[a-z-]+", text)}
    assert words == {"--format", "--tier", "--yes", "--baseline"}
    assert words <= set(parser._option_string_actions)
    parser.parse_args(["--format", "json", "--tier", "full", "--yes", "--baseline", "x"])


def test_its_keys_are_those_of_the_document() -> None:
    documents = [json.loads((GOLDEN / name).read_text()) for name in ("v1.json", "v1-refused.json")]
    asked = set(re.findall(r'(?:result\.get\(|\.get\()"(\w+)"', CHECK.read_text()))
    assert {"verdict", "refused", "promise", "causes", "measured", "failed"} <= asked
    inner = {"findings", "wrong"}
    assert asked - inner <= set(documents[0])
    assert set(documents[0]["promise"]["findings"][0]) >= {"text", "wrong"}
    assert set(documents[0]["causes"][0]) >= {"cause", "says"}
    assert set(documents[0]["measured"][0]) >= {"probe", "median", "unit"}
    assert "text" in documents[1]["refused"]
