#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build a release, check that it is complete, and test it beside Nova.

    python tools/release.py build 0.2.0    all wheels and source archives, in dist/
    python tools/release.py alone          install each wheel alone, and start it
    python tools/release.py try 34 33 32   install them in new environments beside Nova

``build`` needs git, the packages ``build`` and ``twine``, and those of the documentation; the
others need pip and a package index. ``tox run -e release`` does both. The version is pbr's
``PBR_VERSION``: no tag is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

TOP: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))
from tools.wheels import Wheel, list_required_wheels, read_wheels  # noqa: E402

#: Files that pbr omits from a source archive.
LEFT_OUT: Final = {".gitignore"}
#: Files in the folder of a package that its wheel does not contain.
NOT_PACKED: Final = ("hatch_build.py", "pyproject.toml", "README.rst")
#: Wheel -> the command that ``alone`` starts.
ALONE: Final[Mapping[str, tuple[str, ...]]] = {
    "nova-hpc-guest": ("nova-hpc-guest", "--help"),
    "nova-hpc-client": ("openstack", "hpc", "cluster", "list", "--help"),
    "nova-hpc-tools": ("nova-hpc", "doctor", "--help"),
    "nova-hpc-simulate": ("nova-hpc", "simulate", "--help"),
    "nova-hpc-requirements": ("nova-hpc", "requirements", "--help"),
}
#: The releases of Nova that a release is tested with.
NOVA: Final = ("34", "33", "32")
#: The release of Nova that the lab runs.
OF_LAB: Final = "34"


class ReleaseError(Exception):
    """The release is incomplete or does not work; the text contains the reason."""


def list_expected_files(wheel: Wheel, tracked: Sequence[str], version: str) -> dict[str, str]:
    """The files of the tree, and the man pages, that a wheel must contain.

    :param tracked: the files of the repository.
    :returns: name in the wheel -> name in the tree.
    """
    expected = {
        f"{package}/{path.removeprefix(folder + '/')}": path
        for package, folder in wheel.packages.items()
        for path in tracked
        if path.startswith(f"{folder}/")
        and path not in [f"{wheel.folder}/{name}" for name in NOT_PACKED]
    }
    data = f"{wheel.file_stem}-{version}.data/data"
    if wheel.folder == ".":
        expected |= {
            f"{data}/etc/nova-hpc/{path.removeprefix('etc/')}": path
            for path in tracked
            if path.startswith("etc/")
        }
    return expected | {
        f"{data}/{target}": f"{wheel.folder}/{source}" for source, target in wheel.shared.items()
    }


def compare_wheel(
    contents: Mapping[str, bytes], expected: Mapping[str, str], tree: Path
) -> list[str]:
    """The files that a wheel lacks, or has with another content than the tree."""
    faults = []
    for name, source in sorted(expected.items()):
        if name not in contents:
            faults.append(f"{name} is missing")
        elif contents[name] != (tree / source).read_bytes():
            faults.append(f"{name} is another file than {source}")
    return faults


def compare_wheels(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """The files that differ between two wheels of one release."""
    # These files depend on the packing: the list of files with their sums, and the commit.
    packed = ("/RECORD", "/pbr.json")
    names = sorted(name for name in {*one, *other} if not name.endswith(packed))
    return [name for name in names if one.get(name) != other.get(name)]


def read_wheel(path: Path) -> dict[str, bytes]:
    """Name -> content of the files of a wheel."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def list_source_files(path: Path) -> set[str]:
    """The files of a source archive, without the name of its folder."""
    with tarfile.open(path) as archive:
        names = [PurePosixPath(member.name) for member in archive if not member.isdir()]
    return {str(PurePosixPath(*name.parts[1:])) for name in names}


def _run(
    words: Sequence[object],
    environ: Mapping[str, str] = {},
    cwd: Path = TOP,
    codes: Sequence[int] = (0,),
) -> str:
    """The output of a program, whose exit status must be one of *codes*."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in codes:
        raise ReleaseError(
            f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}"
        )
    return done.stdout


