# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric plan``, as an operator meets it."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nova_hpc_tools.main import main

MODEL = """
switches:
  spine1:
    switches: [leaf1, leaf2]
  leaf1: {}
  leaf2: {}
blocks:
- switch: leaf1
  nodes: ["n[1-3]"]
- switch: leaf2
  nodes: ["n[4-6]"]
"""
CAPACITY = "host,fit\nn1,2\nn2,1\nn3,1\nn4,4\nn5,1\nn6,0\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "map.yaml").write_text(MODEL)

    def call(*words: object, capacity: str = CAPACITY) -> tuple[int, str, str]:
        (tmp_path / "cap.csv").write_text(capacity)
        files = ["--map", str(tmp_path / "map.yaml"), "--capacity", str(tmp_path / "cap.csv")]
        status = main(["fabric", "plan", *files, *map(str, words)])
        return status, *capsys.readouterr()

    return call


def test_people_read_where_the_members_go_and_why(run: Run) -> None:
    status, out, err = run("--members", 4)
    assert (status, err) == (0, "")
    assert out == "4 members on host n4\n  leaf2: 4 on n4 x4\n"
    status, out, _ = run("--members", 4, "--max-per-host", 2)
    assert out.splitlines() == [
        "4 members on 3 hosts in leaf leaf1",
        "  leaf1: 4 on n1 x2, n2, n3",
    ]


def test_a_gang_that_does_not_fit_is_status_one_with_the_nearest_miss(run: Run) -> None:
    status, out, err = run("--members", 6)
    assert (status, out, err) == (1, "leaf leaf2 holds 5 of 6; spine spine1 holds 9\n", "")
    status, out, _ = run("--members", 6, "--policy", "preferred")
    assert status == 0
    assert "of 2 leaves in spine spine1: leaf leaf2 holds 5 of 6" in out


def test_json_says_everything(run: Run) -> None:
    status, out, _ = run("--members", 5, "--format", "json")
    found = json.loads(out)
    assert status == 0
    assert found["schema"] == "nova-hpc/gang-plan"
    assert found["fits"] is found["proven"] is found["reached"] is True
    assert found["hosts"] == {"n4": 4, "n5": 1}
    assert found["leaves"] == {"leaf2": 5}
    assert found["around"] == {"leaf": "leaf2", "spine": "spine1", "core": "spine1"}
    assert found["asked"]["level"] == "leaf"
    status, out, _ = run("--members", 6, "-f", "yaml")
    found = yaml.safe_load(out)
    assert status == 1
    assert found["fits"] is False
    assert found["nearest"] == {"level": "leaf", "domain": "leaf2", "holds": 5}
    assert found["instead"] == {"level": "spine", "domain": "spine1", "holds": 9}


def test_a_list_has_one_row_a_host(run: Run) -> None:
    _, out, _ = run("--members", 5, "-f", "csv")
    assert list(csv.reader(io.StringIO(out))) == [
        ["Host", "Members", "Leaf"],
        ["n4", "4", "leaf2"],
        ["n5", "1", "leaf2"],
    ]


def test_a_bad_capacity_file_is_reported_by_line(run: Run) -> None:
    status, out, err = run("--members", 1, capacity="host,fit\nn1,many\nn2,1\nn2,2\n")
    assert (status, out) == (2, "")
    first, second = err.splitlines()
    assert first.endswith("line 2: fit is 'many'; it must be a whole number from 0 to 1000000")
    assert second.endswith("cap.csv: line 4: host 'n2' stands in line 3 already")


def test_hosts_that_the_map_does_not_know_are_a_warning(run: Run) -> None:
    status, _, err = run("--members", 1, capacity=CAPACITY + "n99,1\n")
    assert status == 0
    assert "does not know n99" in err


def test_files_that_are_not_there_or_no_map(run: Run, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"\x00\xff\x00")
    for words in (["--map", tmp_path / "none"], ["--map", tmp_path / "noise"]):
        status, out, err = run("--members", 1, *words)
        assert (status, out) == (2, "")
        assert str(words[1]) in err
        assert "Traceback" not in err
    status, _, err = run("--members", 1, "--capacity", tmp_path / "noise")
    assert status == 2
    assert "noise" in err


def test_the_picture_shows_every_place(run: Run, tmp_path: Path) -> None:
    status, _, _ = run("--members", 5, "--svg", tmp_path / "plan.svg")
    assert status == 0
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    fills = [each.get("fill") for each in root.iter() if each.get("height") == "9"]
    # Six hosts of four cells, and the legend.
    assert len(fills) == 6 * 4 + 3
    assert fills.count("#1f6f8b") == 5 + 1
    assert fills.count("#d7e8ee") == 9 - 5 + 1
    status, _, err = run("--members", 5, "--svg", tmp_path / "no" / "plan.svg")
    assert status == 2
    assert "--svg" in err


def test_a_gang_of_256_on_the_ndr_capture(
    captures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = Path(__file__).parents[4] / "docs" / "source" / "user" / "pictures"
    words = ["--map", captures / "fabric" / "ibnetdiscover-ndr.out", "--members", "256"]
    words += ["--capacity", pictures / "gang-256-ndr.csv", "--level", "spine"]
    drawn = tmp_path / "drawn.svg"
    assert main(["fabric", "plan", *map(str, words), "--svg", str(drawn), "-f", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["hosts"].values()) == 256
    assert found["proven"]
    assert drawn.read_text() == (pictures / "gang-256-ndr.svg").read_text()
