# SPDX-License-Identifier: Apache-2.0
"""Environments in which Nova and this project are installed in each way that pip knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[1]
#: How Nova is installed, and how this project.
NOVA: Final = ("plain", "editable")
OURS: Final = ("plain", "editable", "wheel", "sdist")
#: Folders of the wheels beside nova-hpc that its command needs.
OTHERS: Final = ("nova_hpc_common", "nova_hpc_guest", "nova_hpc_tools")
#: What a build of this project reads.
_NEEDED: Final = (
    "LICENSE",
    "README.rst",
    "etc",
    "neutron_drivers",
    "nova_hpc",
    *OTHERS,
    "pyproject.toml",
    "requirements.txt",
    "scheduler_filters",
    "setup.cfg",
    "setup.py",
    "virt_driver_patches",
)


def run_clean(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that sees no checkout."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words],
        cwd="/",
        env=variables | {"PBR_VERSION": "0.0.1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def pip(python: Path | str, *words: object) -> None:
    """Run this environment's pip for another one's Python."""
    done = run_clean(sys.executable, "-m", "pip", "-q", "--python", python, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def copy_project(copy: Path) -> Path:
    """A copy of this project's source, as a checkout: building writes into it."""
    copy.mkdir()
    for name in _NEEDED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, copy / name)
    # pbr asks git which files are data of a package.
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=copy, check=True)
    return copy


def make_environment(home: Path) -> Path:
    """An environment with the dependencies of this one and none of its projects; its Python."""
    done = run_clean(sys.executable, "-m", "venv", "--without-pip", home)
    assert done.returncode == 0, done.stderr
    (site,) = (home / "lib").glob("python*/site-packages")
    dependencies = home / "dependencies"
    dependencies.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        # Nova and this project are what is installed in one way or another.
        if not each.name.startswith(("nova", "__editable__", "__pycache__")):
            (dependencies / each.name).symlink_to(each)
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    return home / "bin" / "python"


@attrs.define
class Layout:
    """The sources of Nova and of this project, and what was built of them.

    :ivar nova: a checkout of Nova, or of a toy.
    :ivar ours: a checkout of this project.
    :ivar built: a folder for archives.
    """

    nova: Path
    ours: Path
    built: Path

    def wheel_of(self, name: str, of: str = "checkout") -> Path:
        """The wheel of a checkout, or of its source archive."""
        folder = self.built / f"{name}-{of}"
        if not folder.is_dir():
            source = self.source_archive() if of == "sdist" else getattr(self, name)
            self._pip_wheel(source, folder)
        (wheel,) = folder.glob("*.whl")
        return wheel

    def source_archive(self) -> Path:
        """The source archive of this project."""
        folder = self.built / "sdist"
        if not folder.is_dir():
            code = f"import pbr.build as b; b.build_sdist({str(folder)!r})"
            folder.mkdir()
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=self.ours,
                env={**os.environ, "PBR_VERSION": "0.0.1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        (archive,) = folder.glob("*.tar.gz")
        return archive

    def install(self, home: Path, nova: str, ours: str) -> Path:
        """Install both; the environment's Python."""
        python = make_environment(home)
        self._install(python, *(("-e", self.nova) if nova == "editable" else (self.nova,)))
        words: dict[str, tuple[object, ...]] = {
            "plain": (self.ours,),
            "editable": ("-e", self.ours),
            "wheel": (self.wheel_of("ours"),),
            "sdist": (self.source_archive(),),
        }
        self._install(python, *words[ours])
        self.install_others(python, "-e" if ours == "editable" else None)
        return python

    def install_others(self, python: Path, option: str | None = None) -> None:
        """Install the wheels that the command needs beside nova-hpc."""
        for name in OTHERS:
            self._install(python, *((option,) if option else ()), self.ours / name)

    def _install(self, python: Path, *words: object) -> None:
        # setuptools and pbr are those of this environment, which has today's.
        pip(python, "install", "--no-deps", "--no-build-isolation", *words)

    def _pip_wheel(self, source: Path, folder: Path) -> None:
        words = ("wheel", "--no-deps", "--no-build-isolation", "-w", folder, source)
        done = run_clean(sys.executable, "-m", "pip", "-q", *words)
        assert done.returncode == 0, done.stdout + done.stderr
