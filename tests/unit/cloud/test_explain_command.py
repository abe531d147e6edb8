# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc explain`` and ``simulate snapshot`` as an operator meets them."""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys

import attrs
import pytest

from nova_hpc.placement.model import WantedCell
from nova_hpc_tools.cloud.capacity_command import ShowCapacity
from nova_hpc_tools.cloud.explain_command import Explain
from nova_hpc_tools.cloud.flavor_command import CreateFlavors
from nova_hpc_tools.main import main
from nova_hpc_tools.snapshot import FlavorWant, cloud_readers
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest
from tests.unit.snapshot import clouds


def a_cloud():
    """A fit, a near miss, a host with a device withheld, one that is out, one that is full."""
    cell = WantedCell(id=0, dedicated_cpus=4)
    whole = clouds.flavor("whole", wants={"gpu": 4, "vf": 4}, group="gpu:1,vf:1")
    fit = clouds.node("fit1", [2, 1])
    both = clouds.node("both", [1, 1, ["s1", "s1"]])
    both = attrs.evolve(both, devices=(*both.devices, clouds.vfs("both", 0), clouds.vfs("both", 1)))
    return clouds.cloud(
        fit,
        attrs.evolve(clouds.node("fit2", [2, 1]), zone="other"),
        clouds.node("node7", [1, 1, 1, 1], withheld={"0000:41:01.0": "it is quarantined: AER"}),
        clouds.node("off", [4], out="its nova-compute is disabled (fire)"),
        both,
        flavors=[
            clouds.flavor(),
            clouds.flavor("four", wants={"gpu": 4}),
            clouds.flavor("celled", affinity="numa", cells=[cell], numa_policy="required"),
            whole,
        ],
        servers=[
            clouds.server(
                "s1",
                "both",
                decision='{"v":1,"asked":"switch","policy":"required","reached":"switch"}',
            )
        ],
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cloud.json"
    path.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    return path


@pytest.fixture
def run(file, capsys):
    def call(*words):
        status = main(["explain", "--snapshot", str(file), *words])
        output = capsys.readouterr()
        return status, output.out, output.err

    return call


def test_a_fit(run):
    status, out, err = run("--flavor", "pair")
    assert (status, err) == (0, "")
    assert "Flavor pair: 2 gpu; affinity switch (required)" in out
    # Hosts that are alike stand together.
    assert "fit1, fit2: fits at level switch (PIX): 2 gpu under one switch (PIX); 0000:40:0" in out
    assert "chosen" not in out
    assert re.search(r"^    1  4 gpu free, but at most 1 under one switch .* node7 *$", out, re.M)
    assert "0000:41:01.0 is withheld: it is quarantined: AER" in out
    # The answer stands right below the question.
    assert "affinity switch (required)\nIt fits on 2 of 5 hosts.\n\n" in out


def test_trees(run):
    status, out, err = run("--flavor", "pair", "--trees")
    assert (status, err) == (0, "")
    assert "fit1, fit2: fits at level switch (PIX): 2 gpu under one switch (PIX)\n" in out
    lines = out.splitlines()
    (first, second, third) = [line for line in lines if " gpu, free" in line][:3]
    assert "0000:40:00.0" in first
    assert "chosen" in first
    assert "chosen" in second
    assert "chosen" not in third
    assert "4 gpu free, but at most 1 under one switch (needs 2)" in out
    assert "0000:41:01.0 is withheld: it is quarantined: AER" in out
    assert "off: its nova-compute is disabled (fire)" in out
    assert out.index("fit1, fit2") < out.index("node7")


def test_a_miss_with_remedies(run):
    status, out, _ = run("--flavor", "four")
    assert status == 1
    assert "It fits on none of 5 hosts." in out
    assert "It would fit with hpc:affinity=host: on " in out
    assert "It would fit in smaller groups, with hpc:group=gpu:2: on " not in out
    assert "It would fit with only 2 gpu: on fit1, at level switch." in out


def test_the_nearest_miss_is_first_and_the_cures_are_above(run):
    _, out, _ = run("--flavor", "four")
    rows = [line.split() for line in out.partition("Why not")[2].splitlines()[1:5]]
    assert [row[-1] for row in rows] == ["node7", "fit2", "both", "off"]
    assert [row[0] for row in rows] == ["1", "2", "1", "1"]
    assert out.index("It would fit with only 2 gpu") < out.index("Why not")


@pytest.mark.parametrize("count", [2, 40])
def test_one_refusal_of_many_hosts_fits_on_a_screen(count, tmp_path, capsys):
    nodes = [
        clouds.node(
            f"compute-{number:03}.rack{number % 4}.example",
            [1] * (1 + number % 4),
            withheld={f"0000:5{number % 8}:01.0": "it is quarantined: uncorrected AER errors"},
        )
        for number in range(count)
    ]
    path = tmp_path / "cloud.json"
    cloud = clouds.cloud(*nodes, flavors=[clouds.flavor()])
    path.write_text(snapshot_document.dump_cloud_snapshot(cloud))
    assert main(["explain", "--snapshot", str(path), "--flavor", "pair"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines[lines.index("") :])) <= 100
    assert "…" not in "".join(lines)
    assert "rack1.example" in "".join("".join(lines).split())


def test_a_server_that_would_have_to_leave(run):
    status, out, _ = run("--flavor", "pair", "--host", "both")
    assert status == 1
    assert "after server name-s1 (s1) leaves both: on both, at level switch." in out
    assert "in use by name-s1" in out
    assert "fit1" not in out


def test_several_servers(run):
    status, out, _ = run("--flavor", "pair", "--count", "2")
    assert status == 0
    assert "Server 2 of 2: fit2, level switch (PIX): 0000:40:00.0, 0000:40:01.0" in out
    assert "All 2 servers fit." in out
    status, out, _ = run("--flavor", "pair", "--count", "3")
    assert status == 1
    assert "Only 2 of 3 servers fit." in out


def test_a_server_of_the_past(run):
    status, out, _ = run("--server", "s1")
    assert status == 0
    assert "Server name-s1 (s1), flavor pair, on both" in out
    assert "affinity switch (required) was requested, switch was reached" in out
    assert "Its devices sit at level switch (PIX)." in out
    assert out.count("in use by name-s1") == 2
    assert out.count("its own") == 2


def test_json(run):
    status, out, _ = run("--flavor", "pair", "--format", "json")
    assert status == 0
    assert json.loads(out)["placed"][0]["host"] == "fit1"
    status, out, _ = run("--server", "s1", "--format", "json")
    assert status == 0
    assert json.loads(out)["level"] == "switch"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "one of the arguments --flavor --server --request is required"),
        (("--request", "req-1"), "--request needs the cloud itself"),
        (("--flavor", "pair", "--server", "s1"), "not allowed with"),
        (("--server", "s1", "--count", "2"), "--count needs --flavor"),
        (("--server", "s1", "--host", "fit1"), "--host needs --flavor"),
        (("--flavor", "pair", "--count", "0"), "--count"),
        (("--flavor", "pair", "--count", "many"), "--count"),
        (("--flavor", "pair", "--config-file", "x"), "--snapshot and --config-file exclude each"),
        (("--flavor", "pair", "--config-dir", "x"), "--snapshot and --config-dir exclude each"),
        (("--flavor", "pear"), "there is no flavor 'pear'; there is: pair"),
        (("--flavor", "pair", "--host", "fit3"), "there is no host 'fit3'; there is: fit"),
        (("--flavor", "pair", "--image", "linux"), "was not read with image 'linux'"),
        (("--server", "s7"), "no host has a server 's7'"),
    ],
)
def test_bad_questions_end_with_status_2(run, words, text, capsys):
    try:
        status, out, err = run(*words)
    except SystemExit as error:  # argparse ends the program
        status = error.code
        out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [Explain, ShowCapacity, CreateFlavors])
