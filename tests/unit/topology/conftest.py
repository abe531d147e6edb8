# SPDX-License-Identifier: Apache-2.0
"""Captures of machines, unpacked once, and synthetic nodes beside them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

OWN = Path(__file__).parents[2] / "data/topology/virtual-node.tar.xz"
NONE = "no-captures"
#: Nodes of tests.nodes that every test of captures runs on, too.
SYNTHETIC = ("gh200", "hgx-h100", "two-socket", "vmd")


def archives() -> list[Path]:
    """Every capture: those that NOVA_HPC_TEST_DATA holds, and the project's own."""
    folder = os.environ.get("NOVA_HPC_TEST_DATA")
    given = sorted(Path(folder, "hwloc").glob("*.tar.bz2")) if folder else []
    return [OWN, *given]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `archive` once for every capture."""
    if "archive" in metafunc.fixturenames:
        found = archives()
        values: list[Path | str] = (
            [*found, *SYNTHETIC] if len(found) > 1 else [*found, *SYNTHETIC, NONE]
        )
        metafunc.parametrize("archive", values, ids=lambda path: Path(path).name)


@pytest.fixture(scope="session")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Unpack an archive once; give its top directory (that of sys and proc)."""
    done: dict[Path, Path] = {}

    def unpacked(archive: Path) -> Path:
        if archive not in done:
            folder = tmp_path_factory.mktemp("capture")
            subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
            tops = [folder, *folder.iterdir()]
            done[archive] = next(top for top in tops if (top / "sys").is_dir())
        return done[archive]

    return unpacked


@pytest.fixture
def capture(
    archive: Path | str,
    unpack: Callable[[Path], Path],
    synthetic: Callable[[str], Path],
) -> Path:
    """The top directory of one capture; not to be changed."""
    if archive in SYNTHETIC:
        return synthetic(str(archive))
    if archive == NONE:
        pytest.skip("NOVA_HPC_TEST_DATA names no folder of captures")
    return unpack(Path(archive))


@pytest.fixture(scope="session")
def virtual_node(unpack: Callable[[Path], Path]) -> Path:
    """The project's own capture."""
    return unpack(OWN)
