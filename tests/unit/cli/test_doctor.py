# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc doctor``: faults made for real, found, and cured by their cures."""

import json

import pytest

from nova_hpc.cli.doctor import Doctor
from nova_hpc.cli.main import main
from nova_hpc.offer import findings
from tests.unit.cli import doctor_faults
from tests.unit.cli.doctor_faults import FAULTS, GPU, Place

PARTS = ("node", "controller", "placement")


@pytest.fixture
def place(at_home, machine, monkeypatch):
    """A healthy node that is a controller, too."""
    folder = at_home.home.parent / ".placement" / "placement.conf.d"
    folder.mkdir(parents=True)
    (folder.parent / "placement.conf").touch()
    found = Place(machine, at_home.folder, folder, at_home.home / "nova.conf", at_home)
    found.healthy()
    return found


@pytest.fixture
def doctor(place, capsys):
    def run(*words, parts=PARTS):
        command = Doctor(None, None)
        parser = command.get_parser("nova-hpc doctor")
        mine = ["--root", place.root, "--declaration", place.folder / "node.yaml"]
        mine += [word for part in parts for word in ("--part", part)]
        status = command.run(parser.parse_args(list(map(str, [*mine, *words]))))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    def checks():
        status, out, err = run("-f", "json")
        assert err == ""
        found = json.loads(out)["findings"]
        worst = {"error": 3, "warning": 1}
        assert status == max((worst[each["severity"]] for each in found), default=0)
        return {each["check"]: each for each in found}

    run.checks = checks
    return run


def test_a_healthy_node_has_nothing(doctor):
    assert doctor() == (0, "Nothing is wrong.\n", "")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.text)
def test_a_fault_is_found_and_cured(doctor, place, fault):
    fault.make(place)
    found = doctor.checks()
    assert fault.check in found
    said = found[fault.check]
    assert said["severity"] == findings.CHECKS[fault.check].severity.word
    assert said["seen"].endswith(".")
    assert said["docs"] == f"admin/doctor.html#doctor-{fault.check}"
    fault.cure(place)
    assert fault.check not in doctor.checks()


def test_every_check_has_a_fault():
    without = set(findings.CHECKS) - {fault.check for fault in FAULTS}
    # Of the fleet, below.
    assert without == {
        *("aliases-differ", "aliases-missing", "not-read"),
        # Of other tools, in a file of their own.
        *("host-validate", "option-unknown", "not-looked"),
    }
    assert len(FAULTS) >= 30


def test_the_tables_of_the_documentation():
    page = doctor_faults.PAGE
    assert page.read_text(encoding="utf-8") == doctor_faults.table()
    checks = page.with_name("doctor-checks.inc")
    assert checks.read_text(encoding="utf-8") == doctor_faults.checks()


def test_for_people(doctor, place):
    place.driver(GPU, "nvidia")
    status, out, _ = doctor(parts=("node",))
    assert status == 3
    assert f"ERROR {GPU}: bound to nvidia, withheld until bound to vfio-pci. [driver]" in out
    assert f"  Cure: driverctl set-override {GPU} vfio-pci\n" in out
    assert "  admin/doctor.html#doctor-driver\n" in out


def test_a_node_of_which_nothing_is_known(doctor, tmp_path):
    (tmp_path / "empty").mkdir()
    status, _, err = doctor("--root", tmp_path / "empty")
    assert status == 2
    assert "no CPU and no PCI device" in err


# --- the fleet ------------------------------------------------------------------------


def test_a_fleet(doctor, place, tmp_path, capsys):
    folder = tmp_path / "fleet"
    folder.mkdir()
    place.put("/proc/sys/kernel/hostname", "gpu1")
    (folder / "a.json").write_text(doctor("-f", "json")[1], encoding="ascii")
    assert doctor("--merge", folder)[0] == 0
    place.put("/proc/sys/kernel/hostname", "gpu2")
    place.driver(GPU, "nvidia")
    place.edit("common", '"product_id": "2330"', '"product_id": "2331"')
    (folder / "b.json").write_text(doctor("-f", "json")[1], encoding="ascii")
    (folder / "c.json").write_text("{", encoding="ascii")
    status, out, _ = doctor("--merge", folder)
    assert status == 3
    assert f"ERROR gpu2: {GPU}: bound to nvidia" in out
    assert "ERROR [pci]alias gpu differs: gpu1: " in out
    assert "WARNING c: c.json: the findings is not JSON" in out
    assert "aliases-missing" not in out
    short = json.loads((folder / "b.json").read_text())
    short.update(node="api", findings=[], aliases=short["aliases"][1:])
    (folder / "d.json").write_text(json.dumps(short), encoding="ascii")
    status, out, _ = doctor("--merge", folder)
    assert "WARNING [pci]alias gpu is not known on api. [aliases-missing]" in out
    assert "  Cure: Copy the line of gpu1, gpu2 there, and restart the services.\n" in out
    (folder / "d.json").unlink()
    # As rows.
    assert main(["doctor", "--merge", str(folder), "-f", "json"]) == 3
    rows = json.loads(capsys.readouterr().out)
    assert {row["Node"] for row in rows} >= {"gpu2", "c", ""}
    # What a later release finds is shown, too.
    later = json.loads((folder / "a.json").read_text())
    later["findings"] = [
        {"check": "new", "severity": "notice", "seen": "s", "why": "w", "cure": "c", "docs": "d"}
    ]
    for path in folder.iterdir():
        path.unlink()
    (folder / "a.json").write_text(json.dumps(later), encoding="ascii")
    status, out, _ = doctor("--merge", folder)
    assert status == 1
    assert "NOTICE gpu1: s [new]" in out


def test_no_fleet(doctor, tmp_path):
    assert doctor("--merge", tmp_path / "none")[0] == 2
    (tmp_path / "none").mkdir()
    status, _, err = doctor("--merge", tmp_path / "none")
    assert status == 2
    assert "no .json file" in err
