# SPDX-License-Identifier: Apache-2.0
"""Run Nova's own suites with us, without us, and with ``hpc:affinity=host``
in every flavor; print the results side by side; fail on a difference.

Without us only the suites run in which something fails with us, unless
``--all`` is given: Nova's releases pass their own tests. With ``--keep FOLDER`` each class
of tests runs by itself and leaves its results in the folder, so that a run which was cut off
goes on where it was.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import nova
from nova import version

SUITES = ("test_numa_servers", "test_pci_in_placement", "test_pci_sriov_servers")
EXPLAINED = pathlib.Path(__file__).with_name("explained.json")

Outcomes = dict[str, str]


def file_of(suite: str) -> pathlib.Path:
    """Where Nova has a suite."""
    folder = pathlib.Path(nova.__file__).parent / "tests" / "functional" / "libvirt"
    path = folder / f"{suite}.py"
    # test_server_group is about no hypervisor.
    return path if path.exists() else folder.parent / path.name


def of_libvirt(suite: str) -> bool:
    """Whether the tests of a suite run Nova's libvirt driver."""
    return file_of(suite).parent.name == "libvirt"


def _environ(**env: str) -> dict[str, str]:
    # Nova's fixtures swallow the output of tests only if told so.
    return {
        **os.environ,
        **{"OS_STDOUT_CAPTURE": "1", "OS_STDERR_CAPTURE": "1", "OS_LOG_CAPTURE": "1"},
        **{"OS_TEST_TIMEOUT": "300", "PYTHONPATH": str(pathlib.Path.cwd())},
        **env,
    }


def classes_of(suite: str) -> list[str]:
    """The classes of a suite that have tests, in their order.

    :raises RuntimeError: pytest finds none.
    """
    path = file_of(suite)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"),
            *("-p", "tests.functional.conftest", "-c", os.devnull, "--rootdir", str(path.parent)),
            str(path),
        ],
        env=_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^\S+\.py::(\w+)::\w+", done.stdout, re.M)
    if not found:
        raise RuntimeError(f"no tests in {path}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return list(dict.fromkeys(found))


def run_one(name: str, suite: str, part: str, out: pathlib.Path, **env: str) -> Outcomes:
    """Run one suite in a process of its own; test id -> passed/failed/skipped.

    :param part: the only class of it that is run; "": all.
    """
    path = file_of(suite)
    folder = path.parent
    label = f"{name}-{suite}-{part}" if part else f"{name}-{suite}"
    junit = out / f"{label}.xml"
    log = out / f"{label}.log"
    if junit.exists():
        found = read(junit)
        print(f"    {name:14} {part or suite:34} kept: {summary(found)}", flush=True)
        return found
    # The first lets pytest run Nova's test classes at all.
    plugins = ["tests.functional.conftest"]
    if env:
        plugins.append("tests.functional.nova_suites.switched_on")
    with log.open("wb") as stream:
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short"),
                *("-p", "no:cacheprovider", "-p", "no:warnings", "--show-capture=no"),
                *("-c", os.devnull, "--rootdir", str(folder), f"--junitxml={junit}"),
                *(word for plugin in plugins for word in ("-p", plugin)),
                f"{path}::{part}" if part else str(path),
            ],
            env=_environ(**env),
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    tail = log.read_text(errors="replace").strip().splitlines()[-1:]
    print(f"    {name:14} {part or suite:34} {' '.join(tail)}", flush=True)
    if not junit.exists():
        print(log.read_text(errors="replace")[-3000:])
        return {}
    return read(junit)


def read(junit: pathlib.Path) -> Outcomes:
    """The results in a file of pytest's; the most common reasons of failures are printed."""
    outcomes: Outcomes = {}
    reasons: collections.Counter[str] = collections.Counter()
    for case in ET.parse(junit).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "passed"
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = (
            "skipped" if "skipped" in tags else outcome
        )
        for child in case:
            if child.tag in {"failure", "error"}:
                reasons.update((child.text or "no text").strip().splitlines()[-1:])
    for reason, count in reasons.most_common(5):
        print(f"      {count} x {reason[:200]}", flush=True)
    return outcomes


def run(
    name: str, parts: Sequence[tuple[str, str]], out: pathlib.Path, jobs: int, **env: str
) -> Outcomes:
    """Run suites, or classes of them, up to *jobs* at once.

    Processes instead of pytest-xdist: Nova's functional tests patch the
    standard library with eventlet, which stalls the workers of xdist.
    """
    outcomes: Outcomes = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # The longest first, so that the others fill the time beside it.
        for result in pool.map(
            lambda each: run_one(name, *each, out, **env), sorted(parts, reverse=True)
        ):
            outcomes.update(result)
    return outcomes


