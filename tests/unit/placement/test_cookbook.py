# SPDX-License-Identifier: Apache-2.0
"""The flavors of the documentation are flavors that work."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.flavor import build_request
from nova_hpc.placement.model import DevicePool, FreeHost, HostNode, Want, WantedCell
from nova_hpc_common.level import Location

PAGE = Path(__file__).parents[3] / "docs" / "source" / "user" / "flavors.rst"


def cookbook() -> list[tuple[str, list[str]]]:
    commands = re.findall(r"^   (openstack .*?)(?=\n\n|\Z)", PAGE.read_text(), re.M | re.S)
    words = [shlex.split(command.replace("\\\n", " ")) for command in commands]
    return [(found[found.index("create") + 1], found) for found in words if found[3:5] == CREATE]


CREATE = ["flavor", "create"]


def test_the_page_was_read() -> None:
    assert len(cookbook()) >= 8


@pytest.mark.parametrize(("name", "words"), cookbook())
def test_a_flavor_of_the_cookbook(name: str, words: list[str]) -> None:
    pairs = itertools.pairwise(words)
    properties = dict(value.split("=", 1) for option, value in pairs if option == "--property")
    numbers = {n: int(words[words.index(n) + 1]) for n in ("--vcpus", "--ram")}
    wants = tuple(
        Want(alias, alias, int(count))
        for alias, count in (
            term.split(":") for term in properties["pci_passthrough:alias"].split(",")
        )
    )
    cells = int(properties.get("hw:numa_nodes", "1"))
    if "hw:cpu_policy" not in properties:
        cells = 0
    request = build_request(
        properties,
        wants,
        tuple(
            WantedCell(n, numbers["--vcpus"] // cells, numbers["--ram"] * 1024 // cells)
            for n in range(cells)
        ),
    )
    # A host of two sockets, four switches, eight GPUs and eight adapters.
    pools = tuple(
        DevicePool(f"{kind}{n}", f"{kind}{n}", place, free, frozenset({kind}))
        for n in range(8)
        for place in [Location(n // 4, n // 4, f"root{n // 2}", (f"switch{n // 2}",))]
        for kind, free in (("gpu", 1), ("vf", 16))
    )
    host = FreeHost("dgx", pools, (HostNode(0, 0, 48), HostNode(1, 1, 48)))
    (found,) = choose_device_sets(request, host).sets
    assert found.level <= request.level
