# SPDX-License-Identifier: Apache-2.0
"""The samples of the user guide: their syntax, and what the programs for Slurm call."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
import types
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.members import neighbours
from nova_hpc_client.openstack.v1.cluster_heal import HealCluster
from tests.unit.cluster.test_members import TWO_LEAVES, cluster, member

SAMPLES = Path(__file__).resolve().parents[3] / "docs/source/user/samples"
SLURM = SAMPLES / "slurm"

_SCONTROL = r"""#!/bin/bash
echo "scontrol $*" >>"$CALLS"
[ "$*" != "--oneliner show node" ] ||
    printf 'NodeName=%s Arch=x86_64 State=IDLE+CLOUD\n' train-1 train-2 train-3 eval-1 eval-2 login
[ "$1 $2" = "show hostnames" ] || exit 0
python3 - "$3" <<'END'
import re, sys
prefix, inner = re.fullmatch(r"(.*?)-\[?([0-9,-]+)\]?", sys.argv[1]).groups()
for part in inner.split(","):
    low, _, high = part.partition("-")
    for each in range(int(low), int(high or low) + 1):
        print(f"{prefix}-{each}")
END
"""
_OPENSTACK = r"""#!/bin/bash
echo "openstack $*" >>"$CALLS"
case "$3" in
show) [ -n "$WANTED" ] && echo "$WANTED" || exit 1 ;;
hosts) printf 'train-1 10.0.0.1\ntrain-2 10.0.0.2\n' ;;
list) [ -z "$NO_ANSWER" ] && echo train || exit 1 ;;
topology) [ "$6" = slurm ] && echo "SwitchName=train-all Nodes=$8" ||
    printf 'Name,Block,Leaf\ntrain-1,b-1,l-a\ntrain-2,,\ntrain-3,,l-c\n' ;;
