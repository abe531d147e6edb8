# SPDX-License-Identifier: Apache-2.0
"""tools/mutate.py: its table fits the tree, and it tells the dead from the living."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TOP = Path(__file__).resolve().parents[3]
PACKAGES = (
    "nova_hpc_tools/fabric", "nova_hpc_tools/cloud", "nova_hpc/from_nova", "nova_hpc_guest/",
    "nova_hpc/guest_tree", "nova_hpc_tools/adopt", "nova_hpc/placement", "nova_hpc/tenancy",
    "nova_hpc/topology", "nova_hpc/wire", "scheduler_filters", "shm/src",
    "virt_driver_patches/domain", "virt_driver_patches/driver", "virt_driver_patches/patches",
    "lab",
)  # fmt: skip

_spec = importlib.util.spec_from_file_location("mutate", TOP / "tools" / "mutate.py")
assert _spec is not None
assert _spec.loader is not None
mutate = importlib.util.module_from_spec(_spec)
sys.modules["mutate"] = mutate
_spec.loader.exec_module(mutate)


def test_every_fault_has_its_text_in_the_tree() -> None:
    rows = mutate.faults()
    assert mutate.check(rows) == []
    assert len(rows) >= 60
    files = [row.file for row in rows]
    assert [each for each in PACKAGES if not any(one.startswith(each) for one in files)] == []


CODE = "def add(one, other):\n    return one + other\n\n\ndef double(one):\n    return one * 2\n"
TESTS = "from tests.unit.code import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
#: name -> what stands there instead, and what the tests say of it.
ROWS = {
    "minus": ("one + other", "one - other", "killed"),
    "thrice": ("one * 2", "one * 3", "survived"),
    "gone": ("def add(", "def plus(", "broken"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with the tool, one module, and a test of half of it."""
    # A checkout that is installed editable has packages of these names, too.
    packages = (("tests/__init__.py", ""), ("tests/unit/__init__.py", ""))
    for path, text in (
        *packages,
        ("tests/unit/code.py", CODE),
        ("tests/unit/test_code.py", TESTS),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "tools").mkdir()
    shutil.copy(TOP / "tools" / "mutate.py", tmp_path / "tools")
    return tmp_path


def run(tree: Path, *names: str, words: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Run the tool on these rows."""
    (tree / "tools" / "faults.toml").write_text(
        "".join(
            f'[[fault]]\nname = "{name}"\nfile = "tests/unit/code.py"\n'
            f'old = "{ROWS[name][0]}"\nnew = "{ROWS[name][1]}"\n'
            'tests = ["tests/unit/test_code.py"]\n'
            for name in names
        )
    )
    command = [sys.executable, str(tree / "tools" / "mutate.py"), *words]
    # Without plugins pytest starts in no time.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=env, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_the_dead_the_living_and_nonsense(tree: Path) -> None:
    status, out, err = run(tree, *ROWS, words=("--format", "json"))
    assert status == 1
    assert {row["name"]: row["verdict"] for row in json.loads(out)} == {
        name: verdict for name, (_, _, verdict) in ROWS.items()
    }
    assert "3 faults: 1 killed, 1 survived, 1 broken" in err
    assert (tree / "tests/unit/code.py").read_text() == CODE


def test_a_survivor_gets_a_second_chance(tree: Path) -> None:
    (tree / "tests/unit/test_double.py").write_text(
        "from tests.unit.code import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
    )
    words = ("--only", "thrice", "--all-tests")
    status, out, _ = run(tree, *ROWS, words=words)
    assert (status, "test_double.py::test_double" in out) == (0, True)


def test_a_table_that_does_not_fit_the_tree(tree: Path) -> None:
    (tree / "tests/unit/code.py").write_text(CODE.replace("one * 2", "2 * one"))
    status, _, err = run(tree, "minus", "thrice")
    assert (status, "has its text 0 times" in err) == (2, True)


def test_tests_that_fail_anyway_prove_nothing(tree: Path) -> None:
    (tree / "tests/unit/test_code.py").write_text("def test_it():\n    assert False\n")
    status, _, err = run(tree, "minus")
    assert (status, "fail without any fault" in err) == (2, True)
