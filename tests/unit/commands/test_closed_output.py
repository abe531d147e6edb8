# SPDX-License-Identifier: Apache-2.0
"""A reader that goes away is no success: real processes, real pipes, every command.

``configure --write DIR | head -1`` wrote nothing and ended with 0.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_tools.base import ListCommand, RecordCommand, _BaseCommand
from nova_hpc_tools.main import main
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.cloud import test_explain_command
from tests.unit.guest import conftest as guest_fixtures
from tests.unit.node_files import snapshot
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make
from tools.wheels import read_entry_points

guest = guest_fixtures.guest
TOP = Path(__file__).parents[3]
COMMAND = "import sys; from nova_hpc_tools.main import main; sys.exit(main())"
#: The same where libvirt answers, and has no guests.
WITH_LIBVIRT = f"""import sys
from tests.unit.node_files import Libvirt
sys.modules["libvirt"] = Libvirt()
{COMMAND}"""
GUEST = "import sys; from nova_hpc_guest.command import main; sys.exit(main())"
CLOSED = 141
#: Of a command that has changed something.
DONE = "the command has completed its task"


def run(words, code=COMMAND, unbuffered=True, both=False, stdout=None, **more):
    """Run a command whose reader has gone before it says anything.

    :param unbuffered: each text is written at once: it breaks off in the midst of the work.
    :param both: standard error goes the same way.
    """
    out, closed = os.pipe()
    os.close(out)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("OS_")},
        "PYTHONPATH": f"{TOP}:{TOP / 'lab'}",
        **({"PYTHONUNBUFFERED": "1"} if unbuffered else {}),
        **more,
    }
    try:
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, words)],
            stdout=closed if stdout is None else stdout,
            stderr=closed if both else subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=environment,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        os.close(closed)


@pytest.fixture
def node(tmp_path):
    """A node whose devices have a baseline, and the words that name it."""
    found = make(tmp_path / "node")
    (tmp_path / "nova.conf").write_text(
        f"[DEFAULT]\nstate_path = {tmp_path}\n[hpc]\nsysfs_root = {found.root}\n"
        f"ledger_file = {found.state}\nreset_timeout = 20\n"
    )
    found.step().sweep(found.candidates(GPU, OTHER), frozenset)
    return found


@pytest.fixture
def config(tmp_path):
    return ["--config-file", tmp_path / "nova.conf"]


# -- work is done ------------------------------------------------------------------------


@pytest.mark.parametrize("both", [False, True], ids=["out", "out and err"])
@pytest.mark.parametrize("unbuffered", [False, True], ids=["at the end", "at once"])
def test_configure_writes_what_it_was_told_to(
    machine, tmp_path, monkeypatch, capsys, unbuffered, both
):
    told, whole = tmp_path / "nova.conf.d", tmp_path / "whole.conf.d"
    home = str(tmp_path)
    monkeypatch.setenv("HOME", home)
    assert main(["configure", "--root", str(machine), "--write", str(whole)]) == 0
    words = ["configure", "--root", machine, "--write", told]
    done = run(words, unbuffered=unbuffered, both=both, HOME=home)
    assert done.returncode == CLOSED
    assert snapshot(told).keys() == snapshot(whole).keys()
    if not both:
        assert f"nova-hpc configure: the output was not read to its end; {DONE}" in done.stderr
        assert "Traceback" not in done.stderr
    # All of it, the record for --undo included.
    capsys.readouterr()
    assert main([*map(str, words), "-f", "json"]) == 0
    states = {row["State"] for row in json.loads(capsys.readouterr().out)}
    assert states == {"unchanged"}


def test_head_reads_one_line(machine, tmp_path):
    """As operators type it."""
    folder = tmp_path / "nova.conf.d"
    command = (
        f"{sys.executable} -u -c '{COMMAND}' configure --root {machine} --write {folder} | head -1"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env={**os.environ, "PYTHONPATH": str(TOP), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == CLOSED, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert list(folder.glob("*.conf"))


def test_the_undo_of_configure(machine, tmp_path):
    folder = tmp_path / "nova.conf.d"
    words = ["configure", "--root", machine, "--write", folder]
    assert run(words, HOME=str(tmp_path)).returncode == CLOSED
    assert run([*words, "--undo"], HOME=str(tmp_path)).returncode == CLOSED
    assert not list(folder.glob("*.conf"))


def test_a_full_disk_is_said(machine, tmp_path):
    folder = tmp_path / "nova.conf.d"
    with Path("/dev/full").open("w") as full:
        done = run(
            ["configure", "--root", machine, "--write", folder], stdout=full, HOME=str(tmp_path)
        )
    assert done.returncode == 2
    assert f"could not be written: no space left on device; {DONE}" in done.stderr
    assert list(folder.glob("*.conf"))


def test_an_output_that_is_closed_from_the_start(machine, tmp_path):
    """The next file that is opened must not be taken for the output."""
    folder = tmp_path / "nova.conf.d"
    done = subprocess.run(
        [
            *("bash", "-c", f"{sys.executable} -c '{COMMAND}' \"$@\" >&-", "bash"),
            *("configure", "--root", str(machine), "--write", str(folder)),
        ],
        env={**os.environ, "PYTHONPATH": str(TOP), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "could not be written: it is closed" in done.stderr
    assert all(not text.startswith("---") for text in snapshot(folder).values())


def test_prepare_writes_and_removes(machine, tmp_path):
    home = {"HOME": str(tmp_path)}
    run(["configure", "--root", machine, "--write", tmp_path / "nova.conf.d"], **home)
    words = ["prepare", "--root", machine, "--declaration", tmp_path / "nova.conf.d" / "node.yaml"]
    target = tmp_path / "host"
    (target / "etc").mkdir(parents=True)
    with (tmp_path / "read").open("w") as file:
        reference = run([*words, "--write", target], stdout=file, **home)
    assert reference.returncode == 0, reference.stderr
    other = tmp_path / "other"
    (other / "etc").mkdir(parents=True)
    assert run([*words, "--write", other], **home).returncode == CLOSED
    written = [
        {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
        for folder in (target, other)
    ]
    assert written[0] == written[1] != set()
    assert run([*words, "--write", other, "--remove"], **home).returncode == CLOSED
    assert not [each for each in other.rglob("*") if each.is_file()]


def test_devices_are_changed(node, config):
    def state():
        return node.ledger.device(GPU).state.value

    for words, then in (
        (["device", "quarantine", GPU, "--reason", "ticket"], "quarantined"),
        (["device", "release", GPU], "offered"),
    ):
        done = run([*words, *config], WITH_LIBVIRT)
        assert (done.returncode, state()) == (CLOSED, then), done.stderr
        assert DONE in done.stderr
    node.config(GPU, capabilities=(0x01,))
    before = node.ledger.device(GPU).baseline
    done = run(["device", "accept", GPU, "--reason", "ticket", *config], WITH_LIBVIRT)
    assert done.returncode == CLOSED, done.stderr
    assert node.ledger.device(GPU).baseline != before
    words = ["device", "maintenance", "--start", "--for", "2h", "--reason", "ticket"]
    assert run([*words, *config]).returncode == CLOSED
    assert node.ledger.maintenance.reason == "ticket"


def test_an_inventory_is_saved(machine, tmp_path):
    file = tmp_path / "node.tar.xz"
    done = run(["inventory", "--root", machine, "--save", file])
    assert (done.returncode, file.stat().st_size > 500) == (CLOSED, True)
    assert DONE in done.stderr


SYNC = """
import sys
from nova_hpc_tools.fabric import sync_command
from nova_hpc_tools.main import main


