# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc status upgrade check``, by the library of ``nova-status upgrade check``."""

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from nova_hpc.from_nova import nova_sources
from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.doctor import nova_release, upgrade_check
from nova_hpc_tools.doctor.upgrade_check import FAILURE, SUCCESS, WARNING
from nova_hpc_tools.main import main
from nova_hpc_tools.site import settings
from nova_hpc_tools.site.layout_cures import render_cure
from tests.unit.doctor.doctor_changes import COMPUTE
from tests.unit.doctor.doctor_place import Place
from tests.unit.node_files import GPU

SETTINGS, LEDGER = "Settings and declaration", "Ledger"


@pytest.fixture
def place(at_home, machine):
    folder = at_home.home.parent / ".placement" / "placement.conf.d"
    folder.mkdir(parents=True)
    (folder.parent / "placement.conf").touch()
    found = Place(machine, at_home.folder, folder, at_home.home / "nova.conf", at_home)
    found.healthy()
    with found.nova_conf.open("a", encoding="ascii") as file:
        file.write(f"[hpc]\nledger_file = {machine.parent}/ledger\n")
    return found


@pytest.fixture
def check(place, capsys):
    def run(*words):
        mine = ["--root", place.root, "--declaration", place.folder / "node.yaml", *words]
        status = main(["status", "upgrade", "check", *map(str, mine)])
        return status, *capsys.readouterr()

    def rows(*words):
        status, out, _ = run("-f", "json", *words)
        return status, {
            each["Check"]: (each["Result"], each["Details"]) for each in json.loads(out)
        }

    run.rows = rows
    return run


def test_all_is_well(check):
    status, rows = check.rows()
    assert (status, rows[SETTINGS]) == (0, ("Success", ""))
    # A first start is no fault, and it is said that nothing was looked at.
    assert rows[LEDGER][0] == "Success"
    assert rows[LEDGER][1].startswith("There is no ledger at ")
    assert check.rows("--part", "controller") == (0, {SETTINGS: ("Success", "")})
    status, out, err = check()
    assert (status, err) == (0, "")
    assert "| Upgrade Check Results of nova-hpc " in out
    assert out.count("| Result: Success") == 2


def test_what_the_doctor_finds_counts(check, place):
    place.put(f"/sys/devices/pci0000:17/{GPU}/current_link_width", "8")
    status, found = check.rows()
    assert (status, found[SETTINGS][0]) == (1, "Warning")
    assert f"{GPU}: its link has 8 of 16 lanes. Reseat the card" in found[SETTINGS][1]
    place.option(COMPUTE, "report_in_placement", "false")
    status, found = check.rows()
    assert (status, found[SETTINGS][0]) == (2, "Failure")
    # What is worst comes first.
    assert found[SETTINGS][1].startswith("[pci]report_in_placement is not true.")


def test_files_of_a_later_release(check, place):
    place.declare("version: 1", "version: 99")
    (place.root.parent / "ledger").write_text('{"v": 99}')
    status, found = check.rows()
    assert status == 2
    assert [result for result, _ in found.values()] == ["Failure", "Failure"]
    assert "99" in found[SETTINGS][1]
    assert "99" in found[LEDGER][1]
    assert "keep the release that wrote it" in found[LEDGER][1]


def test_a_configuration_that_does_not_parse(check, place):
    place.nova_conf.write_text("[hpc\n")
    status, out, err = check()
    assert (status, out) == (2, "")
    assert "cannot be read" in err


def test_without_the_library(check, monkeypatch):
    monkeypatch.setitem(sys.modules, "oslo_upgradecheck", None)
    status, _, err = check()
    assert status == 2
    assert "run the command where Nova is installed" in err


