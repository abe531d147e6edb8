# SPDX-License-Identifier: Apache-2.0
"""The core knows nothing of the lab; what Debian gives has one list."""

import configparser
import re
import subprocess
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
CORE = ("neutron_drivers", "nova_hpc", "nova_hpc_tools", "scheduler_filters", "virt_driver_patches")
#: Of the cloud that the lab runs; whoever installs the core has them or does not need them.
LAB_ONLY = {"glance", "keystone", "neutron", "openstack-placement", "waitress"}


def _core():
    parser = configparser.ConfigParser()
    parser.read(TOP / "setup.cfg")
    return parser


def _lab():
    return tomllib.loads((TOP / "lab" / "pyproject.toml").read_text())["project"]


def test_the_core_has_no_package_and_no_entry_point_of_the_lab():
    setup = _core()
    assert tuple(setup["files"]["packages"].split()) == CORE
    lines = [line for text in setup["entry_points"].values() for line in text.split("\n") if line]
    targets = [line.partition("=")[2].strip() for line in lines]
    assert len(targets) > 20
    assert {target.partition(".")[0] for target in targets} <= set(CORE)


def test_no_file_of_the_core_names_the_lab():
    files = [path for name in CORE for path in (TOP / name).rglob("*.py")]
    assert len(files) > 150
    naming = [str(path) for path in files if "nova_hpc_lab" in path.read_text()]
    assert naming == []


def test_the_core_does_not_require_what_only_the_lab_runs():
    wanted = {
        re.split(r"[<>=!~;\[ ]", line)[0].lower()
        for line in (TOP / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert "attrs" in wanted
    assert wanted & LAB_ONLY == set()


def test_the_lab_requires_the_core_and_brings_entry_points_of_its_own():
    lab = _lab()
    assert "nova-hpc" in lab["dependencies"]
    targets = [target for group in lab["entry-points"].values() for target in group.values()]
    assert {target.partition(".")[0] for target in targets} == {"nova_hpc_lab"}


def _shell(script):
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=TOP
    )
    return done.stdout.split()


def test_setup_installs_what_bindep_lists():
    # The lines of the script itself, run alone: it installs packages otherwise.
    setup = (TOP / "tools" / "setup.sh").read_text()
    lines = [line for line in setup.splitlines() if line.startswith("mapfile ")]
    given = _shell(
        '_top=$PWD; {}; printf "%s\\n" "${{_packages[@]}}" - "${{_backports[@]}}"'.format(
            "; ".join(lines)
        )
    )
    packages, backports = given[: given.index("-")], given[given.index("-") + 1 :]
    listed = {
        words[0]: words[1:]
        for line in (TOP / "bindep.txt").read_text().splitlines()
        if (words := re.findall(r"[\w.:+-]+", line.partition("#")[0]))
    }
    assert len(listed) > 15
    assert set(backports) == {name for name, profile in listed.items() if "backports" in profile}
    assert set(packages) == listed.keys() - set(backports)
    assert len(given) == len(listed) + 1
