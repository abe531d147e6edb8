# SPDX-License-Identifier: Apache-2.0
"""A real engine through the guests' own commands: right results, closed ports, ended jobs."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.gpu import two_guests
from tests.gpu.engine_root import prepare_engine_root

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not two_guests.have_root(), reason="needs root, iproute2 and mmdebstrap"),
]
#: The engine's three ports and the lifeline.
PORTS = tuple(range(two_guests.PORT, two_guests.PORT + 4))
RUN = ("nova-hpc-guest", "gpu", "run", "--")
JOB = "/opt/opencl_job"


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    with two_guests.make_two_guests(prepare_engine_root(), folder) as pair:
        yield pair


@pytest.fixture
def attached(guests):
    share, client = guests
    two_guests.attach(share, client)
    environment = client.root / "etc/nova-hpc/gpu.env"
    two_guests.wait_for("the client's environment", environment.exists, 30)
    two_guests.wait_for("the slot", lambda: client.is_open(PORTS[3]), 60)
    yield share, client
    two_guests.detach(share, client)
    # Not its engine's end, which may have come before: what follows would meet the old slot.
    units = share.root / "run/systemd/system"
    two_guests.wait_for("the end of the slot", lambda: not list(units.glob("*@*")), 60)


def test_nothing_is_open_before_it_is_attached(guests):
    _, client = guests
    assert not any(map(client.is_open, PORTS))
    done = client.run(*RUN, JOB)
    assert done.returncode == 2
    assert "no share of a GPU is attached" in done.stderr


def test_every_value_is_right(attached):
    share, client = attached
    done = client.run(*RUN, JOB)
    assert done.returncode == 0, done.stderr
    assert "65536 values, 0 wrong" in done.stdout
    print(f"RESULT: {' / '.join(done.stdout.splitlines())}")
    # The engine runs without privileges, for this client alone.
    (engine,) = share.pids("pocld")
    assert Path(f"/proc/{engine}").stat().st_uid == 990
    shown = client.run("nova-hpc-guest", "gpu", "show").stdout
    assert "the share answers" in shown
    assert two_guests.SHARE_ID in shown
    # The job's own status is the command's.
    assert client.run(*RUN, "sh", "-c", "exit 7").returncode == 7


def test_a_job_whose_engine_is_killed_ends(attached, tmp_path):
    share, client = attached
    job, said = two_guests.hold_job(client, tmp_path)
    (engine,) = share.pids("pocld")
    os.kill(engine, signal.SIGKILL)
    begun = time.monotonic()
    assert job.wait(timeout=40) == 75
    print(f"RESULT: the job ended {time.monotonic() - begun:.1f} s after its engine")
    assert "is gone or was detached" in said.read_text()
    assert not client.pids("opencl_job")
    # The slot comes again without anyone's doing.
    two_guests.wait_for("the slot", lambda: client.is_open(PORTS[3]), 60)
    assert "65536 values, 0 wrong" in client.run(*RUN, JOB).stdout


def test_a_job_whose_share_is_out_of_reach_ends(attached, tmp_path):
    share, client = attached
    job, said = two_guests.hold_job(client, tmp_path)
    link = ("ip", "-n", share.namespace, "link", "set", "v0")
    two_guests.call(*link, "down")
    begun = time.monotonic()
    try:
        assert job.wait(timeout=40) == 75
        print(f"RESULT: the job ended {time.monotonic() - begun:.1f} s after its share was cut off")
    finally:
        two_guests.call(*link, "up")
    assert "is gone or was detached" in said.read_text()


def test_detach_closes_all_ports_and_ends_the_job(attached, tmp_path):
    share, client = attached
    job, _ = two_guests.hold_job(client, tmp_path)
    two_guests.detach(share, client)
    begun = time.monotonic()
    # A connection to the engine's own ports that says nothing makes its client's job fail.
    two_guests.wait_for("the end of the lifeline", lambda: not client.is_open(PORTS[3]), 30)
    print(f"RESULT: the slot was closed {time.monotonic() - begun:.1f} s after detach")
    assert not any(map(client.is_open, PORTS))
    assert job.wait(timeout=40) == 75
    environment = client.root / "etc/nova-hpc/gpu.env"
    two_guests.wait_for("the end of the environment", lambda: not environment.exists(), 30)
    assert not list((share.root / "run/systemd/system").glob("nova-hpc-gpu@*"))


def test_another_release_is_refused_by_name(attached):
    _, client = attached
    engines = client.root / "etc/nova-hpc/gpu-engines"
    engines.mkdir()
    shipped = (two_guests.HERE.parents[1] / "nova_hpc_guest/gpu/engines/pocl.ini").read_text()
    older = re.sub("(?m)^release_file = .*$", "release = 5.0", shipped)
    assert older != shipped
    (engines / "pocl.ini").write_text(older)
    environment = client.root / "etc/nova-hpc/gpu.env"
    try:
        two_guests.wait_for("the environment", lambda: 'E="5.0"' in environment.read_text(), 30)
        done = client.run(*RUN, JOB)
        assert done.returncode == 2
        assert "start both from images with one release" in done.stderr
    finally:
        (engines / "pocl.ini").unlink()
        engines.rmdir()
