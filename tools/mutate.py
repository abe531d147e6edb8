#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make one fault after another in a copy of the tree, and see which the tests notice.

The faults are rows of tools/faults.toml: a file, a text in it, its replacement, and
the tests that cover the module. If the tests of a row do not notice its fault, they
need another test. A row whose text is no longer in the tree fails the run, so the
table cannot rot. The tool needs only the standard library and pytest.

::

    python tools/mutate.py                   # all of them
    python tools/mutate.py --only topology   # names or files with this word
    python tools/mutate.py --all-tests       # survivors once more, against all unit tests
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[1]
TABLE: Final = TOP / "tools" / "faults.toml"
ALL_TESTS: Final = ("tests/unit",)
#: Start of the names of test files that import Nova.
_MEETS_NOVA: Final = "tests/functional/"
#: Seconds for the tests of a fault. It may make a loop endless; then it counts as noticed.
PATIENCE: Final = 300.0
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".tox", ".*_cache", ".hypothesis", "__pycache__", "build", "dist"
)
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)


class Verdict(enum.Enum):
    """The verdict of the tests on a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    #: No test could be run, so the row has an error.
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, top: Path) -> None:
        """Make the fault in the tree at *top*.

        :raises ValueError: the file does not contain the text exactly once.
        """
        path = top / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(
                f"{self.name}: {self.file} has its text {text.count(self.old)} times, not once"
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of one fault."""

    fault: Fault
    verdict: Verdict
    #: The first test that failed, or the last line of output.
    by: str
    seconds: float


def faults(table: Path = TABLE) -> list[Fault]:
    """The rows of the table, in its order.

    :raises ValueError: two rows have the same name, or a test file is missing.
    """
    rows = tomllib.loads(table.read_text(encoding="utf-8"))["fault"]
    found = [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    if len({one.name for one in found}) < len(found):
        raise ValueError("two faults have one name")
    for one in found:
        for name in one.tests:
            if not (TOP / name.partition("::")[0]).exists():
                raise ValueError(f"{one.name}: there is no {name}")
    return found


def check(rows: Iterable[Fault], top: Path = TOP) -> list[str]:
    """The errors of rows, without a run of tests: missing texts, and code that does not compile."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for number, fault in enumerate(rows):
            copy = Path(folder, str(number), fault.file)
            copy.parent.mkdir(parents=True)
            try:
                shutil.copyfile(top / fault.file, copy)
                fault.apply(Path(folder, str(number)))
                if copy.suffix == ".py":
                    compile(copy.read_bytes(), fault.file, "exec")
            except (OSError, ValueError, SyntaxError) as error:
                wrong.append(f"{fault.name}: {error}")
    return wrong


class Tree:
    """A copy of the tree, with one fault at a time."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "tree"
        shutil.copytree(TOP, self.top, symlinks=True, ignore=_LEFT_OUT)
        self._clock = int(time.time())
        self._env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.top / part) for part in ("", "lab", "extras")),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "PYTHONHASHSEED": "0",
        }

    def run(self, tests: Sequence[str], patience: float = PATIENCE) -> tuple[int, str]:
        """Exit status and output of pytest; status 1 if it did not end in time."""
        shutil.rmtree(self.top / ".hypothesis", ignore_errors=True)
        command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)
        try:
            done = subprocess.run(
                command,
                cwd=self.top,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=patience,
            )
        except subprocess.TimeoutExpired:
            return 1, f"FAILED after {patience:.0f} s without an end"
        return done.returncode, done.stdout

    def test(self, fault: Fault, tests: Sequence[str]) -> Result:
        """Make *fault*, run *tests*, and undo the fault."""
        path = self.top / fault.file
        before = path.read_bytes()
        start = time.monotonic()
        try:
            fault.apply(self.top)
            self._touch(path)
            status, output = self.run(tests)
        finally:
            path.write_bytes(before)
            self._touch(path)
        verdict = {0: Verdict.SURVIVED, 1: Verdict.KILLED}.get(status, Verdict.BROKEN)
        failed = _FAILED.search(output)
        last = output.strip().splitlines()[-1:] or [""]
        return Result(fault, verdict, failed[1] if failed else last[0], time.monotonic() - start)

    def _touch(self, path: Path) -> None:
        # Python uses its compiled file if the source has the same size and time in seconds.
        self._clock += 2
        os.utime(path, (self._clock, self._clock))


def run(rows: Sequence[Fault], all_tests: bool) -> Iterator[Result]:
    """Test every fault.

    :param all_tests: give survivors a second chance with all unit tests.
    :raises ValueError: the tests fail without any fault.
    """
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Tree(Path(folder))
        tests = sorted({name for one in rows for name in one.tests})
        # First all tests without a fault. Tests that import Nova run in a process of their own:
        # Nova changes threads and locks for every test of the same process.
        meets_nova = [name for name in tests if name.startswith(_MEETS_NOVA)]
        for some in (meets_nova, [name for name in tests if name not in meets_nova]):
            status, output = tree.run(some, PATIENCE * len(some)) if some else (0, "")
            if status:
                raise ValueError(f"the tests fail without any fault:\n{output[-2000:]}")
        for fault in rows:
            result = tree.test(fault, fault.tests)
            if result.verdict is Verdict.SURVIVED and all_tests:
                result = tree.test(fault, ALL_TESTS)
            yield result


def _line(result: Result) -> str:
    return (
        f"{result.verdict.value:9} {result.seconds:6.1f} s  {result.fault.file}: "
        f"{result.fault.name}"
        + (f"  [{result.by}]" if result.verdict is not Verdict.SURVIVED else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a fault survived, 2 if the table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="WORD", action="append", help="in a name or a file")
    parser.add_argument("--all-tests", action="store_true", help="for survivors: all unit tests")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--list", action="store_true", help="show the faults and run nothing")
    args = parser.parse_args(arguments)
    try:
        rows = [
            one
            for one in faults()
            if not args.only or any(word in one.name or word in one.file for word in args.only)
        ]
        wrong = check(rows)
        if wrong or not rows:
            raise ValueError("\n".join(wrong) or "no fault has such a name or file")
        if args.list:
            print("\n".join(f"{one.file}: {one.name}" for one in rows))
            return 0
        results = []
        for result in run(rows, args.all_tests):
            results.append(result)
            print(
                _line(result), flush=True, file=sys.stdout if args.format == "table" else sys.stderr
            )
    except ValueError as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    if args.format == "json":
        rows_out = [
            {
                "name": one.fault.name,
                "file": one.fault.file,
                "verdict": one.verdict.value,
                "by": one.by,
                "seconds": round(one.seconds, 1),
            }
            for one in results
        ]
        print(json.dumps(rows_out, indent=1))
    counts = {each: sum(one.verdict is each for one in results) for each in Verdict}
    print(
        f"{len(results)} faults: " + ", ".join(f"{n} {each.value}" for each, n in counts.items()),
        file=sys.stderr,
    )
    return 0 if counts[Verdict.KILLED] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
