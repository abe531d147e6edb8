# SPDX-License-Identifier: Apache-2.0
"""Three members with two networks on one machine; a member, a link or a rail of them is slow.

Each member is a network namespace with its own name of a host. Each network is a bridge, and tbf
limits all ports to the same rate.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_client.accept.cluster_terms import AcceptedHost
from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_guest.accept.probes import CLUSTER
from nova_hpc_guest.build import single_file

MEMBERS: Final = (1, 2, 3)
RAILS: Final = (0, 1)
_SWITCH: Final = "nhtSwitch"
_GOOD, _SLOW = "800mbit", "300mbit"
#: Open MPI calls it as it would call ssh.
_AGENT: Final = """#!/bin/sh
host=$1; shift
exec {enter}${{host##*.}} unshare --uts sh -c "hostname train-${{host##*.}}; $*"
"""
_ENTER: Final = "nsenter --net=/run/netns/nhtMember"


@attrs.frozen
class WholeFault:
    """A fault of a cluster.

    :ivar ports: member and rail of each slow port.
    :ivar link: members of the slow link, on the first rail.
    :ivar right: a name that must be found, and others that may be.
    """

    says: str
    ports: tuple[tuple[int, int], ...] = ()
    link: tuple[int, ...] = ()
    right: tuple[str, ...] = ()


FAULTS: Final[Mapping[str, WholeFault]] = {
    "none": WholeFault("nothing"),
    "member": WholeFault(
        "all ports of one member at 300 of 800 Mbit/s",
        ports=((2, 0), (2, 1)),
        right=("train-2", "train-2 on rail0", "train-2 on rail1"),
    ),
    "link": WholeFault(
        "one destination of one member at 300 of 800 Mbit/s",
        link=(1, 3),
        # The all-reduce goes over one network, so it may find the link, too.
        right=(
            "the link between train-1 and train-3 on rail0",
            "the link between train-1 and train-3",
        ),
    ),
    "rail": WholeFault(
        "the second port of one member at 300 of 800 Mbit/s",
        ports=((2, 1),),
        right=("train-2 on rail1",),
    ),
}


@contextlib.contextmanager
def made_cluster(folder: Path, fault: WholeFault) -> Iterator[list[AcceptedHost]]:
    """Make the members and their networks with a fault; remove them after the block.

    :param folder: for the guest's command.
    :raises subprocess.CalledProcessError: a network cannot be made.
    """
    (folder / "nova-hpc-guest").write_bytes(single_file())
    agent = folder / "agent"
    agent.write_text(_AGENT.format(enter=_ENTER))
    agent.chmod(0o755)
    _remove()
    try:
        _run(f"ip netns add {_SWITCH}")
        for rail in RAILS:
            _run(f"ip -n {_SWITCH} link add br{rail} up type bridge")
        for member in MEMBERS:
            _make_member(member, fault)
        yield [_build_host(folder, member) for member in MEMBERS]
    finally:
        _remove()


def _make_member(member: int, fault: WholeFault) -> None:
    name = f"nhtMember{member}"
    _run(f"ip netns add {name}")
    _run(f"ip -n {name} link set lo up")
    for rail in RAILS:
        port = f"p{member}{rail}"
        _run(f"ip link add r{rail} netns {name} type veth peer name {port} netns {_SWITCH}")
        _run(f"ip -n {_SWITCH} link set {port} up master br{rail}")
        _run(f"ip -n {name} addr add 10.78.{rail}.{member}/24 dev r{rail}")
        _run(f"ip -n {name} link set r{rail} up")
        rate = _SLOW if (member, rail) in fault.ports else _GOOD
        _limit(_SWITCH, port, "root", rate)
        if rail or member not in fault.link[:1]:
            _limit(name, f"r{rail}", "root", rate)
            continue
        # Two classes: one for the other end of the slow link, one for all else.
        _run(f"tc -n {name} qdisc add dev r0 root handle 1: htb default 2")
        for number, limit in enumerate((_SLOW, _GOOD), 1):
            to = f"parent 1: classid 1:{number} htb rate {limit} burst 128k quantum 60000"
            _run(f"tc -n {name} class add dev r0 {to}")
        to = f"match ip dst 10.78.0.{fault.link[1]}/32 flowid 1:1"
        _run(f"tc -n {name} filter add dev r0 parent 1: protocol ip u32 {to}")


def _limit(namespace: str, device: str, place: str, rate: str) -> None:
    queue = f"tbf rate {rate} burst 128k latency 20ms"
    _run(f"tc -n {namespace} qdisc add dev {device} {place} {queue}")


def _build_host(folder: Path, member: int) -> AcceptedHost:
    def build(words: Sequence[str]) -> list[str]:
        guest = ["/usr/bin/python3", str(folder / "nova-hpc-guest"), *words]
        name = f'hostname train-{member}; exec "$@"'
        return [*f"{_ENTER}{member} unshare --uts sh -c".split(), name, "sh", *guest]

    environment = {
        **os.environ,
        "OMPI_MCA_plm_rsh_agent": str(folder / "agent"),
        "OMPI_MCA_btl": "tcp,self",
        # Three ranks on the CPUs of one machine.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    rails = {f"rail{rail}": f"10.78.{rail}.{member}" for rail in RAILS}
    return AcceptedHost(
        *(member, f"train-{member}", f"id-{member}", rails["rail0"]),
        RemoteMember(build, CLUSTER, environment=environment),
        rails=rails,
    )


def _run(line: str) -> None:
    subprocess.run(line.split(), check=True)


def _remove() -> None:
    for name in (_SWITCH, *(f"nhtMember{member}" for member in MEMBERS)):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
