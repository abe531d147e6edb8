# SPDX-License-Identifier: Apache-2.0
"""The core knows nothing of the lab; what Debian gives has one list."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.wheels import (
    count_wheel_lines,
    list_production_folders,
    read_budget,
    read_wheels,
)

TOP = Path(__file__).resolve().parents[3]
CONF = TOP / "docs/source/conf.py"
WHEELS = read_wheels()
#: Of the cloud that the lab runs; whoever installs the core has them or does not need them.
LAB_ONLY = {"glance", "keystone", "neutron", "openstack-placement", "waitress"}


@pytest.mark.parametrize("name", WHEELS)
def test_the_entry_points_of_a_wheel_are_its_own(name):
    wheel = WHEELS[name]
    places = [place for group in wheel.entry_points.values() for place in group.values()]
    assert {place.partition(":")[0].partition(".")[0] for place in places} <= set(wheel.packages)


def test_each_wheel_has_the_same_version_and_a_budget():
    assert len({wheel.version for wheel in WHEELS.values()} - {None}) == 1
    assert read_budget().keys() == WHEELS.keys()


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_keeps_to_its_budget(name):
    """A larger one needs a line in BUDGET that says what its reader gets."""
    assert count_wheel_lines(WHEELS[name]) <= read_budget()[name]


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_requires_the_wheels_that_it_imports(name):
    """Also those that it imports in a function only; an extra counts."""
    wheel = WHEELS[name]
    owners = {package: other for other in WHEELS.values() for package in other.packages}
    imported = {
        owners[top].name
        for folder in wheel.packages.values()
        for path in (TOP / folder).rglob("*.py")
        for top in re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.M)
        if top in owners and top not in wheel.packages
    }
    requirements = (*wheel.requirements, *wheel.extra_requirements)
    assert imported <= {Requirement(text).name for text in requirements}


def test_each_man_page_is_in_a_wheel():
    """tools/release.py tests that the page is there."""
    (pages,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(re.sub(r"\[author\]", "[]", CONF.read_text())).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "man_pages"
    )
    shared = {place: name for wheel in WHEELS.values() for name, place in wheel.shared.items()}
    names = [f"{name}.{section}" for _, name, _, _, section in pages]
    assert shared == {f"share/man/man1/{name}": f"man/{name}" for name in names}


def test_wheels_with_man_pages_have_the_same_hook():
    folders = [TOP / wheel.folder for wheel in WHEELS.values() if wheel.shared]
    hooks = {(folder / "hatch_build.py").read_text() for folder in folders}
    assert len(folders) == 3
    assert len(hooks) == 1


def test_a_copy_for_the_guests_wheel_is_the_same():
    """The guest's wheel imports no other one; both sides of a contract have its words."""
    for ours, theirs in (
        ("nova_hpc/wire/guest_terms.py", "nova_hpc_guest/terms.py"),
        ("nova_hpc/topology/rdma_types.py", "nova_hpc_guest/rdma_devices.py"),
    ):
        copied, original = (list_definitions(TOP / path) for path in (ours, theirs))
        assert copied.keys() <= original.keys()
        assert len(copied) > 2
        assert {name: original[name] for name in copied} == copied


def list_definitions(path):
    """Name -> code, for the constants and functions of a module."""
    return {
        node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.target): ast.dump(node)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AnnAssign)
    }


def test_no_file_of_another_wheel_names_the_lab():
    files = [path for name in list_production_folders() for path in (TOP / name).rglob("*.py")]
    assert len(files) > 500
    naming = [str(path) for path in files if "nova_hpc_lab" in path.read_text()]
    assert naming == []


def test_the_core_does_not_require_what_only_the_lab_runs():
    wanted = {
        Requirement(text).name.lower()
        for name, wheel in WHEELS.items()
        for text in (*wheel.requirements, *wheel.extra_requirements)
        if name != "nova-hpc-lab"
    }
    assert "attrs" in wanted
    assert wanted & LAB_ONLY == set()


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
