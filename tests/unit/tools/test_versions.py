# SPDX-License-Identifier: Apache-2.0
"""The releases that are supported are the same wherever they stand.

What is tested counts: the environments of tox.ini. All others have to agree with them.
"""

import configparser
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from nova_hpc.from_nova.nova_sources import READ

TOP = Path(__file__).resolve().parents[3]


def _ini(name):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(TOP / name)
    return parser


def _numbers(text):
    return re.findall(r"\d+(?:\.\d+)*", text)


def _tox_environments():
    names = []
    for part in re.split(r",\s*(?![^{]*\})", _ini("tox.ini")["tox"]["env_list"]):
        match = re.fullmatch(r"(.*)\{(.*)\}", part.strip())
        names += [match[1] + each for each in match[2].split(",")] if match else [part.strip()]
    return names


NOVA = {name.removeprefix("functional-") for name in _tox_environments() if "functional" in name}
PYTHON = {f"3.{name[3:]}" for name in _tox_environments() if re.fullmatch(r"py3\d\d", name)}


def _jobs():
    (project,) = [
        each for each in yaml.safe_load((TOP / ".zuul.yaml").read_text()) if "project" in each
    ]
    return project["project"]


def _readme_row():
    text = (TOP / "README.rst").read_text()
    table = text.partition("Supported versions\n=====")[2].partition("\n\n")[2]
    head, row = [
        re.split(r"\s{2,}", line.strip())
        for line in table.partition("\n\n")[0].split("\n")
        if line[0] != "="
    ]
    return dict(zip(head, row, strict=True))


def _matrix_row(name):
    text = (TOP / "docs/source/about/support-matrix.rst").read_text()
    return re.search(rf"^   \* - {name}\n     - (.*)$", text, re.M)[1]


def test_some_are_supported():
    assert {"32", "33", "34"} <= NOVA
    assert "3.11" in PYTHON


@pytest.mark.parametrize("queue", ["check", "gate"])
def test_each_job_runs_them(queue):
    jobs = [job if isinstance(job, str) else next(iter(job)) for job in _jobs()[queue]["jobs"]]
    nova = {job.rpartition("-")[2] for job in jobs if job.startswith("nova-hpc-functional-")}
    python = {
        f"3.{job[len('openstack-tox-py3') :]}"
        for job in jobs
        if job.startswith("openstack-tox-py3")
    }
    assert (nova, python) == (NOVA, PYTHON)


def test_each_release_of_nova_was_read_and_is_installed_by_tox():
    assert {str(release) for release in READ} == NOVA
    lines = _ini("tox.ini")["testenv:functional-{32,33,34}"]["deps"].split("\n")
    wanted = {
        match[1]: match[2] for line in lines if (match := re.match(r"(\d+): nova>=(\d+),", line))
    }
    assert wanted == {release: release for release in NOVA}


def test_a_release_is_tried_beside_each():
    text = (TOP / "tools/release.py").read_text()
    assert set(re.findall(r'"(\d+)"', re.search(r"^NOVA: Final = (.*)$", text, re.M)[1])) == NOVA


def test_packages_name_each_python():
    metadata = _ini("setup.cfg")["metadata"]
    lines = metadata["classifier"].split("\n")
    named = {line.rpartition(":: ")[2] for line in lines if re.search(r":: 3\.\d+$", line)}
    assert named == PYTHON
    lowest = min(PYTHON, key=lambda text: int(text.partition(".")[2]))
    assert metadata["python_requires"] == f">={lowest}"
    lab = tomllib.loads((TOP / "lab/pyproject.toml").read_text())["project"]
    assert lab["requires-python"] == f">={lowest}"
    assert [each for each in lab["dependencies"] if each.startswith("nova>")] == [
        f"nova>={max(NOVA)}.0.0,<{int(max(NOVA)) + 1}"
    ]


def test_the_readme_names_them():
    row = _readme_row()
    assert set(_numbers(row["Nova"])) == NOVA
    assert set(_numbers(row["Python"])) == PYTHON


def test_the_support_matrix_names_them():
    assert set(_numbers(_matrix_row("Nova"))) == NOVA
    assert set(_numbers(_matrix_row("Python"))) == PYTHON
    assert _numbers(_matrix_row("Hypervisor")) == _numbers(_readme_row()["libvirt"])


@pytest.mark.parametrize(
    "page", ["README.rst", "docs/source/index.rst", "docs/source/about/overview.rst"]
)
def test_sentences_name_them(page):
    text = " ".join((TOP / page).read_text().split())
    named = re.findall(r"Nova ((?:\d\d, )*\d\d and \d\d)", text)
    assert named
    assert [set(_numbers(each)) for each in named] == [NOVA] * len(named)
