# SPDX-License-Identifier: Apache-2.0
"""The devstack plug-in, run against devstack's own functions.

Only what would install packages is replaced; the settings come from the real
``nova-hpc configure`` over a real capture.
"""

from __future__ import annotations

import configparser
import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from oslo_config import cfg

TOP = pathlib.Path(__file__).resolve().parents[3]

SCRIPT = """
set -e
TOP_DIR=$DEVSTACK
DEST=$SCRATCH
STACK_USER=$(id -un)
source $DEVSTACK/functions
# There is no devstack host here: no packages are installed, no services run.
function sudo { "$@"; }
function is_service_enabled { return 0; }
function echo_summary { echo "SUMMARY $*"; }
function setup_develop { echo "SETUP $1"; }
NOVA_CONF=$SCRATCH/nova.conf
PLACEMENT_CONF=$SCRATCH/placement.conf
NOVA_HPC_DIR=$PLUGIN_TOP
NOVA_HPC_CONF_DIR=$SCRATCH/hpc
# Nova's own line, from devstack's lib/nova.
eval "$(grep '^NOVA_FILTERS=' $DEVSTACK/lib/nova)"
source $PLUGIN_TOP/devstack/settings
source $PLUGIN_TOP/devstack/plugin.sh stack post-config
"""

NOVA_CONF = """[DEFAULT]
compute_driver = libvirt.LibvirtDriver
my_ip = 127.0.0.1

[filter_scheduler]
enabled_filters = ComputeFilter
track_instance_changes = False
"""


def _run(
    script: str,
    captures: pathlib.Path,
    scratch: pathlib.Path,
    arguments: str,
    declaration: str = "",
) -> str:
    (scratch / "bin").mkdir(exist_ok=True)
    command = scratch / "bin" / "nova-hpc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nova_hpc_tools.main "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            "PATH": f"{scratch / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(TOP),
            "HOME": str(scratch),
            "DEVSTACK": str(captures / "devstack"),
            "PLUGIN_TOP": str(TOP),
            "SCRATCH": str(scratch),
            "NOVA_HPC_CONFIGURE_ARGS": arguments,
            "NOVA_HPC_DECLARATION": declaration,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _parse(path: pathlib.Path) -> dict[str, dict[str, list[str]]]:
    """What oslo.config itself reads from a file."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    return sections


@pytest.fixture
def merged(captures: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    _run(SCRIPT, captures, tmp_path, f"--xml {xml}", "limits: {hosts: 1234}")
    return tmp_path


def test_post_config_merges_the_settings_of_the_node(merged: pathlib.Path) -> None:
    nova = _parse(merged / "nova.conf")
    assert nova["DEFAULT"]["compute_driver"] == ["hpc.HpcLibvirtDriver"]
    assert nova["DEFAULT"]["my_ip"] == ["127.0.0.1"]
    assert nova["filter_scheduler"]["track_instance_changes"] == ["False"]
    specs = [json.loads(value) for value in nova["pci"]["device_spec"]]
    gpus = [spec for spec in specs if spec["hpc_role"] == "gpu"]
    assert len(gpus) == 16
    # The order of the inventory is kept, though devstack adds lines backwards.
    assert [spec["address"] for spec in gpus] == sorted(spec["address"] for spec in gpus)
    (filters,) = nova["filter_scheduler"]["enabled_filters"]
    names = filters.split(",")
    # Devstack's own extra filters stay, ours comes before the two that check.
    assert "SameHostFilter" in names
    assert names.index("HpcTopologyFilter") < names.index("NUMATopologyFilter")
    assert names.index("HpcTopologyFilter") < names.index("PciPassthroughFilter")
    placement = _parse(merged / "placement.conf")
    assert placement["placement"]["allocation_candidates_generation_strategy"] == ["breadth-first"]
    assert int(placement["placement"]["max_allocation_candidates"][0]) >= 1234
    assert placement["api"]["auth_strategy"] == ["keystone"]


def test_a_second_run_changes_nothing(merged: pathlib.Path, captures: pathlib.Path) -> None:
    before = {name: (merged / name).read_text() for name in ("nova.conf", "placement.conf")}
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    _run(SCRIPT, captures, merged, f"--xml {xml}", "limits: {hosts: 1234}")
    after = {name: _parse(merged / name) for name in before}
    for name, text in before.items():
        (merged / "before.conf").write_text(text)
        assert after[name] == _parse(merged / "before.conf")


OTHERS_ALIAS = (
    '{"name": "fpga", "vendor_id": "10ee", "product_id": "5000", "numa_policy": "socket"}'
)
OTHERS_SPEC = '{"vendor_id": "10ee", "product_id": "5000", "address": "0000:*:00.0"}'


def test_what_other_plug_ins_have_set_is_added_to(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Set by devstack's own functions, as plug-ins that come before this one do."""
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    others = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/settings",
        'iniset $NOVA_CONF filter_scheduler enabled_filters "$NOVA_FILTERS,BlazarFilter"\n'
        "iniset $NOVA_CONF filter_scheduler available_filters"
        " nova.scheduler.filters.all_filters\n"
        "iniadd_literal $NOVA_CONF filter_scheduler available_filters"
        " blazarnova.scheduler.filters.blazar_filter.BlazarFilter\n"
        "iniset $NOVA_CONF filter_scheduler weight_classes"
        " nova.scheduler.weights.ram.RAMWeigher,other.Weigher\n"
        "iniset $NOVA_CONF scheduler max_placement_results 50000\n"
        "iniset $NOVA_CONF compute cpu_dedicated_set 4-7\n"
        f"iniset $NOVA_CONF pci alias '{OTHERS_ALIAS}'\n"
        f"iniset $NOVA_CONF pci device_spec '{OTHERS_SPEC}'\n"
        "iniset $PLACEMENT_CONF placement max_allocation_candidates -1\n"
        "source $PLUGIN_TOP/devstack/settings",
    )
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    for _ in range(2):
        _run(others, captures, tmp_path, f"--xml {xml}")
        others = SCRIPT
        nova = _parse(tmp_path / "nova.conf")
        assert nova["pci"]["alias"][0] == OTHERS_ALIAS
        assert [json.loads(value)["name"] for value in nova["pci"]["alias"][1:]] == ["gpu"]
        assert nova["pci"]["device_spec"][0] == OTHERS_SPEC
        assert len(nova["pci"]["device_spec"]) == 17
        scheduler = nova["filter_scheduler"]
        (filters,) = scheduler["enabled_filters"]
        assert {"BlazarFilter", "SameHostFilter", "HpcTopologyFilter"} <= set(filters.split(","))
        assert len(filters.split(",")) == len(set(filters.split(",")))
        assert scheduler["available_filters"] == [
            "blazarnova.scheduler.filters.blazar_filter.BlazarFilter",
            "nova.scheduler.filters.all_filters",
            "scheduler_filters.hpc_topology_filter.HpcTopologyFilter",
            "scheduler_filters.hpc_fabric_filter.HpcFabricFilter",
        ]
        assert scheduler["weight_classes"] == [
            "nova.scheduler.weights.ram.RAMWeigher,other.Weigher,"
            "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher,"
            "scheduler_filters.hpc_fabric_weigher.HpcFabricWeigher"
        ]
        assert nova["scheduler"]["max_placement_results"] == ["50000"]
        assert nova["compute"]["cpu_dedicated_set"] == ["4-7"]
        placement = _parse(tmp_path / "placement.conf")["placement"]
        assert placement["max_allocation_candidates"] == ["-1"]
        assert placement["allocation_candidates_generation_strategy"] == ["breadth-first"]


