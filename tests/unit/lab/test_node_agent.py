# SPDX-License-Identifier: Apache-2.0
"""What the node's own start-up script does to an adapter, and in which order."""

import importlib.util
import os
from pathlib import Path

import pytest

import nova_hpc_lab.node
from nova_hpc.wire.node_declaration import Cpus, NodeWishes, RoleWish, read_declaration

AGENT = Path(nova_hpc_lab.node.__file__).parent / "inside" / "agent.py"
ADAPTER = {
    "name": "hca0",
    "mac": "52:54:00:01:00:ff",
    "vfs": ["52:54:00:01:00:00"] * 2,
    "network": None,
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
def test_adapters_are_kept_for_the_ports_of_their_network(
    agent, tmp_path, monkeypatch, networks, declared
):
    called = []
    monkeypatch.setattr(agent, "run", lambda *argv: called.append(argv))
    monkeypatch.setattr(agent, "CONFIG", tmp_path)
    monkeypatch.setattr(agent, "INCLUDES", tmp_path / "there" / "nova.conf.d")
    monkeypatch.setattr(agent, "NOVA", tmp_path / "there")
    monkeypatch.setattr(agent, "STATE", tmp_path / "state")
    declaration = tmp_path / "hpc" / "node.yaml"
    monkeypatch.setattr(agent, "DECLARATION", declaration)
    (tmp_path / "nova").mkdir()
    (tmp_path / "lab.conf").write_text("")
    adapters = [{**ADAPTER, "network": each} for each in networks]
    agent.configuration({"uuid": "5b5a1d26-4a33-4f0b-8a4e-5f8f7e9f5b7d", "adapters": adapters})
    ((_, *rest),) = called
    assert rest[:1] == ["configure"]
    assert rest[5:] == ["--replace", "device_spec"]
    wishes = read_declaration(declaration.read_text()).wishes
    assert wishes == NodeWishes(role_options=declared)
    # Nothing of the last start counts, and a key can be put behind the others.
    text = declaration.read_text()
    declaration.write_text(f"{text}cpus: {{housekeeping_cores: 2}}\n")
    assert read_declaration(declaration.read_text()).wishes.cpus == Cpus(2)
    agent.configuration({"uuid": "5b5a1d26-4a33-4f0b-8a4e-5f8f7e9f5b7d", "adapters": adapters})
    assert declaration.read_text() == text
