# SPDX-License-Identifier: Apache-2.0
"""What the doctor advises: a check is looked up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nova_hpc_tools.doctor.check_cures import CURES
from nova_hpc_tools.main import main
from nova_hpc_tools.site.findings import CHECKS
from nova_hpc_tools.site.layout_cures import render_cure

DOCTOR = Path(__file__).parents[3] / "nova_hpc_tools/doctor"


def test_each_check_has_a_cure() -> None:
    assert list(CURES) == list(CHECKS)


def test_a_check_is_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "check", "iommu-off"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("iommu-off (error)\n  Without an IOMMU")
    assert f"  Cure: {render_cure(CURES['iommu-off'])}\n" in out
    assert out.endswith("  Page: admin/doctor.html#doctor-iommu-off\n")
    # As it stands behind a finding, for programs, and with the site's own address.
    words = ["[iommu-off]", "--docs", "https://docs.example.org/nova-hpc/", "-f", "json"]
    assert main(["help", "check", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["Page"] == "https://docs.example.org/nova-hpc/admin/doctor.html#doctor-iommu-off"


def test_a_check_is_looked_up_for_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "check", "libvirt-old", "--layout", "kolla"]) == 0
    assert "and restart the container nova_compute.\n" in capsys.readouterr().out


def test_a_check_that_is_not_there_is_named_with_its_like(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help", "check", "iommu-of"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("nova-hpc help check: there is no check 'iommu-of'; near it: iommu-off")


def test_each_check_has_its_place_on_the_page() -> None:
    page = (DOCTOR.parents[1] / "docs/source/admin/doctor-checks.inc").read_text(encoding="utf-8")
    assert [name for name in CHECKS if f".. _doctor-{name}:\n" not in page] == []
