# SPDX-License-Identifier: Apache-2.0
"""The page "First flavors and first server": what its commands print, on Nova's own stack."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from nova_hpc_tools.cloud import explain_answer
from nova_hpc_tools.cloud.explain import explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion, FlavorReport, ServerReport
from nova_hpc_tools.cloud.explain.server_report import explain_server
from nova_hpc_tools.readers import snapshot
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.unit.commands import pages

PAGE = Path(__file__).parents[2] / "docs/source/admin/first-server.rst"
SHAPE = fixtures.Shape(
    (
        fixtures.Switch(gpus=2, pfs=1, vfs=2),
        fixtures.Switch(gpus=2, pfs=1, vfs=2, numa=1),
    ),
    pages=((4, 4000000), (2048, 4096)),
)


def flavor_lines() -> dict[str, dict[str, str]]:
    """Name -> extra specs of the flavors that the page makes."""
    found = {}
    for block in pages.blocks(PAGE):
        words = shlex.split(block.text)
        if words[-1:] and "create" in words and "flavor" in words:
            name = words[words.index("create") + 1]
            pairs = itertools.pairwise(words)
            said = (after for word, after in pairs if word == "--property")
            found[name] = dict(each.split("=", 1) for each in said)
    return found


def shown(command: str) -> str:
    """What the page shows below a command."""
    (block,) = (each for each in pages.blocks(PAGE) if each.text.startswith(f"# {command}\n"))
    return block.text.partition("\n")[2]


def printed(answer: FlavorReport | ServerReport) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        explain_answer.print_explanation(answer)
    return out.getvalue()


def lines_of(text: str) -> list[str]:
    """The lines without what chance decides: which of two equal hosts, NUMA nodes and devices.

    Nor with what a terminal draws otherwise.
    """
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"node[12]|NUMA node [01]|0000:[24][01](:0[01]\.0)?|\.[12]\b", "ONE", text)
    return sorted(
        line.strip("│├└─ ").replace("◀", "<-") for line in text.splitlines() if line.strip()
    )


@pytest.mark.slow
class FirstServerTest(DriverTest):
    def test_the_page(self) -> None:
        for name in ("node1", "node2"):
            self.host(name, SHAPE, cpu_dedicated_set="1-3,5-7")
        flavors = {
            name: self.make_flavor(specs, name=name) for name, specs in flavor_lines().items()
        }
        self.assertEqual({"hpc.gpu1vf1", "hpc.gpu3"}, set(flavors))

        self.assert_shown("nova-hpc explain --flavor hpc.gpu1vf1", self.explain("hpc.gpu1vf1"))

        first = self.boot(flavors["hpc.gpu1vf1"], name="first")
        given = explain_server(snapshot.take_cloud_snapshot(), first["id"])
        self.assert_shown("nova-hpc explain --server first", given)

        second = self.boot(flavors["hpc.gpu3"], state="ERROR", name="second")
        self.assertIn(second["fault"]["message"], " ".join(PAGE.read_text("utf-8").split()))
        self.assert_shown("nova-hpc explain --flavor hpc.gpu3", self.explain("hpc.gpu3"))

    def explain(self, flavor: str) -> FlavorReport:
        return explain_flavor(snapshot.take_cloud_snapshot(), FlavorQuestion(flavor))

    def assert_shown(self, command: str, answer: FlavorReport | ServerReport) -> None:
        """The page shows the whole answer, or parts of it around lines of three dots."""
        said, rest = lines_of(shown(command)), lines_of(printed(answer))
        if "..." in said:
            self.assertEqual({"..."}, set(Counter(said) - Counter(rest)))
        else:
            self.assertEqual(said, rest)
