# SPDX-License-Identifier: Apache-2.0
"""Published figures: which can be compared, with which probe, and which cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.own_probes import read_probe_file
from nova_hpc_guest.accept.probes import PROBE_OF, Probe
from nova_hpc_guest.accept.published import (
    _NEAREST,
    NOT_HERE,
    compare_published,
    load_published,
)
from tests.unit.guest.accept_cases import row

SAMPLES = Path(__file__).parents[3] / "docs/source/user/samples/probes"


def find_probe(name: str, differs: str) -> Probe:
    sample = re.match(r"([\w-]+\.ini) measures it", differs)
    if sample is None:
        return PROBE_OF[name]
    (probe,) = [
        probe for probe in read_probe_file(str(SAMPLES / sample[1])).probes if probe.name == name
    ]
    return probe


def test_each_comparable_figure_has_its_probe() -> None:
    figures = {figure["benchmark"] for figure in load_published()}
    assert set(_NEAREST) <= figures
    for name, differs in _NEAREST.values():
        find_probe(name, differs)
    remarks = [line["why"] for line in compare_published(load_published(), {}, None)]
    assert sum(remark.endswith(NOT_HERE) for remark in remarks) == 19
    assert sum(remark.startswith("not comparable: ") for remark in remarks) == 66
    assert "not comparable: no probe measures it" not in remarks


@pytest.mark.parametrize("benchmark", _NEAREST)
def test_a_figure_stands_beside_the_users_own_ratio(
    benchmark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, differs = _NEAREST[benchmark]
    monkeypatch.setitem(PROBE_OF, name, find_probe(name, differs))
    lines = compare_published(load_published(), {name: row(name, 0.93)}, GuestFacts())
    own = {line["benchmark"]: (line["own"], line["why"]) for line in lines if line["own"]}
    assert own == {benchmark: (0.93, f"{differs}; guest against bare metal, as theirs")}
    # Of two virtual machines the ratio is no loss.
    lines = compare_published(
        load_published(), {name: row(name, 0.93)}, GuestFacts(hypervisor=True)
    )
    assert all("no loss to native speed" in line["why"] for line in lines if line["own"])
