# SPDX-License-Identifier: Apache-2.0
"""The jobs of .zuul.yaml, by Zuul's rules of inheritance and what devstack's jobs ask of a child.

With DEVSTACK_TREE they are read beside the jobs and roles of that checkout of devstack, too.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
import pathlib
import re
from typing import Any

import pytest
import yaml

TOP = pathlib.Path(__file__).resolve().parents[3]
ITEMS = yaml.safe_load((TOP / ".zuul.yaml").read_text())
JOBS: dict[str, dict[str, Any]] = {
    each["job"]["name"]: each["job"] for each in ITEMS if "job" in each
}
(PROJECT,) = (each["project"] for each in ITEMS if "project" in each)
PAGE = (TOP / "docs/source/install/devstack.rst").read_text()
DEVSTACK = os.environ.get("DEVSTACK_TREE")


def _list_jobs(pipeline: str) -> dict[str, dict[str, Any]]:
    """Name -> what the pipeline changes of the job."""
    return {
        name: variant
        for each in PROJECT[pipeline]["jobs"]
        for name, variant in ({each: {}} if isinstance(each, str) else each).items()
    }


def _list_ancestors(name: str) -> list[str]:
    """The job, its parent, and so on until a job of another project, which is the last."""
    names = [name]
    while names[-1] in JOBS and "parent" in JOBS[names[-1]]:
        names.append(JOBS[names[-1]]["parent"])
    return names


def _merge(parent: Any, child: Any) -> Any:
    """Zuul's rule for variables: mappings are merged, all else of the child replaces."""
    if isinstance(parent, dict) and isinstance(child, dict):
        return parent | {key: _merge(parent.get(key), value) for key, value in child.items()}
    return child