def summary(outcomes: Outcomes) -> str:
    """Counts as pytest words them."""
    return ", ".join(f"{n} {k}" for k, n in sorted(collections.Counter(outcomes.values()).items()))


def calls(out: pathlib.Path) -> dict[str, int]:
    """How often each of ours was called, all worker processes together."""
    total: collections.Counter[str] = collections.Counter()
    for path in out.glob("calls-*.json"):
        total.update(json.loads(path.read_text()))
    return dict(total)


def differences(stock: Outcomes, ours: Outcomes) -> dict[str, str]:
    """Test id -> "stock outcome -> our outcome" where they are not the same."""
    return {
        test: f"{stock.get(test, 'absent')} -> {ours.get(test, 'absent')}"
        for test in sorted(stock.keys() | ours.keys())
        if stock.get(test) != ours.get(test)
    }


def explained(run: str) -> dict[str, str]:
    """Name of a test -> why it may fail in a run."""
    reasons = json.loads(EXPLAINED.read_text())[run]
    return {test: why for why, tests in reasons.items() for test in tests}


def short(test: str) -> str:
    """The name of a test alone."""
    return test.rsplit(".", 1)[-1]


def main() -> int:
    """Exit status 0 when the results are the same, or differ as explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="suites at once")
    parser.add_argument("--suites", nargs="+", default=list(SUITES))
    parser.add_argument("--all", action="store_true", help="run all without us, too")
    parser.add_argument(
        "--keep", type=pathlib.Path, help="a folder of results; what is there is not run again"
    )
    parser.add_argument("--no-affinity", action="store_true", help="leave the third run out")
    args = parser.parse_args()
    suites = tuple(args.suites)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        out = args.keep or pathlib.Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        parts = {each: classes_of(each) if args.keep else [""] for each in suites}

        def pairs(some: Sequence[str]) -> list[tuple[str, str]]:
            return [(suite, part) for suite in some for part in parts[suite]]

        report = out / "with.calls"
        ours = run("with", pairs(suites), out, args.jobs, NOVA_HPC_SUITES_REPORT=str(report))
        failed = [test for test, outcome in ours.items() if outcome == "failed"]
        doubtful = tuple(
            suite
            for suite in suites
            if args.all or not ours or any(f"{suite}." in test for test in failed)
        )
        without = run("without", pairs(doubtful), out, args.jobs) if doubtful else {}
        # What passes with us passes without us as well.
        stock = {**ours, **without}
        print(f"\nNova {version.version_string()}, its own tests")
        print(f"  with us:    {summary(ours)}")
        print(f"  without us: {summary(without) or 'not needed, as none fails'}")
        # Tests that fail on stock Nova compare nothing: the environment is wrong, or Nova's own
        # test is.
        known = explained("stock")
        for test, outcome in without.items():
            if outcome == "failed":
                why = known.get(short(test))
                print(f"  {'fails' if why else 'FAILS'} without us {test}: {why or 'UNEXPLAINED'}")
                wrong += why is None
        for test, change in differences(stock, ours).items():
            print(f"  DIFFERS {test}: {change}")
            wrong += 1
        expected = ["HpcTopologyFilter", "HpcPackingWeigher"]
        if any(map(of_libvirt, suites)):
            expected.append("HpcLibvirtDriver")
        counted = calls(report)
        for name, count in sorted(counted.items()):
            print(f"  called {name}: {count}")
        never = [
            name
            for name in expected
            if not any(key.startswith(name) and count for key, count in counted.items())
        ]
        for name in never:
            print(f"  NEVER CALLED {name}")
        wrong += len(never) + (not ours)
        if not args.no_affinity and "test_pci_in_placement" in suites:
            report = out / "host.calls"
            host = run(
                "affinity-host",
                pairs(["test_pci_in_placement"]),
                out,
                args.jobs,
                NOVA_HPC_SUITES_REPORT=str(report),
                NOVA_HPC_SUITES_AFFINITY="host",
            )
            known = explained("affinity-host")
            found = differences({k: v for k, v in stock.items() if k in host}, host)
            print(f"  with hpc:affinity=host in every flavor: {summary(host)}")
            for test, change in found.items():
                why = known.get(short(test))
                word = "differs" if why else "DIFFERS"
                print(f"  {word} {test}: {change}: {why or 'UNEXPLAINED'}")
                wrong += why is None
            for name, count in sorted(calls(report).items()):
                print(f"  called {name}: {count}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
