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
from nova_hpc.tenancy.nvlink import backend as nvlink_backend
from nova_hpc.tenancy.nvlink import fabric_manager_call
from nova_hpc.tenancy.nvlink import keeper as nvlink_keeper
from nova_hpc.tenancy.nvlink.backend import BackendError, NotSharedError, WaitsError
from nova_hpc.tenancy.nvlink.keeper import Keeper
from nova_hpc.tenancy.nvlink.partitions import (
    NOBODY,
    SOMEBODY,
    FabricError,
    NoPartitionError,
    Partition,
)
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
        path.write_text("".join(["[hpc]\n", f"nvlink_file = {tmp_path}/state\n", *lines]))
        found = cfg.ConfigOpts()
        conf.register(found)
        found([], default_config_files=[str(path)], default_config_dirs=[])
        return found.hpc

    return read


@pytest.fixture
def manager(tmp_path):
    # As the library writes them: eight digits, capitals.
    return FabricManager(tmp_path, {key: f"0000{text.upper()}" for key, text in GPUS.items()})


@pytest.fixture
def keeper(manager, options):
    return Keeper.from_options(
        options(backend="fabric-manager", address=manager.path, library=library())
    )


def restarted(keeper):
    """Nothing but the file is left of the service."""
    return attrs.evolve(keeper)


def recorded(keeper):
    return {key: one.server for key, one in keeper.state().tenancies.items()}


# --- servers come and go ------------------------------------------------------------


def test_exactly_the_partition_of_the_server(keeper, manager):
    partitions = keeper.begin(ALL)
    assert partitions[1] == Partition(1, LEFT, active=False, links=12)
    assert partitions[3] == Partition(3, frozenset({ONE}), active=False, links=0)
    keeper.give("a", LEFT, (), True)
    assert manager.calls() == ["activate 1"]
    keeper.give("b", {TWO}, LEFT, True)
    assert manager.active == {1, 4}
    assert recorded(keeper) == {1: "a", 4: "b"}
    keeper.keep("a", LEFT, {TWO}, True)
    assert manager.calls() == ["activate 4"]
    with pytest.raises(NoPartitionError):
        keeper.give("c", {THREE, FOUR}, (), True)
    assert keeper.take_back("a") == {}
    assert keeper.take_back("nobody") == {}
    assert manager.active == {4}
    assert recorded(keeper) == {4: "b"}
    # An operator has linked them for a test; nobody has them now.
    keeper.take_back("b")
    manager.activate(0)
    manager.calls()
    keeper.give("c", RIGHT, (), True)
    assert manager.calls() == ["deactivate 0", "activate 2"]


def test_what_a_lost_server_has_left_goes_with_the_next_look(keeper, manager):
    keeper.give("a", LEFT, (), True)
    keeper.give("b", RIGHT, LEFT, True)
    keeper = restarted(keeper)
    assert keeper.sweep(lambda: RIGHT).reasons == {}
    assert manager.active == {2}
    assert recorded(keeper) == {2: "b"}
    # Without any look: whoever gets one of the GPUs next.
    keeper.give("c", {TWO}, (), False)
    assert manager.active == {4}
    assert recorded(keeper) == {4: "c"}


def test_a_service_that_is_killed_between_activation_and_start(keeper, manager, tmp_path):
    """By SIGKILL, before and after the call; Nova has the GPUs free again afterwards."""
    script = tmp_path / "service.py"
    script.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nova_hpc.tenancy.nvlink.backend import Settings, load\n"
        "from nova_hpc.tenancy.nvlink.keeper import Keeper, run\n"
        "settings = Settings(sys.argv[1], 20.0, sys.argv[2])\n"
        "keeper = Keeper(load('fabric-manager', settings, run), Path(sys.argv[3]))\n"
        "def killed(each): \n"
        "    if sys.argv[4] == 'after': activate(each)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "activate, keeper.backend.activate = keeper.backend.activate, killed\n"
        f"keeper.give('a', {sorted(LEFT)!r}, (), True)\n"
    )
    for moment, active in (("before", set()), ("after", {1})):
        argv = [sys.executable, str(script), str(manager.path), library(), str(keeper.path), moment]
        ended = subprocess.run(argv, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False)  # noqa: PTH109
        assert ended.returncode == -signal.SIGKILL
        assert manager.active == active
        assert recorded(keeper) == {1: "a"}
        # The server is still in Nova's database, in error: it has its GPUs.
        assert keeper.sweep(lambda: LEFT).reasons == {}
        assert manager.active == active
        assert keeper.sweep(frozenset).reasons == {}
        assert manager.active == set()
        assert recorded(keeper) == {}


