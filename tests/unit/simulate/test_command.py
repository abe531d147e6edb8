# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc simulate`` as a user calls it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys

import attrs
import pytest

from nova_hpc_simulate.command import SimulatePolicies
from nova_hpc_tools.snapshot import document
from tests.unit.pictures.faults import list_faults
from tests.unit.snapshot import clouds

NODES = "name,type,cpus,memory_mib,gpus,count\nbig,big,96,786432,8,2\nsmall,small,32,262144,2,2\n"
REQUESTS = "name,cpus,memory_mib,gpus,count\none,4,1024,1,4\npair,8,1024,2,2\nall,64,1024,8,1\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    with gzip.open(tmp_path / "requests.csv.gz", "wt") as stream:
        stream.write(REQUESTS)
    return tmp_path


def run(folder, *words, nodes="nodes.csv", requests="requests.csv.gz"):
    command = SimulatePolicies(None, None)
    given = ["--nodes", str(folder / nodes), "--requests", str(folder / requests), *words]
    return command.run(command.get_parser("nova-hpc simulate").parse_args(given))


def test_table(files, capsys):
    assert (
        run(files, "--seeds", "2", "--jobs", "1", "--policy", "nova-pack", "--policy", "nova-hpc")
        == 0
    )
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "4 nodes, 20 free GPUs; requests for 130 % of them; 2 seeds"
    assert out[1].split()[:2] == ["policy", "allocated"]
    assert [line.split()[0] for line in out[2:]] == ["nova-pack", "nova-hpc"]


def test_json_and_picture(files, capsys):
    words = ["--seeds", "1", "--jobs", "1", "--format", "json", "--policy", "nova-hpc"]
    picture = files / "curves.svg"
    words += ["--topology", "dgx", "--levels", "50", "--svg", str(picture)]
    assert run(files, *words) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"]) == ("nova-hpc/simulation", 1)
    assert (document["nodes"], document["gpus"], document["requests"]) == (4, 20, 7)
    assert str(files) not in json.dumps(document)
    assert list_faults(picture.read_text()) == []
    assert "nova-hpc" in picture.read_text()


def test_more_nodes_help(files, capsys):
    def refused(*more):
        words = ["--seeds", "1", "--jobs", "1", "--format", "json", "--policy", "nova-hpc", *more]
        assert run(files, *words) == 0
        return json.loads(capsys.readouterr().out)["runs"][0]["refused_gpus"]

    assert refused("--nodes-add", "4", "--nodes-add-type", "big") == 0
    assert refused() >= 6  # 26 GPUs are asked for, 20 are there


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "best"], "no policy 'best'; there are nova-spread, nova-pack, nova-hpc, "),
        (["--policy", "nova:ram"], "policy 'nova:ram': 'ram' is none of ram=NUMBER, cpu=NUMBER"),
        (["--nodes-add", "1", "--nodes-add-type", "x"], "no node of type 'x'; there are big, sma"),
        (["--nodes-add-type", "big"], "--nodes-add-type needs --nodes-add"),
        (["--topology", "x"], "--topology x: write dgx, or TYPE=FILE"),
        (["--topology", "x=dgx"], "--topology x=dgx: no node of type 'x'"),
        (["--topology", "big=/nowhere.xml"], "--topology big=/nowhere.xml: "),
        (["--levels", "50"], "some requests need their GPUs together, but no node has a topology"),
        (["--replay"], "the requests have no times"),
        (["--svg", "/nowhere/x.svg"], "--svg /nowhere/x.svg: there is no such directory"),
        (["--snapshot", "/nowhere"], "--nodes and --snapshot exclude each other"),
    ],
)
def test_bad_options(files, capsys, words, message):
    assert run(files, *words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"nova-hpc simulate: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name,cpus,memory_mib,gpus\na,1,1,1\nb,1,1,one\n", "requests.csv, line 3: gpus is 'one'"),
        (b"\xff\xfe", "requests.csv, line 1: not UTF-8"),
        (b"\x1f\x8bbroken", "requests.csv cannot be read: "),
        (b"", "requests.csv: there is no request in it"),
    ],
)
def test_bad_files(files, capsys, content, message):
    (files / "requests.csv").write_bytes(content)
    assert run(files, requests="requests.csv") == 2
    assert message in capsys.readouterr().err