def write_man_pages(wheels: Iterable[Wheel], version: str, tree: Path) -> None:
    """Write the man pages into the folders of their wheels in a tree."""
    with tempfile.TemporaryDirectory() as pages:
        sphinx = (sys.executable, "-m", "sphinx", "-q", "-W", "-b", "man", "-D")
        _run((*sphinx, f"version={version}", "docs/source", pages), cwd=tree)
        for page in (tree / wheel.folder / source for wheel in wheels for source in wheel.shared):
            page.parent.mkdir(exist_ok=True)
            shutil.copyfile(Path(pages, page.name), page)


def build_release(version: str, out: Path) -> list[Path]:
    """Build the files of a release, and compare them with the tree and each other."""
    wheels = read_wheels(TOP)
    for wheel in wheels.values():
        if wheel.version not in (None, version):
            raise ReleaseError(
                f"{wheel.folder}/pyproject.toml has the version {wheel.version}, not {version}"
            )
    if _run(("git", "status", "--porcelain", "--untracked-files=no")):
        raise ReleaseError("the tree has changes: commit them, so that the release is a commit")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    environ = {"PBR_VERSION": version}
    tracked = _run(("git", "ls-files")).splitlines()
    built = []
    with tempfile.TemporaryDirectory() as scratch:
        # A build writes files into the tree, which must not get into the next build.
        clone = Path(scratch, "clone")
        _run(("git", "clone", "-q", "--no-local", TOP, clone))
        write_man_pages(wheels.values(), version, clone)
        for wheel in wheels.values():
            build = (sys.executable, "-m", "build")
            folder = clone / wheel.folder
            _run((*build, "-o", out, folder), environ)  # the wheel of the source archive
            packed, source = (
                out / f"{wheel.file_stem}-{version}-py3-none-any.whl",
                out / f"{wheel.file_stem}-{version}.tar.gz",
            )
            _run((*build, "--wheel", "-o", scratch, folder), environ)  # that of the tree
            contents = read_wheel(packed)
            faults = compare_wheel(contents, list_expected_files(wheel, tracked, version), clone)
            faults += [
                f"{path}: the source archive makes another one than the tree"
                for path in compare_wheels(contents, read_wheel(Path(scratch, packed.name)))
            ]
            if wheel.folder == ".":
                lost = sorted({*tracked} - list_source_files(source) - LEFT_OUT)
                faults += [f"{path} is missing in the source archive" for path in lost]
            if faults:
                raise ReleaseError("\n".join(f"{packed.name}: {fault}" for fault in faults))
            built += [packed, source]
    _run((sys.executable, "-m", "twine", "check", "--strict", *built))
    return built


def describe_file(path: Path) -> str:
    """A line with the name, the size and the sum of a file."""
    content = path.read_bytes()
    return f"{hashlib.sha256(content).hexdigest()}  {len(content):9,}  {path.name}"


def try_alone(name: str, dist: Path, scratch: Path) -> str:
    """Install a wheel with the wheels that it requires and without Nova, and start its command."""
    wheels = read_wheels(TOP)
    words, home = ALONE[name], scratch / name
    _run((sys.executable, "-m", "venv", home))
    stems = [wheels[other].file_stem for other in (name, *list_required_wheels(name, wheels))]
    files = [path for stem in stems for path in dist.glob(f"{stem}-*.whl")]
    python = home / "bin" / "python"
    _run((python, "-m", "pip", "install", "-q", "-c", TOP / "constraints.txt", *files), cwd=scratch)
    look = (python, "-c", "import importlib.util as i; print(i.find_spec('nova'))")
    if _run(look, cwd=scratch) != "None\n":
        raise ReleaseError(f"{name}: it brought Nova")
    first = _run((home / "bin" / words[0], *words[1:]), cwd=scratch).splitlines()[0]
    listed = _run((python, "-m", "pip", "list", "--format", "json"), cwd=scratch)
    installed = len(json.loads(listed))
    return f"{name}: {installed} distributions, no Nova; {' '.join(words)}: {first}"


def try_guest_file(dist: Path, scratch: Path) -> str:
    """Build the guest's command as one file from its wheel, and start that without packages."""
    python = scratch / "nova-hpc-guest" / "bin" / "python"
    file = scratch / "one-file"
    _run((python, "-m", "nova_hpc_guest.build", file), cwd=scratch)
    words = (sys.executable, "-I", "-S", file, "--help")
    return f"one file, {file.stat().st_size:,} bytes, python -I -S: {_run(words).splitlines()[0]}"


