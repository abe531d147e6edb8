# SPDX-License-Identifier: Apache-2.0
"""The ``nova-hpc`` command and its ``lab`` commands, as a user meets them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def home():
    # Short, as unix sockets need it.
    with tempfile.TemporaryDirectory(prefix="l") as folder:
        yield Path(folder)


@pytest.fixture
def nova_hpc(home):
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(home / "s"),
        "XDG_CACHE_HOME": str(home / "c"),
    }

    def run(*words, **more):
        return subprocess.run(
            [sys.executable, "-m", "nova_hpc_tools.main", *words],
            env=environ | more,
            capture_output=True,
            text=True,
            cwd=home,
        )

    return run


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--debug",),
        ("nonsense",),
        ("lab", "nonsense"),
        ("lab", "up", "--nodes", "many"),
        ("lab", "up", "--nodes", "-1"),
        ("lab", "up", "--base-port", "0"),
        ("lab", "status", "--format", "xml"),
        ("lab", "logs", "--lines", "0"),
        ("lab", "down", "everything"),
    ],
)
def test_bad_usage_ends_with_status_2_and_no_traceback(nova_hpc, words):
    done = nova_hpc(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr or done.stdout


def test_help_lists_the_commands_of_the_lab(nova_hpc):
    done = nova_hpc("--help")
    assert done.returncode == 0
    for name in ("up", "status", "demo", "ssh", "logs", "down"):
        assert f"lab {name} " in done.stdout


@pytest.mark.parametrize("command", ["status", "demo", "ssh", "logs"])
def test_without_a_lab_the_cure_is_named(nova_hpc, command):
    done = nova_hpc("lab", command)
    assert done.returncode == 1
    assert "there is no lab in" in done.stderr
    assert "nova-hpc lab up" in done.stderr
    assert "Traceback" not in done.stderr


def test_down_without_a_lab_is_no_error(nova_hpc, home):
    done = nova_hpc("lab", "down", "--purge")
    assert done.returncode == 0
    assert not (home / "s").exists()


def test_a_relative_xdg_directory_is_told(nova_hpc):
    done = nova_hpc("lab", "status", XDG_STATE_HOME="here")
    assert done.returncode == 1
    assert "XDG_STATE_HOME is 'here', which is not an absolute path" in done.stderr


def test_a_shape_that_does_not_exist_is_told_before_anything_starts(nova_hpc, home):
    done = nova_hpc("lab", "up", "--shape", "no-such-shape")
    assert done.returncode == 1
    assert "no-such-shape" in done.stderr
    assert "two-socket" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "s/nova-hpc/lab/settings.json").exists()


def test_a_base_port_without_room_for_all_ports_is_told(nova_hpc):
    done = nova_hpc("lab", "up", "--base-port", "65530")
    assert done.returncode == 1
    assert "has to be within 1024 to 65535" in done.stderr


def test_damaged_settings_do_not_keep_the_lab_from_being_purged(nova_hpc, home):
    state = home / "s/nova-hpc/lab"
    state.mkdir(parents=True)
    (state / "settings.json").write_text("{")
    done = nova_hpc("lab", "status")
    assert done.returncode == 1
    assert "nova-hpc lab down --purge" in done.stderr
    assert nova_hpc("lab", "down", "--purge").returncode == 0
    assert not state.exists()