def test_missing_files(files, capsys):
    assert run(files, nodes="none.csv") == 2
    assert "none.csv cannot be read: No such file or directory" in capsys.readouterr().err


def test_without_the_extra(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert run(files) == 2
    assert "pip install numpy matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--levels", "101"], ["--demand", "x"]])
def test_absurd_numbers(files, words):
    with pytest.raises(SystemExit) as caught:
        run(files, *words)
    assert caught.value.code == 2


def test_topology_from_lstopo(files, synthetic, tmp_path, capsys):
    """The XML that lstopo makes of an HGX, whose eight GPUs a node of eight takes."""
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("lstopo-no-graphics is not installed (package hwloc-nox)")
    xml = tmp_path / "hgx.xml"
    command = ["lstopo-no-graphics", "--of", "xml", "--whole-io", "-f", str(xml)]
    environment = {**os.environ, "HWLOC_FSROOT": str(synthetic("hgx-h100"))}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    words = ["--seeds", "1", "--jobs", "1", "--topology", f"big={xml}", "--levels", "100"]
    assert run(files, *words, "--policy", "nova-pack", "--policy", "nova-hpc") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "nova-pack",
        "nova-hpc",
    ]


def test_topology_of_a_dgx_2(files, captures, capsys):
    """The DGX-2 has 16 GPUs in its XML; a node of eight takes the first eight."""
    xml = captures / "hwloc" / "nvidiaDGX2.xml"
    words = ["--seeds", "1", "--jobs", "1", "--topology", f"big={xml}", "--levels", "100"]
    assert run(files, *words, "--policy", "nova-pack", "--policy", "nova-hpc") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "nova-pack",
        "nova-hpc",
    ]


def test_what_of_a_cloud_is_not_simulated_is_said(tmp_path, capsys):
    """No snapshot has ports, and a flavor that would be refused must not be missing in silence."""
    node = clouds.node("one", [2, 2])
    node = attrs.evolve(node, devices=(*node.devices, clouds.vfs("one", 0)))
    flavors = [
        clouds.flavor("plain"),
        clouds.flavor("rails", group="gpu:1,port:1"),
        clouds.flavor("fast", wants={"gpu": 2, "vf": 2}),
        clouds.flavor("store", group="gpu:1,storage:1"),
        clouds.flavor("other", wants={"vf": 1}),
    ]
    path = tmp_path / "cloud.json"

    def simulate(*servers, form=()):
        path.write_text(
            document.dump_cloud_snapshot(clouds.cloud(node, flavors=flavors, servers=servers))
        )
        command = SimulatePolicies(None, None)
        words = ["--snapshot", str(path), "--seeds", "1", "--jobs", "1", "--policy", "nova-pack"]
        parser = command.get_parser("nova-hpc simulate")
        assert command.run(parser.parse_args([*words, *form])) == 0
        return capsys.readouterr().out

    said = [line for line in simulate().splitlines() if line.startswith("not simulated: ")]
    assert said[:2] == [
        "not simulated: the devices beside gpu of the flavors fast",
        "not simulated: the ports that the flavors rails put beside their devices",
    ]
    assert said[2].startswith("not simulated: flavor store: hpc:group names 'storage'")
    assert len(said) == 3
    about = json.loads(simulate(form=["--format", "json"]))["about"]
    assert [f"not simulated: {each}" for each in about["not_simulated"]] == said
    # What nobody runs is not asked for.
    assert "not simulated" not in simulate(clouds.server("s", "one", flavor="plain"))