def try_release(nova: str, dist: Path, scratch: Path) -> list[str]:
    """Install the wheel and then the source archive beside a release of Nova, and use each."""
    (wheel,) = dist.glob("nova_hpc-*.whl")
    (source,) = dist.glob("nova_hpc-*.tar.gz")
    home = scratch / f"nova-{nova}"
    _run((sys.executable, "-m", "venv", home))
    python = home / "bin" / "python"
    pip = (python, "-m", "pip", "install", "-q", "-c", TOP / "constraints.txt")
    (common,) = dist.glob("nova_hpc_common-*.whl")
    beside = f"nova>={nova},<{int(nova) + 1}"
    # A controller has the services' wheels, without any command.
    _run((*pip, beside, wheel, common), cwd=scratch)
    services = _use_plug_ins(python, scratch)
    lines = [
        f"Nova {services['nova']} with nova-hpc and nova-hpc-common alone: "
        f"{', '.join(services['filters'])}"
    ]
    (tools,) = dist.glob("nova_hpc_tools-*.whl")
    rest = [
        path
        for path in dist.glob("nova_hpc*.whl")
        if path not in (wheel, common, tools) and ("_lab-" not in path.name or nova == OF_LAB)
    ]
    _run((*pip, beside, wheel, common, f"{tools}[client,metrics]", *rest), cwd=scratch)
    used = _use_release(python, scratch)
    used[0] += f" (wheel, {wheel.name})"
    _run((*pip, "--no-deps", "--force-reinstall", source), cwd=scratch)
    again = _use_release(python, scratch)
    again[0] += f" (source archive, {source.name})"
    if again[1:] != used[1:]:
        raise ReleaseError("\n".join(["wheel and source archive differ:", *used, *again]))
    return [*lines, *used, again[0]]


def _use_plug_ins(python: Path, scratch: Path) -> dict[str, Any]:
    text = _run((python, TOP / "tools/release_uses.py"), cwd=scratch)
    used: dict[str, Any] = json.loads(text.splitlines()[-1])
    if used["faults"]:
        raise ReleaseError("\n".join(used["faults"]))
    return used


def _use_release(python: Path, scratch: Path) -> list[str]:
    command = python.parent / "nova-hpc"
    version = _run((command, "--version"), cwd=scratch).strip()
    _run((command, "install-shim", "--python", python), cwd=scratch)
    used = _use_plug_ins(python, scratch)
    # This environment has no configuration, so the check may end with 2, a failure that it names.
    answer = _run(
        (command, "status", "upgrade", "check", "-f", "json"), cwd=scratch, codes=(0, 1, 2)
    )
    results = {row["Check"]: row["Result"] for row in json.loads(answer[answer.index("[") :])}
    checks = ", ".join(f"{name} {result}" for name, result in results.items())
    return [
        f"Nova {used['nova']}: {version}",
        f"  entry points: {used['loaded']} loaded, {used['left_out']} of missing programs",
        f"  scheduler: {', '.join(used['filters'])}",
        f"  driver: {used['driver']}; data files: {used['data']}",
        f"  status upgrade check: {checks}",
    ]


def main() -> int:
    """Return 1 if the release is incomplete or does not work, else 0."""
    parser = argparse.ArgumentParser(description="Build a release and try it.")
    commands = parser.add_subparsers(dest="what", required=True)
    build = commands.add_parser("build", help="build wheels and source archives, and check them")
    build.add_argument("version")
    install = commands.add_parser("try", help="install them beside Nova and use them")
    install.add_argument("nova", nargs="*", default=NOVA, help="releases of Nova: 34, 33, 32")
    alone = commands.add_parser("alone", help="install each wheel without Nova and start it")
    for one in (build, install, alone):
        one.add_argument("--dist", type=Path, default=TOP / "dist", help="their folder")
    args = parser.parse_args()
    dist = args.dist.resolve()
    try:
        if args.what == "build":
            for path in build_release(args.version, dist):
                print(describe_file(path))
        elif args.what == "alone":
            with tempfile.TemporaryDirectory() as scratch:
                for name in ALONE:
                    print(try_alone(name, dist, Path(scratch)), flush=True)
                print(try_guest_file(dist, Path(scratch)))
        else:
            with tempfile.TemporaryDirectory() as scratch:
                for nova in args.nova:
                    print("\n".join(try_release(nova, dist, Path(scratch))), flush=True)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