create | scale) exit "${FAILS:-0}" ;;
esac
"""


def call(tmp_path: Path, program: str, nodes: str, **settings: str) -> tuple[int, list[str]]:
    """Run a program beside a scontrol and an openstack that write down how they are called."""
    for name, text in (("scontrol", _SCONTROL), ("openstack", _OPENSTACK)):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
    calls = tmp_path / "calls"
    calls.write_text("")
    env = tmp_path / "hpc.env"
    options = {"HPC_CREATE": '"--flavor f --image i"', "HPC_LOCKS": str(tmp_path)}
    options["HPC_TOPOLOGY_FILE"] = str(tmp_path / "topology.conf")
    options |= {key: value for key, value in settings.items() if key.startswith("HPC")}
    env.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
    ended = subprocess.run(
        [SLURM / program, nodes],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "HPC_ENV": str(env),
            "WANTED": "",
            **settings,
        },
        check=False,
    )
    said = calls.read_text().splitlines()
    return ended.returncode, [each for each in said if "show" not in each.split()[:4]]


def test_nodes_of_a_job_become_one_cluster(tmp_path: Path) -> None:
    status, said = call(tmp_path, "hpc-resume", "train-[1-2]")
    assert status == 0
    assert said == [
        "openstack hpc cluster create train --numbers 1,2 --flavor f --image i",
        "openstack hpc cluster hosts train -f value -c Name -c Address",
        "scontrol update NodeName=train-1 NodeAddr=10.0.0.1 NodeHostName=train-1",
        "scontrol update NodeName=train-2 NodeAddr=10.0.0.2 NodeHostName=train-2",
    ]


def test_further_nodes_join_it(tmp_path: Path) -> None:
    status, said = call(tmp_path, "hpc-resume", "train-[4-5]", WANTED="1-3")
    assert (status, said[0]) == (0, "openstack hpc cluster scale train --add 4,5")


def test_where_slurm_is_told_the_topology(tmp_path: Path) -> None:
    _, said = call(tmp_path, "hpc-resume", "train-[1-2]", HPC_TOPOLOGY="dynamic")
    assert [each for each in said if "topology=" in each] == [
        "scontrol update NodeName=train-1 topology=default:cloud:b-1:l-a",
        "scontrol update NodeName=train-3 topology=default:cloud:l-c",
    ]


@pytest.mark.parametrize("program", ["hpc-resume", "hpc-suspend"])
def test_the_file_has_all_nodes_of_slurm(tmp_path: Path, program: str) -> None:
    """Also those that do not exist yet, of other clusters, and of none."""
    status, said = call(tmp_path, program, "train-[1-2]", HPC_TOPOLOGY="file", WANTED="1-3")
    assert (status, said[-1]) == (0, "scontrol reconfigure")
    assert (tmp_path / "topology.conf").read_text().splitlines() == [
        "SwitchName=eval-all Nodes=eval-1,eval-2",
        "SwitchName=others-all Nodes=login",
        "SwitchName=train-all Nodes=train-1,train-2,train-3",
        "SwitchName=clusters Switches=eval-all,others-all,train-all",
    ]


def test_where_the_cloud_does_not_answer_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text("as it was\n")
    status, said = call(tmp_path, "hpc-resume", "train-[1-2]", HPC_TOPOLOGY="file", NO_ANSWER="1")
    assert (status, "scontrol reconfigure" in said) == (1, False)
    assert (tmp_path / "topology.conf").read_text() == "as it was\n"


def test_nodes_for_which_there_is_no_room_go_back_to_slurm(tmp_path: Path) -> None:
    status, said = call(tmp_path, "hpc-resume", "train-[1-2]", FAILS="1")
    assert status == 1
    assert said[1:] == [
        "scontrol update NodeName=train-[1,2] State=DOWN Reason=no room in the cloud",
        "scontrol update NodeName=train-[1,2] State=POWER_DOWN_FORCE",
    ]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("1-5", ["openstack hpc cluster scale train --remove 2,3"]),
        ("2-3", ["openstack hpc cluster delete train"]),
        ("2", ["openstack hpc cluster delete train"]),
        ("", []),
    ],
)
def test_nodes_that_go(tmp_path: Path, wanted: str, said: list[str]) -> None:
    assert call(tmp_path, "hpc-suspend", "train-[2-3]", WANTED=wanted) == (0, said)


def _values(tree: Any, name: str) -> list[Any]:
    if isinstance(tree, list):
        return [found for each in tree for found in _values(each, name)]
    if not isinstance(tree, dict):
        return []
    found = [value for key, value in tree.items() if key.strip('"') == name]
    return found + [each for value in tree.values() for each in _values(value, name)]


def test_opentofu_says_group_and_members() -> None:
    found: Any = hcl2.loads((SAMPLES / "cluster.tf").read_text())
    (policies,) = _values(found["resource"], "policies")
    assert policies[0].strip('"') in wishes.POLICIES
    (hints,) = _values(found["resource"], "scheduler_hints")
    hints = hints[0] if isinstance(hints, list) else hints
    assert "openstack_compute_servergroup_v2.train.id" in hints["group"]
    assert {key.strip('"') for key in hints["additional_properties"]} == {wishes.HINT}
    # A member of a partition has its address, and is reached.
    assert _values(found["resource"], "config_drive") == [True]
    assert any("login_network_id" in str(each) for each in _values(found["resource"], "uuid"))


def test_cluster_api_says_group_and_members() -> None:
    template, deployment = yaml.safe_load_all((SAMPLES / "cluster-api.yaml").read_text())
    spec = template["spec"]["template"]["spec"]
    (hint,) = spec["schedulerHintAdditionalProperties"]
    assert hint["name"] == wishes.HINT
    assert hint["value"] == {"type": "String", "string": str(deployment["spec"]["replicas"])}
    assert spec["serverGroup"]["filter"]["name"] == "workers"
    assert spec["configDrive"] is True
    assert [port.get("vnicType") for port in spec["ports"]] == [None, "direct"]
    infrastructure = deployment["spec"]["template"]["spec"]["infrastructureRef"]
    assert infrastructure["name"] == template["metadata"]["name"]


def test_heat_says_group_and_members_and_names_that_adopt_takes() -> None:
    """Heat 27.0.1 has read it, and made of it what its API would send."""
    template = yaml.safe_load((SAMPLES / "cluster-heat.yaml").read_text())
    resources = template["resources"]
    assert set(resources["group"]["properties"]["policies"]) <= set(wishes.POLICIES)
    workers = resources["workers"]["properties"]
    server = workers["resource_def"]["properties"]
    assert server["scheduler_hints"] == {
        "group": {"get_resource": "group"},
        wishes.HINT: workers["count"],
    }
    assert server["config_drive"] is True
    ports = [network.get("port_extra_properties") for network in server["networks"]]
    assert ports == [None, {"binding:vnic_type": "direct"}]
    names = [server["name"].replace("%index%", str(index)) for index in range(4)]
    assert [wishes.member_number_of("train", name, True) for name in names] == [0, 1, 2, 3]


def heal_options_of(name: str) -> Any:
    """The parsed options of heal in a systemd unit."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((SAMPLES / name).read_text())
    words = shlex.split(unit["Service"]["ExecStart"].replace("\\\n", " "))
    assert words[1:5] == ["hpc", "cluster", "heal", "%i"]
    parser = HealCluster(types.SimpleNamespace(), None).get_parser("heal")
    given = parser.parse_args(words[4:])
    assert given.watch
    return given