class Cloud:
    made = 0

    def aggregates(self):
        return ()

    def hosts(self):
        return frozenset(f"n{each}" for each in range(1, 9))

    def apply(self, step):
        with open(sys.argv.pop(1) if Cloud.made == 0 else Cloud.file, "a") as file:
            Cloud.file = file.name
            file.write(f"{step.kind}\\n")
        Cloud.made += 1


file = sys.argv[1]
sync_command.SyncFabric.cloud = lambda self, args: Cloud()
sys.exit(main(sys.argv[2:]))
"""


def test_the_fabric_is_synchronised_to_its_end(tmp_path):
    (tmp_path / "topology.conf").write_text(
        "SwitchName=l1 Nodes=n[1-4]\nSwitchName=l2 Nodes=n[5-8]\nSwitchName=s1 Switches=l[1-2]\n"
    )
    words = ["fabric", "sync", tmp_path / "topology.conf", "--yes", "--no-clusters"]
    steps = []
    for name in ("read", "closed"):
        with (tmp_path / "out").open("w") as file:
            done = run([tmp_path / name, *words], SYNC, stdout=file if name == "read" else None)
        steps.append((tmp_path / name).read_text().splitlines())
        # The aggregates differ from the map, which has a status of its own.
        assert "another program has changed them" in done.stderr
        assert done.returncode not in (0, CLOSED)
    assert steps[0] == steps[1]
    assert len(steps[0]) > 3


# -- what only looks something up ----------------------------------------------------------


@pytest.fixture
def files(machine, node, tmp_path, name):
    """What the command *name* of READS is given."""
    cloud = tmp_path / "cloud.json"
    cloud.write_text(snapshot_document.dump_cloud_snapshot(test_explain_command.a_cloud()))
    (tmp_path / "nodes.csv").write_text("name,type,cpus,memory_mib,gpus,count\nn,n,9,9,8,2\n")
    (tmp_path / "requests.csv").write_text("name,cpus,memory_mib,gpus,count\none,1,1,3,9\n")
    (tmp_path / "map.conf").write_text("SwitchName=l1 Nodes=n[1-4]\nSwitchName=l2 Nodes=n[5-8]\n")
    for number in (1, 2) if name == "doctor of a fleet" else ():
        file = tmp_path / f"n{number}.tar.xz"
        with (tmp_path / "said").open("w") as said:
            run(["inventory", "--root", machine, "--save", file], stdout=said)
    return tmp_path


#: What is typed, with {} for the folder of :func:`files`.
READS = {
    "inventory": "inventory --root {}/machine",
    "inventory in JSON": "inventory --root {}/machine -f json",
    "doctor of a fleet": "doctor --fleet {}/n1.tar.xz {}/n2.tar.xz",
    "configure": "configure --root {}/machine",
    "capacity": "capacity --snapshot {}/cloud.json --flavor pair",
    "when": "when --snapshot {}/cloud.json --flavor pair",
    "explain": "explain --snapshot {}/cloud.json --flavor pair",
    "explain a server": "explain --snapshot {}/cloud.json --server s1 -f yaml",
    "simulate": "simulate --nodes {}/nodes.csv --requests {}/requests.csv --jobs 1 --seeds 1 "
    "--policy nova-pack",
    "doctor": "doctor --root {}/machine --part compute",
    "prepare": "prepare --root {}/machine",
    "device list": "device list --config-file {}/nova.conf",
    "device show": f"device show {GPU} --config-file {{}}/nova.conf",
    "device check": f"device check {GPU} --config-file {{}}/nova.conf",
    "device maintenance": "device maintenance --config-file {}/nova.conf",
    "reservations": "device list --reserved --config-file {}/nova.conf -f json",
    "fabric show": "fabric show {}/map.conf",
    "fabric diff": "fabric diff {}/map.conf {}/map.conf -f json",
    "fabric export": "fabric export {}/map.conf",
    "upgrade check": "status upgrade check --config-file {}/nova.conf",
    "install-shim": f"install-shim --check --python {sys.executable}",
    "NVLink partitions": "device list --nvlink --config-file {}/nova.conf -f json",
    "help": "help",
    "help of one": "inventory --help",
    "version": "--version",
}


#: All go through one base (see below): a few of each kind of output are in the standard set.
QUICK = ("inventory in JSON", "capacity", "doctor", "device list", "fabric export", "help")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in READS],
)
def test_what_is_not_read_is_no_success(files, name):
    words = READS[name].format(*[files] * 2).split()
    with (files / "out").open("w") as file:
        reference = run(words, stdout=file, HOME=str(files))
    assert (files / "out").read_text() or reference.returncode
    done = run(words, HOME=str(files))
    assert done.returncode == (reference.returncode or CLOSED), done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# -- all of them ---------------------------------------------------------------------------


def entry_points(group):
    for name, place in read_entry_points()[group].items():
        module, _, attribute = place.partition(":")
        # The lab's commands end when their reader does.
        if not module.startswith("nova_hpc_lab."):
            yield name, getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("name", "command"), list(entry_points("nova_hpc.command")))
def test_every_command_is_made_of_the_one_that_knows(name, command):
    assert issubclass(command, (ListCommand, RecordCommand))
    assert command.run is _BaseCommand.run
    dests = {action.dest for action in command(None, None).get_parser(name)._actions}
    assert set(command.acts_with or ()) <= dests


@pytest.mark.parametrize(("name", "command"), list(entry_points("openstack.hpc.v1")))
def test_every_command_of_the_plug_in_as_well(name, command):
    assert command.run is HeardOutput.run, name


PLUGIN = """
import sys
from pathlib import Path
from cliff.app import App
from cliff.commandmanager import CommandManager
from osc_lib.command import command
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.output.printing import InertOutput


