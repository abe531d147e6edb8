# SPDX-License-Identifier: Apache-2.0
"""The network of a set of machines, and the words that a run over it gets."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest import command
from nova_hpc_guest.accept.fillings import fill_word
from nova_hpc_guest.accept.network import choose_network, move_hosts, name_network
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.readings import read_bus_bandwidth, read_iperf3_ways
from nova_hpc_guest.accept.tools import find_port, run_tool, start_helper, wait_for_port

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


_AGENT = """#!/bin/sh
echo "$1" >> FOLDER/reached
shift
exec /bin/sh -c "$*"
"""
_MPIRUN = ["mpirun", "--quiet", "-np", "1", "--mca", "oob_tcp_if_include", "lo"]


def _run_mpirun(folder: Path, words: list[str], **more: str) -> tuple[str, set[str]]:
    """What the real mpirun printed, and the hosts that it reached in place of ssh."""
    agent = folder / "agent"
    agent.write_text(_AGENT.replace("FOLDER", str(folder)))
    agent.chmod(0o755)
    environment = {
        **os.environ,
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }
    done = subprocess.run(
        [*words, "/bin/echo", "here"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    reached = folder / "reached"
    return done.stdout, set(reached.read_text().split() if reached.exists() else ())


def test_the_real_mpirun_reaches_addresses_of_ipv6(tmp_path: Path) -> None:
    plain = [*_MPIRUN, "-H", "fd00:55::1"]
    # A part of the address, which no resolver knows.
    assert _run_mpirun(tmp_path, plain)[1] != {"fd00:55::1"}
    (tmp_path / "reached").unlink(missing_ok=True)
    words, text = move_hosts(plain, str(tmp_path / "hosts"))
    (tmp_path / "hosts").write_text(text)
    assert _run_mpirun(tmp_path, words) == ("here\n", {"fd00:55::1"})


def test_the_real_mpirun_within_a_step_of_srun_takes_no_other_node(tmp_path: Path) -> None:
    """Without these variables it reaches others; so probes get none of them."""
    words = [*_MPIRUN, "-H", "198.51.100.1"]
    step = {"SLURM_JOBID": "7", "SLURM_NODELIST": "a", "SLURM_TASKS_PER_NODE": "1"}
    assert _run_mpirun(tmp_path, words, **step) == ("", set())
    assert _run_mpirun(tmp_path, words) == ("here\n", {"198.51.100.1"})


@pytest.mark.parametrize("hosts", ["a,b", "10.0.0.1,10.0.0.2", "a:2,b:2"])
def test_other_hosts_stay_words(hosts: str) -> None:
    words = [*_MPIRUN, "-H", hosts, "program", "-H", "fd00::1"]
    assert move_hosts(words, "file") == (words, "")
    assert move_hosts(["fio", "-H", "fd00::1"], "file") == (["fio", "-H", "fd00::1"], "")


def test_the_real_iperf3_takes_an_address_of_ipv6(tmp_path: Path) -> None:
    probe, port = PROBE_OF["net_bw"], find_port()
    fillings = {"peer": "::1", "port": str(port), "streams": "1"}
    server = [fill_word(word, fillings) for word in probe.server if word != "127.0.0.1"]
    server.remove("-B")
    words = [fill_word(word, fillings).replace("250M", "64M") for word in probe.words]
    with start_helper(server, dict(os.environ)) as helper:
        assert wait_for_port(port, helper)
        done = run_tool(words, dict(os.environ), 60.0)
    assert done.problem is None
    assert probe.read(done.output, "", 0.0) > 0


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
