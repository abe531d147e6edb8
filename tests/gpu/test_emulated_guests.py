# SPDX-License-Identifier: Apache-2.0
"""Two whole guests with systemd: a real engine behind its filter of addresses, then WireGuard.

The tests are in an order: the last one ends the GPU server's machine.
"""

from __future__ import annotations

import os
import re
import shutil
import time

import pytest

from nova_hpc_guest.gpu import port_rule, units
from tests.gpu import two_guests
from tests.gpu.emulated_guests import OTHER_ADDRESS, is_open_to_others, start_emulated_guests
from tests.gpu.guest_disk import prepare_guest_disk

PROGRAMS = ("ip", "mmdebstrap", "qemu-system-x86_64", "ssh", "mke2fs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(os.geteuid()) or None in map(shutil.which, PROGRAMS),
        reason=f"needs root and {', '.join(PROGRAMS)}",
    ),
]
#: The engine's three ports and the lifeline.
PORTS = tuple(range(two_guests.PORT, two_guests.PORT + 4))
INSIDE = port_rule.SHARE_INSIDE
UNIT = units.unit_name_of(two_guests.CLIENT_ID)
RIGHT = "65536 values, 0 wrong"
RUN = ("nova-hpc-guest", "gpu", "run", "--")
JOB = "/opt/opencl_job"
TRIES = 4
#: Seconds for what takes one on a processor that is not emulated.
PATIENCE = 600


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    with start_emulated_guests(prepare_guest_disk(), folder) as started:
        yield started


@pytest.fixture(scope="module")
def attached(pair):
    share, client = pair
    two_guests.attach(share, client)
    wait_for_slot(client)
    yield pair
    two_guests.detach(share, client)
    two_guests.wait_for("the slot's end", lambda: not client.is_open(PORTS[3]), PATIENCE)


@pytest.fixture(scope="module")
def encrypted(pair):
    share, client = pair
    two_guests.attach_encrypted(share, client)
    wait_for_slot(client, INSIDE)
    return pair


def wait_for_slot(client, *address):
    two_guests.wait_for("the slot", lambda: client.is_open(PORTS[3], *address), PATIENCE)


def do_job(client):
    """What a job says; PoCL-R's own client (6.0) dies or hangs now and then while it begins."""
    for _ in range(TRIES):
        done = client.run("timeout", str(PATIENCE), *RUN, JOB)
        if done.returncode == 0:
            return done.stdout
        time.sleep(5)
        wait_for_slot(client, *[INSIDE] * ("hpc-gpu0" in client.call("ls /sys/class/net")))
    raise AssertionError(done.stdout + done.stderr)


def status_of_engine(share):
    """What the kernel says of the engine's process."""
    pid = share.call("pidof pocld").strip()
    return dict(re.findall(r"^(\w+):\s*(.*)$", share.call(f"cat /proc/{pid}/status"), re.MULTILINE))


def test_nothing_is_open_before_it_is_attached(pair):
    _, client = pair
    assert not any(map(client.is_open, PORTS))
    done = client.run(*RUN, JOB)
    assert done.returncode == 2
    assert "no share of a GPU is attached" in done.stderr


def test_every_value_is_right(attached):
    _, client = attached
    said = do_job(client)
    assert RIGHT in said
    print(f"RESULT: {' / '.join(said.splitlines())}")
    assert "the share answers" in client.call("nova-hpc-guest gpu show")


def test_the_engine_has_no_privileges(attached):
    share, _ = attached
    status = status_of_engine(share)
    assert status["Uid"].split()[0] == share.call("id -u nova-hpc-gpu").strip()
    sandbox = {key: status[key] for key in ("CapEff", "CapBnd", "NoNewPrivs")}
    print(f"RESULT: {sandbox}")
    assert sandbox == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1"}
    # What it may write, as a process of the same unit sees it.
    tell = "for f in /etc /root /var/tmp /tmp; do touch $f/x 2>/dev/null && echo $f; done; "
    pid = share.call("pidof pocld").strip()
    seen = share.call(
        f"nsenter -t {pid} -m -S {status['Uid'].split()[0]} sh -c '{tell} ls /tmp' | sort"
    )
    assert seen.split() == ["/tmp", "/var/tmp", "x"]
    share.call("test ! -e /tmp/x")


def test_only_the_client_reaches_the_engine(attached):
    """Twice: with systemd's filter, and once another address was let in, so that it is the filter
    that keeps it out."""
    share, client = attached
    assert all(map(client.is_open, PORTS[:3]))
    assert not any(map(is_open_to_others, PORTS))
    shown = share.call(f"systemctl show {UNIT} -p IPAddressAllow -p IPAddressDeny")
    print(f"RESULT: {' / '.join(shown.split(chr(10)))}")
    allow = f"systemctl set-property --runtime {UNIT} IPAddressAllow="
    share.call(f"{allow}'{two_guests.CLIENT_ADDRESS} {OTHER_ADDRESS}'")
    assert is_open_to_others(PORTS[2])
    # As it was, from its next start on.
    share.call(f"systemctl revert {UNIT}")


def test_detach_closes_all_ports_and_ends_the_job(attached, tmp_path):
    share, client = attached
    job, said = two_guests.hold_job(client, tmp_path, PATIENCE)
    two_guests.detach(share, client)
    begun = time.monotonic()
    assert job.wait(timeout=60) == 75
    print(f"RESULT: the job ended {time.monotonic() - begun:.1f} s after detach")
    assert "is gone or was detached" in said.read_text()
    assert not any(map(client.is_open, PORTS))
    assert not client.run("test ! -e /etc/nova-hpc/gpu.env").returncode


def test_every_value_is_right_through_wireguard(encrypted):
    _, client = encrypted
    before = transferred(client)
    said = do_job(client)
    assert RIGHT in said
    # Two vectors of 256 KiB went, and one came.
    received, sent = (
        after - early for after, early in zip(transferred(client), before, strict=True)
    )
    assert sent > 512 * 1024
    assert received > 256 * 1024
    print(f"RESULT: {' / '.join(said.splitlines())}, {sent} bytes out, {received} in")
    # The kernel's own: no program of user space makes the interface.
    assert client.call("cat /sys/module/wireguard/version").strip()


def transferred(guest):
    """Bytes received and sent by the guest's tunnel."""
    return [int(word) for word in guest.call("wg show hpc-gpu0 transfer").split()[1:]]


def test_keys_stay_in_their_guests(encrypted):
    for guest in encrypted:
        assert guest.call("stat -c '%a %U' /run/nova-hpc-gpu/key") == "600 root\n"
        assert guest.call("cat /run/nova-hpc-gpu/key").strip() not in guest.console()


def test_past_the_tunnel_every_port_is_closed(encrypted):
    """The engine's third port is open on every address; here systemd's filter closes it."""
    share, client = encrypted
    assert all(client.is_open(port, INSIDE) for port in PORTS)
    assert f"0.0.0.0:{PORTS[2]}" in share.call("ss -ltn")
    assert not any(map(client.is_open, PORTS))
    assert not any(map(is_open_to_others, PORTS))


def test_a_job_whose_share_is_killed_ends(encrypted, tmp_path):
    """The whole machine ends at once, as with its host."""
    share, client = encrypted
    job, said = two_guests.hold_job(client, tmp_path, PATIENCE)
    share.machine.kill()
    begun = time.monotonic()
    assert job.wait(timeout=40) == 75
    print(f"RESULT: the job ended {time.monotonic() - begun:.1f} s after its share")
    assert "is gone or was detached" in said.read_text()
    assert client.run("pidof opencl_job").returncode
