# SPDX-License-Identifier: Apache-2.0
"""The network of a set of machines, and the words that a run over it gets."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest import command
from nova_hpc_guest.accept.network import choose_network, name_network
from nova_hpc_guest.accept.readings import read_bus_bandwidth, read_iperf3_ways

#: Recorded: two attached networks, the default route, and one by a gateway.
_HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
ROUTES = _HEAD + (
    "eth0\t00000000\t01004E0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    "eth0\t00004E0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    "eth1\t01014E0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)


@pytest.mark.parametrize(
    ("hosts", "network"),
    [
        (("10.78.0.1", "10.78.0.2"), "10.78.0.0/24"),
        (("10.78.0.1", "10.78.9.2"), None),
        (("10.78.0.1", "train-2"), None),
        (("fd00::1", "fd00::2"), None),
        ((), None),
    ],
)
def test_the_network_that_has_all_hosts(hosts: tuple[str, ...], network: str | None) -> None:
    text = ROUTES.replace("01014E0A", "00014E0A")
    assert choose_network(text, hosts) == network


def test_routes_that_cannot_be_read_name_no_network() -> None:
    for text in ("", "Iface\nbroken\n", ROUTES.replace("00FFFFFF", "zz"), ROUTES):
        # The last one has bits beyond its mask.
        assert choose_network(text, ("10.78.0.1",)) is None


@given(st.ip_addresses(v=4), st.integers(8, 30))
def test_each_attached_network_is_found(address: ipaddress.IPv4Address, length: int) -> None:
    network = ipaddress.IPv4Network((int(address) or 1 << 31, length), strict=False)
    if not int(network.network_address):
        return
    words = [value.packed[::-1].hex().upper() for value in (network[0], network.netmask)]
    line = f"eth0\t{words[0]}\t00000000\t0001\t0\t0\t0\t{words[1]}\t0\t0\t0\n"
    assert choose_network(_HEAD + line, (str(network[1]), str(network[2]))) == str(network)


def test_open_mpi_gets_the_network_for_both_of_its_layers() -> None:
    assert name_network("192.0.2.0/24") == (
        *("--mca", "btl_tcp_if_include", "192.0.2.0/24"),
        *("--mca", "oob_tcp_if_include", "192.0.2.0/24"),
    )
    assert name_network(None) == ()


def test_a_figure_is_found_by_its_name() -> None:
    text = 'a warning\n{"busbw": 0.25, "ranks": 3, "bytes": 16}\n'
    assert read_bus_bandwidth(text, "", 0.0) == 0.25
    for bad in (text * 2, "", text.replace("busbw", "algbw"), text.replace("0.25", "NaN")):
        with pytest.raises(ValueError, match=r"."):
            read_bus_bandwidth(bad, "", 0.0)
    ways = '{"end": {"sum_received": {"bits_per_second": 8e8}, "sum_received_bidir_reverse": REST}}'
    assert read_iperf3_ways(ways.replace("REST", '{"bits_per_second": 3e8}'), "", 0.0) == 300.0
    with pytest.raises(ValueError, match="no bits_per_second"):
        read_iperf3_ways(ways.replace("REST", "{}"), "", 0.0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--sample", "--hosts", "a,b;c"), "'b;c' is no name or address of a host"),
        (("--sample", "--hosts", "a,,b"), "'' is no name or address of a host"),
        (("--sample", "--hosts", "-x"), "expected one argument"),
        (("--sample", "--hosts", "a,b,a"), "it names a host twice"),
        (("--tier", "cluster"), "run openstack hpc cluster accept"),
    ],
)
def test_wrong_words_are_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["accept", *words])
    assert reason in capsys.readouterr().err
