# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc install-shim``: make ``compute_driver = hpc...`` loadable.

Nova imports drivers only from ``nova.virt``, which is Nova's own package. A
distribution with a file in that package would hide an editable Nova. This command
places the one file into the Nova that nova-compute really imports.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import atomic_files
from nova_hpc_tools.base import CommandAnswer, RecordCommand

NAME: Final = "hpc.py"

#: The beginning of every version of the file; a file without it is never touched.
_OURS: Final = re.compile(r'(#.*\n)*"""nova-hpc:')

#: Exit status of --check if the file has to be installed.
_MISSING: Final = 1

#: It finds the packages without importing them, so it also finds a broken Nova.
_PROBE: Final = """
import importlib.metadata, importlib.util, json
def where(name):
    spec = importlib.util.find_spec(name)
    return list(spec.submodule_search_locations or []) if spec else []
found = {name: where(name) for name in ("nova", "nova_hpc", "virt_driver_patches")}
try:
    found["version"] = [importlib.metadata.version("nova")]
except importlib.metadata.PackageNotFoundError:
    found["version"] = []
print(json.dumps(found))
"""


class ShimError(RuntimeError):
    """A fault of the shim, the file beside Nova that loads the driver. The text has the cure."""


@attrs.frozen
class ShimPlace:
    """The path of the shim in the Nova of one Python interpreter."""

    python: str
    target: Path
    #: That interpreter finds this project, which the file imports.
    complete: bool
    #: The version of its Nova; None if the package has no metadata.
    version: str | None = None

    @property
    def nova(self) -> Path:
        """The directory of the package ``nova`` of that interpreter."""
        return self.target.parent.parent


def find_nova_interpreter() -> str:
    """Find the Python of the ``nova-compute`` on PATH; without one, of this process."""
    script = shutil.which("nova-compute")
    if script is None:
        return sys.executable
    with Path(script).open("rb") as stream:
        first = stream.readline(512).decode(errors="replace").strip()
    words = first[2:].split() if first.startswith("#!") else []
    if not words:
        return sys.executable
    if Path(words[0]).name == "env" and len(words) > 1:
        return shutil.which(words[-1]) or sys.executable
    return words[0]


def locate_shim(python: str) -> ShimPlace:
    """Find the Nova of the interpreter *python*, and the shim's path in it.

    :raises ShimError: it cannot be run, or has no Nova, or a folder hides its Nova.
    """
    try:
        # The working directory is on the path; it could hide the packages of nova-compute.
        done = subprocess.run(
            [python, "-c", _PROBE], cwd="/", capture_output=True, text=True, timeout=60, check=True
        )
        packages: dict[str, list[str]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ShimError(f"{python} does not run; name another with --python ({error})") from error
    homes = [Path(folder) / "virt" for folder in packages["nova"]]
    home = next((folder for folder in homes if (folder / "__init__.py").is_file()), None)
    hiding = [folder.parent for folder in homes if not (folder.parent / "__init__.py").is_file()]
    if hiding:
        # pip's hook of an editable installation is not a folder.
        where = next((str(folder) for folder in hiding if folder.is_dir()), None)
        raise ShimError(
            f"{where} has no __init__.py and hides Nova: remove the folder, or the package that "
            "put it there (nova-hpc did up to 0.1.0)"
            if where
            else f"an editable installation of an earlier nova-hpc hides the Nova of {python}: "
            "install this one in its place"
        )
    if home is None:
        raise ShimError(
            f"{python} finds no Nova; name the interpreter of nova-compute with --python"
        )
    complete = bool(packages["nova_hpc"] and packages["virt_driver_patches"])
    return ShimPlace(python, home / NAME, complete, next(iter(packages["version"]), None))


def read_shim_content() -> str:
    """Read the text of the shim in this release.

    :raises ShimError: the installation is incomplete.
    """
    spec = importlib.util.find_spec("virt_driver_patches")
    for home in (spec.submodule_search_locations or ()) if spec else ():
        source = Path(home) / "shim" / NAME
        if source.is_file():
            return source.read_text()
    raise ShimError("the package virt_driver_patches lacks its shim; install nova-hpc again")


def shim_state_of(target: Path, text: str) -> str:
    """Compare the shim *target* with *text*: installed, missing, outdated or foreign."""
    try:
        there = target.read_text()
    except FileNotFoundError:
        return "missing"
    except (OSError, UnicodeDecodeError):
        return "foreign"
    if there == text:
        return "installed"
    return "outdated" if _OURS.match(there) else "foreign"


def write_shim(target: Path, text: str) -> None:
    """Write the shim whole or not at all.

    :raises ShimError: it cannot be written.
    """
    try:
        atomic_files.write_file(target, text.encode(), 0o644)
    except OSError as error:
        raise ShimError(f"cannot write {target}: {error.strerror}") from error


class InstallShim(RecordCommand):
    """Place the one file beside Nova that makes the driver loadable.

    With the file in place, ``[DEFAULT]compute_driver = hpc.HpcLibvirtDriver``
    works on this node.
    """

    errors = (ShimError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--check",
            action="store_true",
            help="change nothing; exit status 0 if the file is in place, 1 if not",
        )
        what.add_argument("--remove", action="store_true", help="remove the file again")
        parser.add_argument(
            "--python",
            metavar="PATH",
            help="interpreter that runs nova-compute (default: that of the nova-compute on PATH, "
            "otherwise the one that runs this command)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Check, remove or install the shim in Nova's virt drivers, as the arguments request."""
        place = locate_shim(parsed_args.python or find_nova_interpreter())
        text = read_shim_content()
        current_state = shim_state_of(place.target, text)
        if parsed_args.check:
            return self._answer(
                place, current_state, 0 if current_state == "installed" else _MISSING
            )
        if current_state == "foreign":
            raise ShimError(
                f"{place.target} is not a file of nova-hpc and is left as it is; "
                "move it away if Nova does not need it"
            )
        if parsed_args.remove:
            place.target.unlink(missing_ok=True)
            return self._answer(place, "was not there" if current_state == "missing" else "removed")
        if not place.complete:
            raise ShimError(
                f"{place.python} does not find nova-hpc, which the file imports; run "
                f"{place.python} -m pip install nova_hpc-*.whl nova_hpc_common-*.whl"
            )
        if current_state != "installed":
            write_shim(place.target, text)
        return self._answer(
            place, "already in place" if current_state == "installed" else "installed"
        )

    def _answer(self, place: ShimPlace, outcome: str, status: int = 0) -> CommandAnswer:
        self.say(f"{place.target}: {outcome}")
        return CommandAnswer(("File", "State"), (str(place.target), outcome), status)