def test_the_service_calls_heal() -> None:
    given = heal_options_of("hpc-heal@.service")
    assert not given.force
    for path in (given.drain, given.undrain):
        assert os.access(SLURM / Path(path).name, os.X_OK)


def test_the_service_without_slurm_replaces_members_whose_job_is_over() -> None:
    given = heal_options_of("hpc-heal-alone@.service")
    assert (given.drain, given.undrain, given.force) == (None, None, True)
    assert given.fault == ["host", "gone"]


_SSH = r"""#!/bin/bash
[ "$1 $2 $3" = "-n -o ConnectTimeout=10" ] && [[ " $BAD " != *" $4 "* ]]
"""
_MPIRUN = r"""#!/bin/bash
echo "$(paste -sd, "$2") ${*:3}" >>"$CALLS"
[ "$(wc -l <"$CALLS")" -ge "$RUNS" ]
"""


def run_again(tmp_path: Path, bad: str, runs: int) -> tuple[int, list[str]]:
    """Run torchrun-again for two of three members.

    :param bad: members that are not as promised.
    :param runs: the job succeeds at this run.
    """
    for name, text in (("ssh", _SSH), ("mpirun", _MPIRUN), ("sleep", "#!/bin/sh\n")):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
    calls = tmp_path / "calls"
    calls.write_text("")
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"train-{number} slots=8\n" for number in (1, 2, 3)))
    ended = subprocess.run(
        [SAMPLES / "torchrun-again", "2", "8", "eth0", "/data/train.py", "--epochs=3"],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "HPC_HOSTS": str(hosts),
            "BAD": bad,
            "RUNS": str(runs),
        },
        check=False,
    )
    return ended.returncode, calls.read_text().splitlines()


def test_a_job_starts_again_on_good_members(tmp_path: Path) -> None:
    status, lines = run_again(tmp_path, "train-1", 2)
    assert (status, len(lines)) == (0, 2)
    for line in lines:
        assert line.startswith("train-2,train-3 --map-by ppr:1:node ")
        assert "-x NCCL_SOCKET_IFNAME=eth0 -x GLOO_SOCKET_IFNAME=eth0" in line
        assert "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=" in line
        assert line.endswith("--rdzv-endpoint=train-2:29500 /data/train.py --epochs=3")
    status, lines = run_again(tmp_path, "", 1)
    assert (status, [line.split()[0] for line in lines]) == (0, ["train-1,train-2"])


def test_a_job_waits_for_enough_members(tmp_path: Path) -> None:
    assert run_again(tmp_path, "train-1 train-3", 1) == (1, [])


def test_a_job_that_always_fails_is_given_up(tmp_path: Path) -> None:
    status, lines = run_again(tmp_path, "", 99)
    assert (status, len(lines)) == (1, 20)


def tree_of(text: str) -> dict[str, dict[str, list[str]]]:
    """Switches of a topology.conf by their name."""
    found = {}
    for line in text.splitlines():
        words = dict(word.split("=") for word in line.split())
        found[words.pop("SwitchName")] = {key: each.split(",") for key, each in words.items()}
    return found


def test_the_tree_for_slurm() -> None:
    assert neighbours.format_slurm_switches(TWO_LEAVES) == (
        "SwitchName=t-l-b Nodes=t-2,t-5,t-3\n"
        "SwitchName=t-l-a Nodes=t-1,t-4\n"
        "SwitchName=t-b-1 Switches=t-l-b,t-l-a\n"
    )
    mixed = cluster(
        member(1, "l-a", "h1"), member(2, "", "h2"), member(3, "l-b", "h3"), member(4, "", "")
    )
    found = tree_of(neighbours.format_slurm_switches(mixed))
    nodes = [each for switch in found.values() for each in switch.get("Nodes", ())]
    below = [each for switch in found.values() for each in switch.get("Switches", ())]
    assert sorted(nodes) == ["t-1", "t-2", "t-3", "t-4"]
    # One root, and each other switch below exactly one.
    assert len(below) == len(set(below))
    assert len(found.keys() - set(below)) == 1
    assert set(below) < found.keys()