def test_a_machine_without_devices_is_stacked(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    declaration = "roles: [{role: gpu, vendor_id: ffff}]"
    _run(SCRIPT, captures, tmp_path, f"--xml {xml}", declaration)
    nova = _parse(tmp_path / "nova.conf")
    assert "HpcTopologyFilter" in nova["filter_scheduler"]["enabled_filters"][0]
    # It is no node of this project's: driver and CPUs are Nova's own.
    assert nova["DEFAULT"]["compute_driver"] == ["libvirt.LibvirtDriver"]
    assert "pci" not in nova
    assert "compute" not in nova


def test_quoted_words_and_declared_lines(captures: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "nova.conf").write_text(NOVA_CONF)
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = keystone\n")
    role = '{"role": "disk", "class": "0108"}'
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    declaration = "roles:\n- {role: accelerator, vendor_id: 10de, class: '0302'}\nvfs: {}"
    _run(SCRIPT, captures, tmp_path, f"--xml {xml} --add-device-role '{role}'", declaration)
    nova = _parse(tmp_path / "nova.conf")
    specs = [json.loads(value) for value in nova["pci"]["device_spec"]]
    assert "accelerator" in {spec["hpc_role"] for spec in specs}
    assert "gpu" not in {spec["hpc_role"] for spec in specs}
    assert nova["hpc"]["device_role"][-1] == role


def test_install_places_the_shim_and_clean_removes_it(
    captures: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    calls = tmp_path / "calls"
    recorded = SCRIPT.replace(
        "source $PLUGIN_TOP/devstack/plugin.sh stack post-config",
        f'function nova-hpc {{ echo "$*" >> {calls}; }}\n'
        "source $PLUGIN_TOP/devstack/plugin.sh stack install\n"
        "source $PLUGIN_TOP/devstack/plugin.sh stack extra\n"
        "source $PLUGIN_TOP/devstack/plugin.sh unstack\n"
        "source $PLUGIN_TOP/devstack/plugin.sh clean",
    )
    out = _run(recorded, captures, tmp_path, "")
    assert out.count("SETUP ") == 1
    assert calls.read_text().splitlines() == ["install-shim", "install-shim --remove"]


# -- flavors for tests, other nodes, and jobs -------------------------------------------

TEST_CONFIG = SCRIPT.replace("post-config", "test-config").replace(
    "source $PLUGIN_TOP/devstack/settings",
    "TEMPEST_CONFIG=$SCRATCH/tempest.conf\n$MORE\nsource $PLUGIN_TOP/devstack/settings",
)


def _test_config(scratch: pathlib.Path, status: int, more: str = "") -> tuple[str, str]:
    """What was called, and tempest's configuration after it."""
    folder = scratch / "bin"
    folder.mkdir()
    for name, text in {
        "nova-hpc": f'echo "$OS_CLOUD nova-hpc $*" >>$SCRATCH/calls; exit {status}',
        "openstack": 'echo "$OS_CLOUD openstack $*" >>$SCRATCH/calls; echo 1f2e',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    tempest = scratch / "tempest.conf"
    tempest.write_text("[compute]\nflavor_ref = 42\n")
    captures = pathlib.Path(os.environ["NOVA_HPC_TEST_DATA"])
    subprocess.run(
        ["bash", "-c", TEST_CONFIG.replace("$MORE", more)],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "DEVSTACK": str(captures / "devstack"),
            "PLUGIN_TOP": str(TOP),
            "SCRATCH": str(scratch),
            "HOME": str(scratch),
        },
        check=True,
        capture_output=True,
    )
    calls = scratch / "calls"
    return calls.read_text() if calls.exists() else "", tempest.read_text()


@pytest.mark.usefixtures("captures")
def test_tempest_gets_the_smallest_flavor(tmp_path: pathlib.Path) -> None:
    calls, tempest = _test_config(tmp_path, 0)
    assert calls.splitlines() == [
        "devstack-admin nova-hpc flavor create --family hpc --yes",
        "devstack-admin openstack flavor show hpc.gpu1 -f value -c id",
    ]
    assert tempest == "[compute]\nflavor_ref = 1f2e\n"


@pytest.mark.usefixtures("captures")
def test_without_devices_tempest_keeps_its_flavor(tmp_path: pathlib.Path) -> None:
    calls, tempest = _test_config(tmp_path, 2)
    assert len(calls.splitlines()) == 1
    assert tempest == "[compute]\nflavor_ref = 42\n"


@pytest.mark.usefixtures("captures")
def test_no_flavors_where_none_are_wanted(tmp_path: pathlib.Path) -> None:
    calls, _ = _test_config(tmp_path, 0, more='NOVA_HPC_TEST_FAMILY=""')
    assert calls == ""


def test_the_jobs_name_what_is_there() -> None:
    jobs = {
        each["job"]["name"]: each["job"]
        for each in yaml.safe_load((TOP / ".zuul.yaml").read_text())
        if "job" in each
    }
    playbook = jobs["nova-hpc-lab"]["run"]
    (play,) = yaml.safe_load((TOP / playbook).read_text())
    (task,) = play["tasks"]
    words = task["ansible.builtin.command"]["cmd"].split()
    assert words[0] == "bash"
    assert (TOP / words[1]).is_file()
    (project,) = (
        each["project"]
        for each in yaml.safe_load((TOP / ".zuul.yaml").read_text())
        if "project" in each
    )
    weekly = set(project["periodic-weekly"]["jobs"])
    assert project["check"]["jobs"] == project["gate"]["jobs"]
    # Defined by OpenStack for all projects: each runs the environment of tox of its name.
    shared = {each for each in project["check"]["jobs"] if each not in jobs}
    assert set(project["check"]["jobs"]) - shared == jobs.keys() - weekly
    assert shared == {"openstack-tox-py311", "openstack-tox-py312", "openstack-tox-py313"}
    tox = (TOP / "tox.ini").read_text()
    for job in jobs.values():
        env = job.get("vars", {}).get("tox_envlist", "all")
        release = env.rpartition("-")[2]
        assert env == "all" or f"[testenv:{env}]" in tox or f"{release}: nova>={release}" in tox


def test_the_weekly_job_runs_the_contract_tests_beside_novas_master() -> None:
    (job,) = (
        each["job"]
        for each in yaml.safe_load((TOP / ".zuul.yaml").read_text())
        if each.get("job", {}).get("name") == "nova-hpc-nova-master"
    )
    assert "openstack/nova" in job["required-projects"]
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(TOP / "tox.ini")
    env = tox[f"testenv:{job['vars']['tox_envlist']}"]
    assert "NOVA_HPC_NEXT_NOVA" in env["set_env"]
    tests = env["commands"].partition("posargs:")[2].rstrip("}").split()
    assert "tests/functional/test_scheduler_contract.py" in tests
    assert all((TOP / each).exists() for each in tests)


@pytest.mark.parametrize("sample", ["local.conf.sample", "local.conf.subnode.sample"])
def test_the_samples_are_what_devstack_reads(sample: str) -> None:
    text = (TOP / "devstack" / sample).read_text()
    assert "[[local|localrc]]" in text
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    assert "enable_plugin nova-hpc /opt/src/nova-hpc" in lines
    script = "\n".join(["function enable_plugin { :; }", "set -e", *lines])
    assert subprocess.run(["bash", "-c", script], check=False).returncode == 0