def test_servers_that_are_older_than_the_records(keeper, manager):
    manager.activate(1)
    keeper.sweep(lambda: LEFT | {TWO})
    assert recorded(keeper) == {1: SOMEBODY}
    keeper.keep("a", LEFT, {TWO}, False)
    assert recorded(keeper) == {1: "a"}
    assert manager.calls() == []


# --- the manager ends and starts ---------------------------------------------------


def test_a_manager_that_waits_for_the_list_is_told(keeper, manager):
    keeper.give("a", LEFT, (), True)
    keeper.give("b", {TWO}, LEFT, True)
    for act, called in (
        (lambda: restarted(keeper).begin(ALL), "set 1 4"),
        (lambda: keeper.sweep(lambda: LEFT | {TWO}), "set 1 4"),
        (lambda: keeper.restore(), "set 1 4"),
        (lambda: keeper.keep("a", LEFT, {TWO}, True), "set 1 4"),
        # b is gone from Nova's records: it is not told.
        (lambda: keeper.sweep(lambda: LEFT), "set 1"),
    ):
        manager.restart()
        manager.calls()
        act()
        assert manager.calls() == [called]
    assert recorded(keeper) == {1: "a"}
    manager.restart()
    manager.calls()
    keeper.take_back("a")
    assert manager.calls() == ["set"]
    assert manager.active == set()
    manager.restart()
    keeper.give("c", RIGHT, (), True)
    assert manager.active == {2}


def test_a_manager_with_a_new_fabric(keeper, manager):
    keeper.give("a", LEFT, (), True)
    manager.start_afresh()
    found = keeper.sweep(lambda: LEFT)
    assert found.reasons == {}
    assert found.notes == (
        "NVLink partition 1 of server a is not active; the server has NVLinks again when it is "
        "stopped and started",
    )
    keeper.keep("a", LEFT, (), True)
    assert manager.active == {1}


def test_a_lost_file_cuts_nobodys_links(keeper, manager, tmp_path):
    keeper.give("a", LEFT, (), True)
    (tmp_path / ".state.copy").unlink()
    for text in ("{", '{"partitions": {"x": 1}}', '{"known": ["x"]}', '{"partitions": []}'):
        (tmp_path / "state").write_text(text)
        manager.restart()
        manager.calls()
        found = keeper.sweep(lambda: LEFT, {FOUR})
        assert "nobody can tell which NVLink partitions servers have" in found.reasons[FOUR]
        with pytest.raises(FabricError, match="NVLink file"):
            keeper.give("b", {FOUR}, LEFT, False)
        assert manager.calls() == []
    # One that was not restarted tells everything.
    manager.activate(1)
    manager.set("mode", "shared")
    keeper.sweep(lambda: LEFT)
    assert recorded(keeper) == {1: SOMEBODY}


# --- it does not work -----------------------------------------------------------------


def test_a_manager_that_fails_refuses_and_withholds(keeper, manager):
    keeper.begin(ALL)
    manager.set("fail", "fmActivateFabricPartition", -2)
    with pytest.raises(FabricError, match=r"fmActivateFabricPartition\(1\) failed: unspecified"):
        keeper.give("a", LEFT, (), True)
    manager.clear("fail")
    # It says that it has, and has not.
    manager.set("deaf", "fmActivateFabricPartition")
    with pytest.raises(FabricError, match=r"partitions \[\] are active, and \[1\] should be"):
        keeper.give("a", LEFT, (), True)
    manager.clear("deaf")
    keeper.give("a", LEFT, (), True)
    manager.set("fail", "fmDeactivateFabricPartition", -10)
    (why,) = keeper.take_back("a").values()
    assert "fmDeactivateFabricPartition(1) failed: NVLink error (-10)" in why
    found = keeper.sweep(frozenset)
    assert found.reasons.keys() == LEFT
    # Nobody else gets them while they may be linked.
    with pytest.raises(FabricError, match="NVLink error"):
        keeper.give("b", {ONE}, (), False)
    assert recorded(keeper) == {1: NOBODY, 3: "b"}
    manager.clear("fail")
    # Nova may say that b has its GPU still: what b has not got is gone all the same.
    assert keeper.sweep(lambda: frozenset({ONE})).reasons == {}
    assert manager.active == set()
    assert recorded(keeper) == {3: "b"}
    manager.path.rename(manager.path.with_name("gone"))
    reasons = keeper.sweep(frozenset).reasons
    assert reasons.keys() == ALL
    assert "it cannot be reached (-9)" in reasons[ONE]
    with pytest.raises(FabricError, match="cannot be reached"):
        keeper.give("b", LEFT, (), True)


