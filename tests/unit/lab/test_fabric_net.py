# SPDX-License-Identifier: Apache-2.0
"""The simulated fabric as data: what ibsim and Neutron's driver are told of it."""

import re

import pytest
import yaml

from nova_hpc.fabric.partitions.keys import format_guid
from nova_hpc_lab.fabric.net import MANAGER, FabricNet, net_of_hosts, numbered_hosts

NET = net_of_hosts(numbered_hosts(3, 2, functions=2), spares=2, on_a_leaf=4)
LINK = re.compile(r'\[(\d+)\] "([^"]+)"\[(\d+)\]')


def _links(text):
    """node -> own port -> (node, its port)."""
    found, name = {}, None
    for line in text.splitlines():
        if head := re.match(r'(?:Switch|Hca) (\d+) "([^"]+)"', line):
            name = head[2]
            found[name] = {}
        elif link := LINK.match(line):
            assert link[1] not in found[name]
            found[name][link[1]] = (link[2], link[3])
    return found


@pytest.mark.parametrize("net", [NET, FabricNet((), spares=0), FabricNet((), spares=300)])
def test_every_cable_has_two_ends(net):
    links = _links(net.text())
    for name, ports in links.items():
        for number, (peer, place) in ports.items():
            assert links[peer][place] == (name, number)
    hung = [peer for name, ports in links.items() if "leaf" in name for peer, _ in ports.values()]
    assert sorted(one for one in hung if "spine" not in one) == sorted(
        port.name for port in net.all_ports()
    )


def test_guids_are_told_apart_and_as_ibsim_counts_them():
    text = NET.text()
    nodes = [int(one, 16) for one in re.findall(r"caguid=(0x\w+)", text)]
    assert [one + 1 for one in nodes] == [port.guid for port in NET.all_ports()]
    switches = [int(one, 16) for one in re.findall(r"switchguid=(0x\w+)", text)]
    everything = [*nodes, *switches, *(one + 1 for one in nodes)]
    assert len(set(everything)) == len(everything)
    assert NET.all_ports()[0].name == MANAGER


def test_the_inventory_has_the_ports_of_hosts_alone():
    document = yaml.safe_load(NET.inventory())
    assert document["version"] == 1
    assert [(one["host"], one["address"]) for one in document["ports"]] == [
        (f"cn{host}", f"0000:8{1 + place}:00.0") for host in range(3) for place in range(2)
    ]
    assert document["ports"][0]["functions"] == ["0000:81:00.1", "0000:81:00.2"]
    assert [one["guid"] for one in document["ports"]] == [
        format_guid(port.guid) for port in NET.ports
    ]