def test_the_shim(place, tmp_path, monkeypatch):
    virt = tmp_path / "elsewhere/nova/virt"
    virt.mkdir(parents=True)
    (virt.parent / "__init__.py").touch()
    (virt / "__init__.py").touch()
    top = str(Path(__file__).parents[3])
    monkeypatch.setattr(install_shim, "find_nova_interpreter", lambda: sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(virt.parents[1]), top]))
    code, text = upgrade_check._check_shim([])
    assert (code, text) == (FAILURE, f"{virt / 'hpc.py'} is missing. nova-hpc install-shim.")
    (virt / "hpc.py").write_text('"""nova-hpc: of an earlier release."""\n')
    assert upgrade_check._check_shim([])[1].endswith("hpc.py is outdated. nova-hpc install-shim.")
    install_shim.write_shim(virt / "hpc.py", install_shim.read_shim_content())
    assert upgrade_check._check_shim([]) == (SUCCESS, None)
    monkeypatch.setattr(install_shim, "find_nova_interpreter", lambda: "/no/python")
    assert upgrade_check._check_shim([])[0] == WARNING
    place.option(COMPUTE, "compute_driver", "libvirt.LibvirtDriver")
    assert upgrade_check._check_shim([]) == (SUCCESS, None)
    assert settings.DRIVER != "libvirt.LibvirtDriver"


def test_functions_of_nova(tmp_path, monkeypatch):
    home = tmp_path / "elsewhere"
    file = home / "nova/virt/hardware.py"
    file.parent.mkdir(parents=True)
    (file.parent / "__init__.py").touch()
    (file.parents[1] / "__init__.py").touch()
    info = home / "nova-34.0.0.dist-info"
    info.mkdir()
    metadata = "Metadata-Version: 2.1\nName: nova\nVersion: {}\n"
    (info / "METADATA").write_text(metadata.format("34.0.0"))
    file.write_text("def fit():\n    return 1\n")
    target = "nova.virt.hardware:fit"
    table = {target: {34: nova_sources.digest_function(ast.parse(file.read_text()), target)}}
    monkeypatch.setattr(nova_sources, "DIGESTS", table)
    monkeypatch.setattr(upgrade_check, "DIGESTS", table)
    monkeypatch.setattr(install_shim, "find_nova_interpreter", lambda: sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(home))
    assert upgrade_check._check_nova_functions() == (SUCCESS, None)
    file.write_text("def fit():\n    # A word of the distribution's.\n    return 1\n")
    assert upgrade_check._check_nova_functions() == (SUCCESS, None)
    file.write_text("def fit():\n    return 2\n")
    code, text = upgrade_check._check_nova_functions()
    assert code == WARNING
    assert text.startswith("fit in nova/virt/hardware.py is not that of Nova 34.0.0. It is used")
    (info / "METADATA").write_text(metadata.format("35.0.0"))
    code, text = upgrade_check._check_nova_functions()
    assert code == FAILURE
    assert text.startswith(f"Nova 35.0.0 is in {home / 'nova'}, and this release of nova-hpc")
    monkeypatch.setattr(install_shim, "find_nova_interpreter", lambda: "/no/python")
    assert upgrade_check._check_nova_functions()[0] == WARNING


@pytest.mark.parametrize(
    ("version", "least"),
    [
        ("32.2.0", "32.2.1"),
        ("33.0.0", "33.0.2"),
        ("33.0.2.dev4", None),
        ("32.2.1", None),
        ("34.0.0", None),
        (None, None),
    ],
)
def test_a_nova_without_a_fix(tmp_path, version, least):
    found = nova_release.find_unfixed_nova(tmp_path, version)
    assert (found is None) is (least is None)
    if least is not None:
        assert f"Install Nova {least} or later" in render_cure(found.cure)
        # A distribution's package with the fix and the earlier number.
        (tmp_path / "compute").mkdir()
        text = "hints = {k: v for k, v in hints.items() if not k.startswith('_nova')}\n"
        (tmp_path / "compute/api.py").write_text(text)
        assert nova_release.find_unfixed_nova(tmp_path, version) is None