def test_files_and_directories_go_together(command):
    """As Nova's own services take them, in the order in which they are given."""
    words = ["--config-dir", "d", "--config-file", "f", "--config-dir", "e"]
    wish = [] if command is CreateFlavors else ["--flavor", "pair"]
    args = command(None, None).get_parser("it").parse_args([*wish, *words])
    assert args.config == ["--config-dir=d", "--config-file=f", "--config-dir=e"]


def test_a_damaged_file_is_named(run, file):
    document = json.loads(file.read_text())
    document["hosts"][0]["devices"][0]["free"] = -1
    file.write_text(json.dumps(document))
    status, out, err = run("--flavor", "pair")
    assert (status, out) == (2, "")
    assert err == (
        f"nova-hpc explain: {file}: host fit1: devices 0000:40:00.0: free is -1; "
        "it must be 0 to 1000000\n"
    )


def test_groups_and_cells_are_named(tmp_path, capsys):
    node = clouds.node("one", [2, 2])
    node = attrs.evolve(node, devices=(*node.devices, clouds.vfs("one", 0), clouds.vfs("one", 1)))
    celled = clouds.flavor(
        wants={"gpu": 2, "vf": 2},
        affinity="numa",
        group="gpu:1,vf:1",
        cells=[WantedCell(id=0, dedicated_cpus=4)],
        numa_policy="required",
    )
    path = tmp_path / "celled.json"
    path.write_text(snapshot_document.dump_cloud_snapshot(clouds.cloud(node, flavors=[celled])))
    assert main(["explain", "--snapshot", str(path), "--flavor", "pair"]) == 0
    out = capsys.readouterr().out
    assert "2 groups; 1 guest NUMA cell" in out
    assert "guest cell 0 on NUMA node 0" in out
    assert "group 0 (cell 0)" in out
    assert "group 1 (cell 0)" in out


