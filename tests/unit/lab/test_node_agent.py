# SPDX-License-Identifier: Apache-2.0
"""What the node's own start-up script does to an adapter, and in which order."""

import importlib.util
import os
from pathlib import Path

import pytest

import nova_hpc_lab.node
from nova_hpc_tools.wire.node_declaration import Cpus, NodeWishes, RoleWish, read_declaration
from nova_hpc_tools.wire.rail_wish import RailWish

AGENT = Path(nova_hpc_lab.node.__file__).parent / "inside" / "agent.py"
ADAPTER = {
    "name": "hca0",
    "mac": "52:54:00:01:00:ff",
    "vfs": ["52:54:00:01:00:00"] * 2,
    "network": None,
    "rail": None,
}

# Notes what the kernel is told and, of each command, how many functions there are by then.
IP = """\
#!/bin/sh
echo "$(cat {numvfs}) functions: ip $*" >>{log}
"""


@pytest.fixture
def agent():
    spec = importlib.util.spec_from_file_location("agent", AGENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def link(tmp_path, monkeypatch):
    """An adapter in sysfs, and an ``ip`` that takes notes."""
    device = tmp_path / "eth0" / "device"
    device.mkdir(parents=True)
    (device / "sriov_numvfs").write_text("0")
    (device / "sriov_drivers_autoprobe").write_text("1")
    for number in range(2):
        function = tmp_path / f"0000:24:10.{number}"
        function.mkdir()
        (device / f"virtfn{number}").symlink_to(function)
    program = tmp_path / "bin" / "ip"
    program.parent.mkdir()
    program.write_text(IP.format(numvfs=device / "sriov_numvfs", log=tmp_path / "log"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "eth0"


def test_an_adapter_goes_up_when_its_functions_are_there(agent, link):
    found = agent.virtual_functions(ADAPTER, {ADAPTER["mac"]: link})
    assert found == ["0000:24:10.0", "0000:24:10.1"]
    assert (link / "device" / "sriov_drivers_autoprobe").read_text() == "0"
    said = (link.parent / "log").read_text().splitlines()
    # An igb that is up while they are made follows a NULL pointer.
    assert [line for line in said if " up " in line] == [said[-1]]
    assert said[0] == "0 functions: ip link set dev eth0 name hca0"
    assert said[-1] == "2 functions: ip link set up dev hca0"
    assert len([line for line in said if " mac " in line]) == 2


def test_an_adapter_that_is_not_there_is_named(agent):
    with pytest.raises(agent.NodeError, match=r"adapter hca0 \(52:54:00:01:00:ff\) is not there"):
        agent.virtual_functions(ADAPTER, {})


@pytest.fixture
def called(agent, monkeypatch):
    """The commands that the script gives; none is run."""
    found = []
    monkeypatch.setattr(agent, "run", lambda *argv: found.append(argv))
    return found


@pytest.fixture
def place(agent, tmp_path, monkeypatch):
    """Folders of a node; the declaration's path."""
    monkeypatch.setattr(agent, "CONFIG", tmp_path)
    monkeypatch.setattr(agent, "INCLUDES", tmp_path / "there" / "nova.conf.d")
    monkeypatch.setattr(agent, "NOVA", tmp_path / "there")
    monkeypatch.setattr(agent, "STATE", tmp_path / "state")
    monkeypatch.setattr(agent, "DECLARATION", tmp_path / "hpc" / "node.yaml")
    (tmp_path / "nova").mkdir()
    (tmp_path / "lab.conf").write_text("")
    return agent.DECLARATION


@pytest.mark.parametrize(
    ("networks", "declared"),
    [
        ([None, None], {}),
        (
            ["physnet2", None, "physnet1", "physnet2"],
            {
                "physnet1": RoleWish(physical_network="physnet1"),
                "physnet2": RoleWish(physical_network="physnet2"),
            },
        ),
    ],
)
def test_adapters_are_kept_for_the_ports_of_their_network(agent, place, called, networks, declared):
    adapters = [{**ADAPTER, "network": each} for each in networks]
    agent.configuration({"uuid": "5b5a1d26-4a33-4f0b-8a4e-5f8f7e9f5b7d", "adapters": adapters})
    ((_, *rest),) = called
    assert rest[:1] == ["configure"]
    assert rest[5:] == ["--replace", "device_spec"]
    wishes = read_declaration(place.read_text()).wishes
    assert wishes == NodeWishes(role_options=declared)
    # Nothing of the last start counts, and a key can be put behind the others.
    text = place.read_text()
    place.write_text(f"{text}cpus: {{housekeeping_cores: 2}}\n")
    assert read_declaration(place.read_text()).wishes.cpus == Cpus(2)
    agent.configuration({"uuid": "5b5a1d26-4a33-4f0b-8a4e-5f8f7e9f5b7d", "adapters": adapters})
    assert place.read_text() == text


@pytest.mark.usefixtures("called")
def test_rails_are_declared_as_an_operator_does(agent, place, tmp_path, monkeypatch):
    adapters = []
    for number, rail in enumerate((1, 0, None, 0)):
        name, address = f"hca{number}", f"0000:2{number}:00.0"
        (tmp_path / "pci" / address).mkdir(parents=True)
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "device").symlink_to(tmp_path / "pci" / address)
        network = None if rail is None else f"ibrail{rail}"
        adapters.append({**ADAPTER, "name": name, "network": network, "rail": rail})
    monkeypatch.setattr(agent, "NET", tmp_path / "net")
    agent.configuration(
        {
            "uuid": "5b5a1d26-4a33-4f0b-8a4e-5f8f7e9f5b7d",
            "adapters": adapters,
            "rail_network": "ibrail{n}",
        }
    )
    assert read_declaration(place.read_text()).wishes == NodeWishes(
        role_options={},
        rails=RailWish("ibrail{n}", (("0000:21:00.0", "0000:23:00.0"), ("0000:20:00.0",))),
    )
