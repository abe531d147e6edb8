# SPDX-License-Identifier: Apache-2.0
"""Two equal places on one machine, with a network and a peer; one place gets the fault."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.acceptance.faults import FOLDER, HERE, NOTHING, PEER, PEER_ADDRESS, ROUTER
from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_guest.accept.probes import QUICK
from nova_hpc_guest.build import single_file

_TOP = Path(__file__).resolve().parents[2]
_NETWORK = f"""
ip link add va netns {HERE} type veth peer name ma netns {ROUTER}
ip link add mb netns {ROUTER} type veth peer name vb netns {PEER}
ip -n {HERE} addr add 10.77.1.1/24 dev va
ip -n {ROUTER} addr add 10.77.1.254/24 dev ma
ip -n {ROUTER} addr add 10.77.2.254/24 dev mb
ip -n {PEER} addr add {PEER_ADDRESS}/24 dev vb
ip -n {HERE} link set dev va up
ip -n {ROUTER} link set dev ma up
ip -n {ROUTER} link set dev mb up
ip -n {PEER} link set dev vb up
ip -n {HERE} route add default via 10.77.1.254
ip -n {PEER} route add default via 10.77.2.254
nsenter --net=/run/netns/{ROUTER} sysctl -q -w net.ipv4.ip_forward=1
"""


@contextlib.contextmanager
def made_places(folder: Path) -> Iterator[None]:
    """Make the network of a trial and the programs of both places; remove them after the block.

    :param folder: a folder on a disk for the files of both places.
    :raises subprocess.CalledProcessError: the network cannot be made, or gcc failed.
    """
    (folder / "nova-hpc-guest").write_bytes(single_file())
    source = Path(__file__).with_name("slow_calls.c")
    words = ["gcc", "-shared", "-fPIC", "-O1", "-o", folder / "slow_calls.so", source, "-ldl"]
    subprocess.run(words, check=True)
    _remove_namespaces()
    try:
        for name in (HERE, ROUTER, PEER):
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        for line in _NETWORK.split("\n"):
            if line:
                subprocess.run(line.split(), check=True)
        server = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{PEER}", "iperf3", "-s"], stdout=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            server.kill()
            server.wait()
    finally:
        _remove_namespaces()


def _remove_namespaces() -> None:
    for name in (HERE, ROUTER, PEER):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def make_place(folder: Path, fault: str, both: Mapping[str, str]) -> RemoteMember:
    """A place that runs each command with a fault.

    :param fault: its name; ``none`` for the other place.
    :param both: environment of both places.
    """
    return RemoteMember(
        functools.partial(_build_words, folder, fault or NOTHING),
        QUICK,
        more=("--peer", PEER_ADDRESS, "--dir", str(folder)),
        environment={**os.environ, **both, FOLDER: str(folder), "PYTHONPATH": str(_TOP)},
    )


def _build_words(folder: Path, fault: str, words: Sequence[str]) -> list[str]:
    return [
        *("nsenter", f"--net=/run/netns/{HERE}", sys.executable),
        *("-m", "benchmarks.acceptance.faults", fault),
        *("/usr/bin/python3", str(folder / "nova-hpc-guest"), *words),
    ]
