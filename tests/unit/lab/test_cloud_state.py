# SPDX-License-Identifier: Apache-2.0
"""Paths, settings and files of the lab."""

import json
import multiprocessing
import stat

import pytest

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.state import Paths, Settings, locked, write


@pytest.fixture
def paths(tmp_path):
    found = Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")
    found.make()
    return found


def test_paths_follow_the_xdg_variables(tmp_path):
    found = Paths.from_environment({"XDG_STATE_HOME": "/st", "XDG_CACHE_HOME": "/ca"})
    assert str(found.state) == "/st/nova-hpc/lab"
    assert str(found.cache) == "/ca/nova-hpc"


def test_paths_default_to_the_home_directory():
    found = Paths.from_environment({"HOME": "/home/x", "XDG_STATE_HOME": ""})
    assert str(found.state) == "/home/x/.local/state/nova-hpc/lab"
    assert str(found.cache) == "/home/x/.cache/nova-hpc"


def test_a_relative_base_directory_is_refused():
    with pytest.raises(LabError, match="XDG_CACHE_HOME is 'here', which is not an absolute"):
        Paths.from_environment({"HOME": "/root", "XDG_CACHE_HOME": "here"})


def test_a_state_directory_too_deep_for_sockets_is_refused():
    with pytest.raises(LabError, match="set XDG_STATE_HOME to a shorter path"):
        Paths.from_environment({"HOME": "/" + "d" * 100})


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"cannot create .*file/s"):
        Paths(tmp_path / "file" / "s", tmp_path / "c", tmp_path).make()


def test_settings_survive_and_are_for_the_owner_only(paths):
    fresh = Settings.fresh(20000, 2, "small")
    fresh.save(paths)
    assert Settings.load(paths) == fresh
    assert stat.S_IMODE(paths.settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.state.stat().st_mode) == 0o700


def test_passwords_are_new_for_each_lab_and_never_printed():
    one, two = (Settings.fresh(20000, 1, "small") for _ in range(2))
    assert not set(one.passwords.values()) & set(two.passwords.values())
    assert len(set(one.passwords.values())) == len(one.passwords)
    assert not any(password in repr(one) for password in one.passwords.values())


def test_ports_are_distinct():
    ports = dict(Settings.fresh(20000, 1, "small").ports.items())
    assert len(set(ports.values())) == len(ports)
    assert min(ports.values()) == 20000


def test_without_a_lab_there_are_no_settings(paths):
    assert Settings.load(paths) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: "",
        lambda document: "[]",
        lambda document: json.dumps(document)[:-9],
        lambda document: json.dumps({**document, "version": 99}),
        lambda document: json.dumps({**document, "passwords": None}),
        lambda document: json.dumps({**document, "passwords": {}}),
        lambda document: json.dumps({**document, "more": 1}),
        lambda document: json.dumps({k: v for k, v in document.items() if k != "nodes"}),
    ],
)
def test_damaged_settings_name_the_file_and_the_cure(paths, damage):
    Settings.fresh(20000, 1, "small").save(paths)
    document = json.loads(paths.settings.read_text())
    paths.settings.write_text(damage(document))
    with pytest.raises(LabError, match=r"settings\.json .*nova-hpc lab down --purge"):
        Settings.load(paths)


def test_write_replaces_in_one_step_and_leaves_nothing_beside(tmp_path):
    target = tmp_path / "deep" / "file"
    write(target, "one", mode=0o600)
    write(target, "two", mode=0o644)
    assert target.read_text() == "two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert list(target.parent.iterdir()) == [target]


def test_write_leaves_an_equal_file_alone(tmp_path):
    target = tmp_path / "file"
    write(target, "same")
    before = target.stat().st_ino
    write(target, "same")
    assert target.stat().st_ino == before


def test_write_that_fails_leaves_the_old_file(tmp_path):
    target = tmp_path / "file"
    write(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write(target, "\udcff")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def _hold(paths, held, go):
    with locked(paths):
        held.set()
        go.wait(60)


def test_two_commands_never_hold_the_lock(paths):
    context = multiprocessing.get_context("fork")
    held, go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(paths, held, go))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(LabError, match=f"process {other.pid}"), locked(paths):
            pass
    finally:
        go.set()
        other.join()
    with locked(paths):
        pass
