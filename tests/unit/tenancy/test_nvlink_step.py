# SPDX-License-Identifier: Apache-2.0
"""Partitions around servers, through the library, with a manager that can be restarted."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from oslo_config import cfg

from nova_hpc import conf
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile, copy_of
from nova_hpc.tenancy.nvlink import backend as nvlink_backend
from nova_hpc.tenancy.nvlink import fabric_manager_call
from nova_hpc.tenancy.nvlink import step as nvlink_step
from nova_hpc.tenancy.nvlink.backend import BackendError, NotSharedError, WaitsError
from nova_hpc.tenancy.nvlink.partitions import (
    NOBODY,
    NoPartitionError,
    NvlinkFabricError,
    NvlinkPartition,
)
from nova_hpc.tenancy.nvlink.step import NvlinkStep
from nova_hpc.wire.ledger import SOMEBODY
from tests.fabric_manager import FabricManager, library

GPUS = {number: f"0000:4{number}:00.0" for number in range(1, 5)}
ONE, TWO, THREE, FOUR = GPUS.values()
LEFT, RIGHT = frozenset({ONE, THREE}), frozenset({TWO, FOUR})
ALL = LEFT | RIGHT


@pytest.fixture
def options(tmp_path):
    """Group [hpc] of a configuration file."""

    def read(**values):
        lines = [f"nvlink_{key} = {value}\n" for key, value in values.items()]
        path = tmp_path / "nova.conf"
        path.write_text(
            "".join(
                [
                    "[hpc]\n",
                    f"ledger_file = {tmp_path}/state\n",
                    *lines,
                ]
            )
        )
        found = cfg.ConfigOpts()
        conf.register_all_options(found)
        found.register_opt(cfg.StrOpt("state_path", default=str(tmp_path)))
        found([], default_config_files=[str(path)], default_config_dirs=[])
        return found.hpc

    return read


@pytest.fixture
def manager(tmp_path):
    # As the library writes them: eight digits, capitals.
    return FabricManager(tmp_path, {key: f"0000{text.upper()}" for key, text in GPUS.items()})


@pytest.fixture
def links(manager, options):
    return links_of(options(backend="fabric-manager", address=manager.path, library=library()))


def links_of(options):
    return NvlinkStep.from_options(options, LedgerFile.from_options(options, of_compute=True))


def restarted(links):
    """Nothing but the file is left of the service."""
    return attrs.evolve(links)


def recorded(links):
    return {key: one.server for key, one in links.state().tenancies.items()}


# --- servers come and go ------------------------------------------------------------


def test_exactly_the_partition_of_the_server(links, manager):
    partitions = links.reach(ALL)
    assert partitions[1] == NvlinkPartition(1, LEFT, active=False, links=12)
    assert partitions[3] == NvlinkPartition(3, frozenset({ONE}), active=False, links=0)
    links.give("a", LEFT, (), True)
    assert manager.calls() == ["activate 1"]
    links.give("b", {TWO}, LEFT, True)
    assert manager.active == {1, 4}
    assert recorded(links) == {1: "a", 4: "b"}
    links.keep("a", LEFT, {TWO}, True)
    assert manager.calls() == ["activate 4"]
    with pytest.raises(NoPartitionError):
        links.give("c", {THREE, FOUR}, (), True)
    assert links.take_back("a") == {}
    assert links.take_back("nobody") == {}
    assert manager.active == {4}
    assert recorded(links) == {4: "b"}
    # An operator has linked them for a test; nobody has them now.
    links.take_back("b")
    manager.activate(0)
    manager.calls()
    links.give("c", RIGHT, (), True)
    assert manager.calls() == ["deactivate 0", "activate 2"]


def test_what_a_lost_server_has_left_goes_with_the_next_look(links, manager):
    links.give("a", LEFT, (), True)
    links.give("b", RIGHT, LEFT, True)
    links = restarted(links)
    assert links.sweep(lambda: RIGHT).reasons == {}
    assert manager.active == {2}
    assert recorded(links) == {2: "b"}
    # Without any look: whoever gets one of the GPUs next.
    links.give("c", {TWO}, (), False)
    assert manager.active == {4}
    assert recorded(links) == {4: "c"}


def test_a_service_that_is_killed_between_activation_and_start(links, manager, tmp_path):
    """By SIGKILL, before and after the call; Nova has the GPUs free again afterwards."""
    script = tmp_path / "service.py"
    script.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nova_hpc.tenancy.nvlink.backend import NvlinkSettings, load_nvlink_backend\n"
        "from nova_hpc.tenancy.nvlink.step import NvlinkStep, run_fabric_call\n"
        "from nova_hpc.tenancy.ledger import LedgerFile\n"
        "settings = NvlinkSettings(sys.argv[1], 20.0, sys.argv[2])\n"
        "backend = load_nvlink_backend('fabric-manager', settings, run_fabric_call)\n"
        "links = NvlinkStep(backend, LedgerFile(Path(sys.argv[3])))\n"
        "def killed(each): \n"
        "    if sys.argv[4] == 'after': activate(each)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "activate, links.backend.activate = links.backend.activate, killed\n"
        f"links.give('a', {sorted(LEFT)!r}, (), True)\n"
    )
    for moment, active in (("before", set()), ("after", {1})):
        argv = [
            sys.executable,
            str(script),
            str(manager.path),
            library(),
            str(links.ledger.path),
            moment,
        ]
        ended = subprocess.run(argv, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False)  # noqa: PTH109
        assert ended.returncode == -signal.SIGKILL
        assert manager.active == active
        assert recorded(links) == {1: "a"}
        # The server is still in Nova's database, in error: it has its GPUs.
        assert links.sweep(lambda: LEFT).reasons == {}
        assert manager.active == active
        assert links.sweep(frozenset).reasons == {}
        assert manager.active == set()
        assert recorded(links) == {}


def test_servers_that_are_older_than_the_records(links, manager):
    manager.activate(1)
    links.sweep(lambda: LEFT | {TWO})
    assert recorded(links) == {1: SOMEBODY}
    links.keep("a", LEFT, {TWO}, False)
    assert recorded(links) == {1: "a"}
    assert manager.calls() == []


# --- the manager ends and starts ---------------------------------------------------


def test_a_manager_that_waits_for_the_list_is_told(links, manager):
    links.give("a", LEFT, (), True)
    links.give("b", {TWO}, LEFT, True)
    for act, called in (
        (lambda: restarted(links).reach(ALL), "set 1 4"),
        (lambda: links.sweep(lambda: LEFT | {TWO}), "set 1 4"),
        (lambda: links.restore(), "set 1 4"),
        (lambda: links.keep("a", LEFT, {TWO}, True), "set 1 4"),
        # b is gone from Nova's records: it is not told.
        (lambda: links.sweep(lambda: LEFT), "set 1"),
    ):
        manager.restart()
        manager.calls()
        act()
        assert manager.calls() == [called]
    assert recorded(links) == {1: "a"}
    manager.restart()
    manager.calls()
    links.take_back("a")
    assert manager.calls() == ["set"]
    assert manager.active == set()
    manager.restart()
    links.give("c", RIGHT, (), True)
    assert manager.active == {2}


def test_a_manager_with_a_new_fabric(links, manager):
    links.give("a", LEFT, (), True)
    manager.start_afresh()
    found = links.sweep(lambda: LEFT)
    assert found.reasons == {}
    assert found.notes == (
        "NVLink partition 1 of server a is not active; the server has NVLinks again when it is "
        "stopped and started",
    )
    links.keep("a", LEFT, (), True)
    assert manager.active == {1}


def lose(links, text):
    """A ledger that says something else, and has no copy."""
    copy_of(links.ledger.path).unlink(missing_ok=True)
    links.ledger.path.write_text(text)


def test_a_lost_file_cuts_nobodys_links(links, manager):
    links.give("a", LEFT, (), True)
    whole = '{"v": 1, "devices": {}, "nvlink": %s}'
    for text in (
        "{",
        '{"v": 2, "devices": {}}',
        whole % "null",
        whole % '{"gpus": [], "partitions": {"x": 1}}',
        whole % '{"gpus": ["x"], "partitions": {}}',
        whole % '{"gpus": [], "partitions": []}',
    ):
        lose(links, text)
        manager.restart()
        manager.calls()
        found = links.sweep(lambda: LEFT, {FOUR})
        assert "the node does not know which partitions servers have" in found.reasons[FOUR]
        with pytest.raises(NvlinkFabricError, match="the ledger"):
            links.give("b", {FOUR}, LEFT, False)
        assert manager.calls() == []
        assert links.ledger.path.read_text() == text
    # One that was not restarted tells everything.
    manager.activate(1)
    manager.set("mode", "shared")
    links.sweep(lambda: LEFT)
    assert recorded(links) == {1: SOMEBODY}


def test_a_ledger_that_cannot_be_read_is_not_written_anew(links, manager):
    """Though the manager tells everything of partitions, the ledger has more than these."""
    links.give("a", LEFT, (), True)
    lose(links, "{")
    with pytest.raises(LedgerError, match="repair or remove it first"):
        links.sweep(lambda: LEFT)
    assert links.ledger.path.read_text() == "{"
    assert manager.active == {1}
    links.ledger.path.unlink()
    links.sweep(lambda: LEFT)
    assert recorded(links) == {1: SOMEBODY}


# --- it does not work -----------------------------------------------------------------


def test_a_manager_that_fails_refuses_and_withholds(links, manager):
    links.reach(ALL)
    manager.set("fail", "fmActivateFabricPartition", -2)
    with pytest.raises(
        NvlinkFabricError, match=r"fmActivateFabricPartition\(1\) failed: unspecified"
    ):
        links.give("a", LEFT, (), True)
    manager.clear("fail")
    # It says that it has, and has not.
    manager.set("deaf", "fmActivateFabricPartition")
    with pytest.raises(NvlinkFabricError, match=r"partitions \[\] are active, and \[1\] should be"):
        links.give("a", LEFT, (), True)
    manager.clear("deaf")
    links.give("a", LEFT, (), True)
    manager.set("fail", "fmDeactivateFabricPartition", -10)
    (why,) = links.take_back("a").values()
    assert "fmDeactivateFabricPartition(1) failed: NVLink error (-10)" in why
    found = links.sweep(frozenset)
    assert found.reasons.keys() == LEFT
    # Nobody else gets them while they may be linked.
    with pytest.raises(NvlinkFabricError, match="NVLink error"):
        links.give("b", {ONE}, (), False)
    assert recorded(links) == {1: NOBODY, 3: "b"}
    manager.clear("fail")
    # Nova may say that b has its GPU still: what b has not got is gone all the same.
    assert links.sweep(lambda: frozenset({ONE})).reasons == {}
    assert manager.active == set()
    assert recorded(links) == {3: "b"}
    manager.path.rename(manager.path.with_name("gone"))
    reasons = links.sweep(frozenset).reasons
    assert reasons.keys() == ALL
    assert "it cannot be reached (-9)" in reasons[ONE]
    with pytest.raises(NvlinkFabricError, match="cannot be reached"):
        links.give("b", LEFT, (), True)


def test_a_manager_that_hangs_is_left_alone(manager, tmp_path):
    settings = nvlink_backend.NvlinkSettings(str(manager.path), 0.1, library())
    backend = nvlink_backend.load_nvlink_backend(
        "fabric-manager", settings, nvlink_step.run_fabric_call
    )
    hanging = NvlinkStep(backend, LedgerFile(tmp_path / "state"))
    manager.set("hang", "fmActivateFabricPartition")
    with pytest.raises(NvlinkFabricError, match="did not answer within"):
        hanging.give("a", LEFT, (), True)
    manager.clear("hang")
    assert hanging.sweep(frozenset).reasons == {}
    assert recorded(hanging) == {}


def test_servers_that_start_at_once_are_set_one_after_the_other(links, manager):
    manager.activate(0)
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(links.give, gpu, {gpu}, (), False) for gpu in GPUS.values()]
        for job in jobs:
            job.result()
    assert manager.active == {3, 4, 5, 6}
    assert recorded(links) == {2 + number: gpu for number, gpu in GPUS.items()}


# --- the settings, and the other side of the library ---------------------------------


def test_none_is_nobody(options):
    assert links_of(options()) is None


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"backend": "amd"}, "[hpc]nvlink_backend: 'amd' cannot be loaded"),
        ({"address": "fabric:6666"}, "[hpc]nvlink_address is 'fabric:6666', not an IPv4"),
        ({"address": "127.0.0.1:66666"}, "not an IPv4 address with a port"),
        ({"address": "/" * 300}, "nor the path of a Unix socket"),
        ({"address": "10.0.0.1:6666"}, "name them in [hpc]nvlink_gpus"),
        ({"gpus": f"x:{ONE}"}, "[hpc]nvlink_gpus: 'x' is no physical id"),
        ({"gpus": "1:41:00.0"}, "[hpc]nvlink_gpus: '41:00.0' is not a PCI address"),
        ({"gpus": f"1:{ONE},2:{ONE}"}, "[hpc]nvlink_gpus names 0000:41:00.0 twice"),
    ],
)
def test_bad_settings_are_named_with_the_cure(options, values, why):
    with pytest.raises(BackendError) as caught:
        links_of(options(**{"backend": "fabric-manager", **values}))
    assert why in str(caught.value)


def test_a_manager_of_another_kind(links, manager, tmp_path):
    manager.set("mode", "bare")
    with pytest.raises(NotSharedError, match="set FABRIC_MODE=1"):
        links.reach(ALL)
    manager.set("mode", "starting")
    with pytest.raises(NvlinkFabricError, match="not configured yet"):
        links.reach(ALL)
    with pytest.raises(WaitsError):
        links.backend.partitions()
    manager.set("mode", "shared")
    with pytest.raises(
        NvlinkFabricError, match=r"has a GPU at 0000:43:00\.0, where this node has no"
    ):
        links.reach(ALL - {THREE})
    # Older libraries take the older layout only.
    manager.set("sdk", 1)
    assert len(links.reach(ALL)) == 7
    for path, why in (("no.so", "cannot be used: no.so"), ("libc.so.6", "undefined symbol")):
        backend = type(links.backend)(
            attrs.evolve(links.backend.settings, library=path), nvlink_step.run_fabric_call
        )
        with pytest.raises(NvlinkFabricError, match=why):
            backend.partitions()


def test_a_library_that_crashes_is_no_crash_of_the_service(links):
    crashed = type(links.backend)(links.backend.settings, lambda argv, limit: (-11, "oh no"))
    with pytest.raises(NvlinkFabricError, match="ended with status -11: oh no"):
        crashed.partitions()


def test_gpus_without_an_address_are_named_by_the_operator(options, tmp_path):
    manager = FabricManager(tmp_path, dict.fromkeys(GPUS, "-"))

    def partitions(**values):
        return links_of(
            options(backend="fabric-manager", address=manager.path, library=library(), **values)
        ).backend.partitions()

    with pytest.raises(
        NvlinkFabricError, match=r"physical id 1; name all of them in \[hpc\]nvlink_gpus"
    ):
        partitions()
    named = [f"{number}:{text}" for number, text in GPUS.items()]
    assert partitions(gpus=",".join(named))[0].gpus == ALL
    with pytest.raises(
        NvlinkFabricError, match=r"physical id 4, which \[hpc\]nvlink_gpus does not"
    ):
        partitions(gpus=",".join(named[:3]))


def test_the_layouts_are_those_of_the_headers():
    """Sizes and version numbers as a C compiler gives them for NVIDIA's declarations."""
    call = fabric_manager_call
    found = {
        name: call.version_of(layout, number)
        for name, layout, number in (
            ("connect", call.ConnectV1, 1),
            ("connect 2", call.ConnectV2, 2),
            ("partitions", call.PartitionListStruct, 1),
            ("active", call.ActivePartitionsStruct, 1),
        )
    }
    assert found == {
        "connect": 1 << 24 | 268,
        "connect 2": 2 << 24 | 272,
        "partitions": 1 << 24 | 131852,
        "active": 1 << 24 | 264,
    }
