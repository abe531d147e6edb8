# SPDX-License-Identifier: Apache-2.0
"""Machines and their network as mpirun reads them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence


def choose_network(routes: str, hosts: Sequence[str]) -> str | None:
    """Return the smallest attached IPv4 network that has all hosts, as ``192.0.2.0/24``.

    :param routes: the text of ``/proc/net/route``.
    :returns: None if the machines are in several networks, or are not named by addresses.
    """
    try:
        addresses = [ipaddress.IPv4Address(host) for host in hosts]
        networks = []
        for line in routes.splitlines()[1:]:
            _, target, gateway, *rest = line.split()
            # The kernel prints the bytes of an address in the order of this machine.
            if int(gateway, 16) == 0 and int(target, 16):
                first, mask = (
                    ipaddress.IPv4Address(bytes.fromhex(word)[::-1]) for word in (target, rest[4])
                )
                networks.append(ipaddress.IPv4Network(f"{first}/{mask}"))
    except (ValueError, IndexError):
        return None
    suited = [network for network in networks if all(one in network for one in addresses)]
    return str(max(suited, key=lambda network: network.prefixlen)) if suited and hosts else None


def name_network(network: str | None) -> tuple[str, ...]:
    """Return mpirun's words for the one network that Open MPI may use; () if it is unknown."""
    if network is None:
        return ()
    return "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network


def move_hosts(words: Sequence[str], path: str) -> tuple[list[str], str]:
    """Return mpirun's words with the hosts of ``-H`` in a file, and its text, for IPv6 addresses.

    ``-H`` ends a name at a colon, and only the plain form of the list of nodes may have one (tried
    with Open MPI 4.1.4). Without such an address the words stay as they are and the text is "".
    """
    at = words.index("-H") if words[0] == "mpirun" and "-H" in words else None
    hosts = [] if at is None else words[at + 1].split(",")
    if at is None or not any(is_ipv6(host) for host in hosts):
        return list(words), ""
    named = ("--mca", "regx", "naive", "--hostfile", path)
    text = "".join(f"{host} slots=1\n" for host in hosts)
    return [*words[:at], *named, *words[at + 2 :]], text


def is_ipv6(host: str) -> bool:
    """Whether a name or address of a host is an address of IPv6."""
    return host.count(":") > 1
