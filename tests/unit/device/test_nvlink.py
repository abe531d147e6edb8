# SPDX-License-Identifier: Apache-2.0
"""The NVLink options of ``device list`` and ``doctor``, as an operator types them."""

import json

import pytest

from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.nvlink.backend import NvlinkSettings, load_nvlink_backend
from nova_hpc.tenancy.nvlink.step import NvlinkStep
from nova_hpc.tenancy.nvlink.step import run_fabric_call as run_program
from nova_hpc_tools.main import main
from tests.fabric_manager import FabricManager, library

COMMANDS = {
    "list": ("device", "list", "--nvlink"),
    "check": ("doctor", "--nvlink"),
    "restore": ("doctor", "--restore-nvlink"),
    # As units of systemd still have it.
    "former restore": ("nvlink", "restore"),
}
GPUS = {number: f"0000:4{number}:00.0" for number in range(1, 5)}


@pytest.fixture
def manager(tmp_path):
    return FabricManager(tmp_path, GPUS)


@pytest.fixture
def ask(manager, tmp_path, capsys):
    def run(name, *words, more=""):
        (tmp_path / "nova.conf").write_text(
            f"[DEFAULT]\nstate_path = {tmp_path}\n[hpc]\nsysfs_root = {tmp_path}\n"
            f"nvlink_backend = fabric-manager\nnvlink_address = {manager.path}\n"
            f"nvlink_library = {library()}\n{more}"
        )
        status = main([*COMMANDS[name], *words, "--config-file", str(tmp_path / "nova.conf")])
        out, err = capsys.readouterr()
        return status, out, err.replace(f"Ledger: {tmp_path}/hpc-ledger.json\n", "")

    return run


def test_an_operator_sees_whose_partition_it_is(ask, manager, tmp_path):
    settings = NvlinkSettings(str(manager.path), 20.0, library())
    backend = load_nvlink_backend("fabric-manager", settings, run_program)
    links = NvlinkStep(backend, LedgerFile(tmp_path / "hpc-ledger.json"))
    links.give("server", {GPUS[1], GPUS[3]}, (), True)
    status, out, err = ask("list", "--format", "json")
    assert (status, err) == (0, "")
    rows = {row["Partition"]: row for row in json.loads(out)}
    assert rows[1] == {
        "Partition": 1,
        "GPUs": "0000:41:00.0 0000:43:00.0",
        "NVLinks": 12,
        "Active": True,
        "Server": "server",
    }
    assert (rows[3]["NVLinks"], rows[3]["Active"], rows[3]["Server"]) == (0, False, "")
    manager.restart()
    status, out, err = ask("list")
    assert (status, out) == (2, "")
    assert err.startswith("nova-hpc device list: Fabric Manager at ")
    assert "not configured yet" in err
    assert ask("restore") == (0, "Active partitions: 1\n", "")
    assert manager.active == {1}
    manager.restart()
    status, out, err = ask("former restore")
    assert (status, out) == (0, "Active partitions: 1\n")
    # Once for each call of main in this process.
    assert set(err.splitlines()) == {
        "nova-hpc: nvlink restore is now nova-hpc doctor --restore-nvlink"
    }
    assert manager.active == {1}


def test_without_a_ledger_nothing_is_told(ask, manager, tmp_path):
    """A list of no partition would end those of all servers."""
    for words in ("list", "restore"):
        status, out, err = ask(words)
        assert (status, out) == (2, "")
        assert f"no ledger at {tmp_path}/hpc-ledger.json" in err
    assert manager.active == set()


def test_the_sets_of_the_configuration(ask):
    """What the command prints makes the next check pass."""
    wrong = 'nvlink_set = {"name": "odd", "devices": ["0000:41:00.0", "0000:42:00.0"]}\n'
    status, out, err = ask("check", more=wrong)
    assert (status, err) == (1, "")
    first, *lines = out.splitlines(keepends=True)
    assert first == "NVLink set 'odd' is no partition: remove it from [hpc]nvlink_set\n"
    assert len(lines) == 3
    assert '"name": "partition-1", "devices": ["0000:41:00.0", "0000:43:00.0"]' in "".join(lines)
    status, out, _ = ask("check", more="".join(lines))
    assert (status, out) == (0, "The NVLink sets of this node are the partitions.\n")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("nvlink_backend = none\n", "[hpc]nvlink_backend is none: this node has no partitions"),
        ("nvlink_timeout = soon\n", "the configuration cannot be read"),
        ("nvlink_address = nowhere\n", "[hpc]nvlink_address is 'nowhere'"),
        ("nvlink_set = left\n", "[hpc]nvlink_set, entry 1, 'left': not JSON"),
    ],
)
def test_what_cannot_be_used_is_one_line(ask, more, why):
    status, out, err = ask("check", more=more)
    assert (status, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1