def test_ports_are_said_to_be_missing(tmp_path, capsys):
    """A flavor does not say which ports its servers will have."""
    path = tmp_path / "cloud.json"
    rails = clouds.flavor("rails", wants={"gpu": 2}, group="gpu:1, port:1")
    plain = clouds.flavor("plain", wants={"gpu": 2}, group="gpu:1")
    cloud = clouds.cloud(clouds.node("one", [2, 2]), flavors=[rails, plain])
    path.write_text(snapshot_document.dump_cloud_snapshot(cloud))
    for name, said in (("rails", True), ("plain", False)):
        assert main(["explain", "--snapshot", str(path), "--flavor", name]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "2 groups" in out
        assert ("no direct ports, which --port adds" in out) is said


def test_a_reader_that_is_closed_is_no_error(file):
    """As with ``| head``: no traceback, no complaint at exit."""
    done = subprocess.run(
        f"{sys.executable} -m nova_hpc_tools.main explain --snapshot {file} --flavor pair | true",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


def test_ascii_terminals(file):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nova_hpc_tools.main"),
            *("explain", "--snapshot", str(file), "--flavor", "pair", "--trees"),
        ],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "<- chosen" in done.stdout
    assert done.stdout.isascii()


def test_the_cloud_is_read_with_the_image(monkeypatch, capsys):
    asked = []

    def read(config, image):
        asked.append((list(config), image))
        return a_cloud()

    monkeypatch.setattr(cloud_readers, "_load_reader", {"nova": read}.get)
    words = ["--flavor", "pair", "--image", "rocky", "--config-file", "nova.conf"]
    # The reader of this cloud knows no image, so the question has no answer.
    assert main(["explain", *words]) == 2
    assert "rocky" in capsys.readouterr().err
    assert asked == [(["--config-file=nova.conf"], "rocky")]


ASKED = UnplacedRequest(
    servers=("s8", "s9"),
    name="mine",
    # As it was when they were made: the cloud's own asks for two.
    flavor=attrs.evolve(a_cloud().flavors[0], wants=(FlavorWant("gpu", 9),), image="rocky"),
    state="error",
    fault="No valid host was found.",
    request="req-1",
    notes=("devices for 2 ports",),
)


@pytest.mark.parametrize("words", [("--server", "mine"), ("--request", "req-1")])
def test_a_server_that_found_no_host(words, monkeypatch, capsys):
    asked = []

    def read(config, name, request):
        asked.append((name, request))
        return ASKED

    readers = {"nova": lambda config, image: a_cloud(), "nova_asked": read}
    monkeypatch.setattr(cloud_readers, "_load_reader", readers.get)
    assert main(["explain", *words]) == 1
    out = capsys.readouterr().out
    assert asked == [("mine", None) if words[0] == "--server" else (None, "req-1")]
    assert "2 servers, the first is mine (s8), error, made by req-1" in out
    assert "Its user reads: No valid host was found." in out
    assert "not looked at: devices for 2 ports" in out
    assert "Flavor pair with image rocky: 9 gpu; affinity switch (required)" in out
    assert "It fits on none of" in out
    assert main(["explain", *words, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["asked"]["servers"] == ["s8", "s9"]
    assert document["count"] == 2


def test_a_server_with_devices_is_not_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(
        cloud_readers, "_load_reader", {"nova": lambda config, image: a_cloud()}.get
    )
    assert main(["explain", "--server", "s1"]) == 0
    assert "Decided: affinity switch" in capsys.readouterr().out


def test_without_nova_the_cure_is_named(monkeypatch, capsys):
    class Entry:
        def load(self):
            raise ModuleNotFoundError("No module named 'nova'")

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [Entry()])
    with pytest.raises(
        cloud_readers.SnapshotError, match="where nova-manage runs, or use --snapshot"
    ):
        cloud_readers.obtain_snapshot(None)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    with pytest.raises(cloud_readers.SnapshotError, match="install it again"):
        cloud_readers.obtain_snapshot(None)