class Make(HeardOutput, InertOutput, command.ShowOne):
    "Make something"

    def get_parser(self, name):
        parser = super().get_parser(name)
        parser.add_argument("file")
        return parser

    def take_action(self, args):
        for number in range(3):
            print("working", number, file=sys.stderr)
            print("working", number)
            with open(args.file, "a") as file:
                file.write(f"{number}")
        return ("a",), ("x" * 9,)


manager = CommandManager("nova_hpc.nothing")
manager.add_command("make", Make)
app = App("x", "1", manager)
app.client_manager = app.api_version = None
sys.exit(app.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("both", [False, True])
def test_a_command_of_the_plug_in_ends_its_work(tmp_path, both):
    done = run(["make", tmp_path / "made"], textwrap.dedent(PLUGIN), both=both)
    assert (done.returncode, (tmp_path / "made").read_text()) == (CLOSED, "012"), done.stderr
    assert both or DONE in done.stderr


# -- in the guest ---------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("words", ["show", "show --format json", "check", "install"])
def test_the_guest_s_command(guest, words, unbuffered):
    done = run([*words.split(), "--root", guest.root], GUEST, unbuffered=unbuffered)
    assert done.returncode == 2
    assert "was not read to its end" in done.stderr
    assert "Traceback" not in done.stderr