def _merge_vars(name: str, jobs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    job = jobs.get(name, {})
    merged = _merge_vars(job["parent"], jobs) if "parent" in job else {}
    return _merge(merged, job.get("vars", {}))


def _inherit(name: str, attribute: str) -> Any:
    for each in _list_ancestors(name):
        if attribute in JOBS.get(each, {}):
            return JOBS[each][attribute]
    return None


ON_DEVSTACK = [name for name in JOBS if _list_ancestors(name)[-1] == "devstack-tempest"]


def test_the_jobs_name_what_is_there() -> None:
    playbook = JOBS["nova-hpc-lab"]["run"]
    (play,) = yaml.safe_load((TOP / playbook).read_text())
    (task,) = play["tasks"]
    words = task["ansible.builtin.command"]["cmd"].split()
    assert words[0] == "bash"
    assert (TOP / words[1]).is_file()
    check, weekly = _list_jobs("check"), _list_jobs("periodic-weekly")
    assert check == _list_jobs("gate")
    # Defined by OpenStack for all projects: each runs the environment of tox of its name.
    shared = check.keys() - JOBS.keys()
    abstract = {name for name, job in JOBS.items() if job.get("abstract")}
    assert check.keys() - shared == JOBS.keys() - weekly.keys() - abstract
    assert shared == {"openstack-tox-py311", "openstack-tox-py312", "openstack-tox-py313"}
    tox = (TOP / "tox.ini").read_text()
    for job in JOBS.values():
        env = job.get("vars", {}).get("tox_envlist", "all")
        release = env.rpartition("-")[2]
        assert env == "all" or f"[testenv:{env}]" in tox or f"{release}: nova>={release}" in tox


def test_a_change_of_any_project_enables_this_plug_in() -> None:
    """A change of Nova, by a third-party CI or Depends-On, has another ``zuul.project``."""
    job = JOBS["nova-hpc-devstack"]
    address = job["vars"]["devstack_plugins"]["nova-hpc"]
    assert "{{" not in address
    # Zuul's name of a project is that address without its scheme.
    assert address.partition("://")[2] in job["required-projects"]
    # Without hardware every phase is tried, and the job is red if no host has devices.
    local = job["vars"]["devstack_localrc"]
    assert local["NOVA_HPC_TEST_FAMILY"]
    assert local["NOVA_HPC_DESCRIBED_HOST"]
    inherited = JOBS["nova-hpc-devstack-gpu"]
    assert inherited["parent"] == "nova-hpc-devstack"
    merged = _merge_vars("nova-hpc-devstack-gpu", JOBS)["devstack_localrc"]
    assert merged["NOVA_HPC_TEST_FAMILY"]
    assert merged["NOVA_HPC_DESCRIBED_HOST"] == merged["NOVA_HPC_TEST_ARGS"] == ""


def test_devstack_copies_this_project_to_where_it_looks() -> None:
    """It copies the folders of some organisations alone, and clones nothing in a job."""
    job = JOBS["nova-hpc-devstack"]
    folders = job["vars"]["devstack_source_dirs"]
    address = job["vars"]["devstack_plugins"]["nova-hpc"].partition("://")[2]
    assert f"src/{address.rpartition('/')[0]}" in folders
    # The projects of the job and of its parents.
    assert "src/opendev.org/openstack" in folders
    if DEVSTACK:
        role = pathlib.Path(DEVSTACK, "roles/setup-devstack-source-dirs/defaults/main.yaml")
        assert set(yaml.safe_load(role.read_text())["devstack_source_dirs"]) <= set(folders)


def test_the_branch_of_this_project_is_checked_out_and_finds_devstacks_jobs() -> None:
    """The branch has no other project's name.

    Zuul takes master for the default, and the jobs of a project with many branches are for its
    own branches: of devstack's none is for this one.
    """
    assert PROJECT["default-branch"] == "main"
    assert "enable_plugin nova-hpc /opt/src/nova-hpc main" in PAGE
    for pipeline in ("check", "gate", "periodic-weekly"):
        for name, variant in _list_jobs(pipeline).items():
            wanted = "master" if name in ON_DEVSTACK else None
            assert variant.get("override-checkout") == wanted, name
    # A job to inherit from is for the branch of the change.
    assert not any("override-checkout" in job for job in JOBS.values())


def test_a_node_has_the_python_of_its_environment_of_tox() -> None:
    """openstack-tox takes Ubuntu, whose Python is another one."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(TOP / "tox.ini")
    assert tox["testenv"]["base_python"] == "python3.11"
    for name in JOBS:
        if _list_ancestors(name)[-1].startswith("openstack-tox"):
            assert _inherit(name, "nodeset") == "debian-bookworm", name


def _is_run(irrelevant: list[str], *files: str) -> bool:
    return not all(any(re.match(each, file) for each in irrelevant) for file in files)


@pytest.mark.parametrize("name", [*ON_DEVSTACK, "nova-hpc-functional-34"])
def test_a_change_of_pages_alone_runs_no_code(name: str) -> None:
    """A list of a child replaces that of devstack's jobs, and the change may be Nova's."""
    irrelevant = _inherit(name, "irrelevant-files")
    for file in (
        "docs/source/index.rst",
        "docs/source/picture.svg",
        "doc/source/conf.py",
        "api-ref/source/servers.inc",
        "README.rst",
        "releasenotes/notes/some-0123456789abcdef.yaml",
        "nova/locale/de/LC_MESSAGES/nova.po",
    ):
        assert not _is_run(irrelevant, file), file
    assert _is_run(irrelevant, "README.rst", "nova/virt/libvirt/driver.py")
    assert _is_run(irrelevant, "devstack/plugin.sh")


def test_a_change_of_pages_alone_runs_the_tests_that_read_them() -> None:
    """OpenStack's jobs of unit tests leave such a change out."""
    irrelevant = _list_jobs("check")["openstack-tox-py311"]["irrelevant-files"]
    for file in ("docs/source/install/devstack.rst", "README.rst", "releasenotes/notes/a.yaml"):
        assert _is_run(irrelevant, file)


# -- the nodes -----------------------------------------------------------------------------


def _page_nodesets() -> list[dict[str, Any]]:
    """Those in the page's examples."""
    blocks = re.findall(r"\.\. code-block:: yaml\n\n((?:   .*\n|\n)+)", PAGE)
    return [
        each["nodeset"] if "nodeset" in each else each["job"]["nodeset"]
        for block in blocks
        for each in yaml.safe_load(block)
        if "nodeset" in each or isinstance(each.get("job", {}).get("nodeset"), dict)
    ]


NODESETS = [each["nodeset"] for each in ITEMS if "nodeset" in each] + _page_nodesets()


@pytest.mark.parametrize("nodeset", NODESETS, ids=lambda each: each.get("name", "of the page"))
def test_tempest_runs_on_the_node(nodeset: dict[str, Any]) -> None:
    """Without this name and this group the plays of devstack's jobs have no host: all is green."""
    assert [node["name"] for node in nodeset["nodes"]] == ["controller"]
    assert nodeset["groups"] == [{"name": "tempest", "nodes": ["controller"]}]
    if DEVSTACK:
        text = pathlib.Path(DEVSTACK, ".zuul.yaml").read_text()
        theirs = {
            each["nodeset"]["name"]: each["nodeset"]
            for each in yaml.safe_load(text)
            if "nodeset" in each
        }
        assert theirs["openstack-single-node-noble"]["groups"] == nodeset["groups"]


def test_the_page_and_the_jobs_have_such_a_nodeset() -> None:
    assert _page_nodesets()
    assert _inherit("nova-hpc-devstack-plain", "nodeset") == "nova-hpc-nested-virt"
    assert "nova-hpc-nested-virt" in {each.get("name") for each in NODESETS}


# -- local.conf ----------------------------------------------------------------------------


def _write_local_conf(name: str, folder: pathlib.Path) -> list[str]:
    """The lines that devstack's own role makes of the job's variables."""
    tree = pathlib.Path(str(DEVSTACK))
    items = yaml.safe_load((tree / ".zuul.yaml").read_text())
    jobs = {each["job"]["name"]: each["job"] for each in items if "job" in each}
    # Tempest's own job is in another repository.
    jobs["devstack-tempest"] = {
        "parent": "devstack",
        "vars": {"devstack_services": {"tempest": True}},
    }
    merged = _merge_vars(name, jobs | JOBS)
    path = tree / "roles/write-devstack-local-conf/library/devstack_local_conf.py"
    spec = importlib.util.spec_from_file_location("devstack_local_conf", path)
    assert spec is not None
    assert spec.loader is not None
    role = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(role)
    projects = {"opendev.org/openstack/nova": {"required": True, "short_name": "nova"}}
    conf = role.LocalConf(
        merged["devstack_localrc"],
        merged["devstack_local_conf"],
        None,
        dict(merged["devstack_services"]),
        merged["devstack_plugins"],
        str(folder),
        projects,
        {"short_name": "nova"},
        None,
    )
    assert conf.warnings == []
    conf.write(folder / "local.conf")
    return (folder / "local.conf").read_text().partition("[[post-config")[0].splitlines()


@pytest.mark.parametrize("name", ON_DEVSTACK)
def test_devstack_writes_a_local_conf_of_the_variables(name: str, tmp_path: pathlib.Path) -> None:
    merged = _merge_vars(name, JOBS)
    # What a child leaves as it is stays.
    assert merged["tox_envlist"] == "all"
    assert re.compile(merged["tempest_test_regex"])
    assert merged["devstack_plugins"].keys() == {"nova-hpc"}
    if DEVSTACK:
        lines = _write_local_conf(name, tmp_path)
        for variable, value in merged["devstack_localrc"].items():
            assert f'{variable}="{value}"' in lines
        assert 'ERROR_ON_CLONE="True"' in lines
        # Its variables come before the plug-in is enabled.
        assert [line for line in lines if line][-1].startswith("enable_plugin nova-hpc https://")


def test_the_weekly_job_runs_the_contract_tests_beside_novas_master() -> None:
    job = JOBS["nova-hpc-nova-master"]
    assert "openstack/nova" in job["required-projects"]
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(TOP / "tox.ini")
    env = tox[f"testenv:{job['vars']['tox_envlist']}"]
    assert "NOVA_HPC_NEXT_NOVA" in env["set_env"]
    tests = env["commands"].partition("posargs:")[2].rstrip("}").split()
    assert "tests/functional/test_scheduler_contract.py" in tests
    assert all((TOP / each).exists() for each in tests)