def test_a_manager_that_hangs_is_left_alone(manager, tmp_path):
    settings = nvlink_backend.Settings(str(manager.path), 0.1, library())
    backend = nvlink_backend.load("fabric-manager", settings, nvlink_keeper.run)
    hanging = Keeper(backend, tmp_path / "state")
    manager.set("hang", "fmActivateFabricPartition")
    with pytest.raises(FabricError, match="did not answer within"):
        hanging.give("a", LEFT, (), True)
    manager.clear("hang")
    assert hanging.sweep(frozenset).reasons == {}
    assert recorded(hanging) == {}


def test_servers_that_start_at_once_are_set_one_after_the_other(keeper, manager):
    manager.activate(0)
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(keeper.give, gpu, {gpu}, (), False) for gpu in GPUS.values()]
        for job in jobs:
            job.result()
    assert manager.active == {3, 4, 5, 6}
    assert recorded(keeper) == {2 + number: gpu for number, gpu in GPUS.items()}


# --- the settings, and the other side of the library ---------------------------------


def test_none_is_nobody(options):
    assert Keeper.from_options(options()) is None


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
        Keeper.from_options(options(**{"backend": "fabric-manager", **values}))
    assert why in str(caught.value)


def test_a_manager_of_another_kind(keeper, manager, tmp_path):
    manager.set("mode", "bare")
    with pytest.raises(NotSharedError, match="set FABRIC_MODE=1"):
        keeper.begin(ALL)
    manager.set("mode", "starting")
    with pytest.raises(FabricError, match="not configured yet"):
        keeper.begin(ALL)
    with pytest.raises(WaitsError):
        keeper.backend.partitions()
    manager.set("mode", "shared")
    with pytest.raises(FabricError, match=r"has a GPU at 0000:43:00\.0, where this node has no"):
        keeper.begin(ALL - {THREE})
    # Older libraries take the older layout only.
    manager.set("sdk", 1)
    assert len(keeper.begin(ALL)) == 7
    for path, why in (("no.so", "cannot be used: no.so"), ("libc.so.6", "undefined symbol")):
        backend = type(keeper.backend)(
            attrs.evolve(keeper.backend.settings, library=path), nvlink_keeper.run
        )
        with pytest.raises(FabricError, match=why):
            backend.partitions()


def test_a_library_that_crashes_is_no_crash_of_the_service(keeper):
    crashed = type(keeper.backend)(keeper.backend.settings, lambda argv, limit: (-11, "oh no"))
    with pytest.raises(FabricError, match="ended with status -11: oh no"):
        crashed.partitions()


def test_gpus_without_an_address_are_named_by_the_operator(options, tmp_path):
    manager = FabricManager(tmp_path, dict.fromkeys(GPUS, "-"))

    def partitions(**values):
        return Keeper.from_options(
            options(backend="fabric-manager", address=manager.path, library=library(), **values)
        ).backend.partitions()

    with pytest.raises(FabricError, match=r"physical id 1; name all of them in \[hpc\]nvlink_gpus"):
        partitions()
    named = [f"{number}:{text}" for number, text in GPUS.items()]
    assert partitions(gpus=",".join(named))[0].gpus == ALL
    with pytest.raises(FabricError, match=r"physical id 4, which \[hpc\]nvlink_gpus does not"):
        partitions(gpus=",".join(named[:3]))


def test_the_layouts_are_those_of_the_headers():
    """Sizes and version numbers as a C compiler gives them for NVIDIA's declarations."""
    call = fabric_manager_call
    found = {
        name: call.version_of(layout, number)
        for name, layout, number in (
            ("connect", call.ConnectV1, 1),
            ("connect 2", call.ConnectV2, 2),
            ("partitions", call.Partitions, 1),
            ("active", call.Active, 1),
        )
    }
    assert found == {
        "connect": 1 << 24 | 268,
        "connect 2": 2 << 24 | 272,
        "partitions": 1 << 24 | 131852,
        "active": 1 << 24 | 264,
    }
