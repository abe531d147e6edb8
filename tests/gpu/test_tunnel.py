# SPDX-License-Identifier: Apache-2.0
"""The same engine through WireGuard, with keys that each guest made and said on its console."""

from __future__ import annotations

import os
import signal
import time

import pytest

from nova_hpc_guest.gpu import port_rule
from tests.gpu import two_guests
from tests.gpu.engine_root import prepare_engine_root

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not two_guests.have_root(), reason="needs root, iproute2 and mmdebstrap"),
]
RUN = ("nova-hpc-guest", "gpu", "run", "--")
JOB = "/opt/opencl_job"
INSIDE = port_rule.SHARE_INSIDE


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    with two_guests.make_two_guests(prepare_engine_root(), folder) as (share, client):
        two_guests.attach_encrypted(share, client)
        lifeline = two_guests.PORT + port_rule.LIFELINE
        two_guests.wait_for("the slot", lambda: client.is_open(lifeline, INSIDE), 90)
        yield share, client


def test_keys_stay_in_their_guests(pair):
    texts = []
    for guest in pair:
        key = guest.root / "run/nova-hpc-gpu/key"
        assert key.stat().st_mode & 0o777 == 0o600
        texts.append(key.read_text().strip())
        said = (guest.root / "run/console").read_text()
        assert texts[-1] not in said
        assert said.count("key") >= 1
    assert texts[0] != texts[1]


def test_every_value_is_right_and_goes_through_the_tunnel(pair):
    _, client = pair
    before = transferred(client)
    done = client.run(*RUN, JOB)
    assert done.returncode == 0, done.stderr
    assert "65536 values, 0 wrong" in done.stdout
    # Two vectors of 256 KiB went, and one came.
    sent = [after - early for after, early in zip(transferred(client), before, strict=True)]
    assert sent[1] > 512 * 1024
    assert sent[0] > 256 * 1024
    print(f"RESULT: {' / '.join(done.stdout.splitlines())}, {sent[1]} bytes out, {sent[0]} in")


def transferred(guest):
    """Bytes received and sent by the guest's tunnel."""
    shown = guest.run("wg", "show", "hpc-gpu0", "transfer")
    assert shown.returncode == 0, shown.stderr
    return [int(word) for word in shown.stdout.split()[1:]]


def test_past_the_tunnel_the_slot_is_closed(pair):
    """The engine's third port is open on every address: systemd's filter, which there is not here,
    and the security group close it."""
    _, client = pair
    lifeline = two_guests.PORT + port_rule.LIFELINE
    assert client.is_open(lifeline, INSIDE)
    for port in (two_guests.PORT, two_guests.PORT + 1, lifeline):
        assert not client.is_open(port)


def test_a_job_whose_engine_is_killed_ends(pair, tmp_path):
    share, client = pair
    job, _ = two_guests.hold_job(client, tmp_path)
    (engine,) = share.pids("pocld")
    os.kill(engine, signal.SIGKILL)
    begun = time.monotonic()
    assert job.wait(timeout=40) == 75
    print(f"RESULT: the job ended {time.monotonic() - begun:.1f} s after its engine")


def test_detach_takes_the_tunnel_down(pair):
    share, client = pair
    two_guests.detach(share, client)
    shows = ("ip", "link", "show", "hpc-gpu0")
    two_guests.wait_for("the tunnel's end", lambda: client.run(*shows).returncode, 40)
    assert not client.is_open(two_guests.PORT + port_rule.LIFELINE, INSIDE)
