# SPDX-License-Identifier: Apache-2.0
"""What the services of a lab with a simulated fabric read, and which they are."""

import attrs
import pytest
import yaml
from oslo_config import cfg

from nova_hpc.conf import partitions
from nova_hpc_lab import config
from nova_hpc_lab.cloud import Cloud, Wishes, prepared
from nova_hpc_lab.fabric import lab_fabric, partition_services, subnet_manager
from nova_hpc_lab.state import Paths, Settings

NETWORKS = {"hca2": "physnet1", "hca3": "physnet2"}


@pytest.fixture
def paths(tmp_path):
    found = Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")
    found.make()
    return found


@pytest.fixture
def settings():
    return Settings.fresh(20000, 2, "two-socket", fabric=True)


def _read(sections, tmp_path, register):
    file = tmp_path / "x.conf"
    file.write_text(config.render(sections))
    conf = cfg.ConfigOpts()
    register(conf)
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    return conf


def test_neutron_and_the_agent_name_the_same_fabric(paths, settings, tmp_path):
    sections = partition_services.partition_options(paths, ("physnet1", "physnet2"), 100, 199)
    server = _read(sections, tmp_path, partitions.register_server_options).hpc_partitions
    assert server.physical_networks == {"physnet1": "main", "physnet2": "main"}
    assert sections["ml2_type_vlan"]["network_vlan_ranges"] == ("physnet1:100:199,physnet2:100:199")
    agent = _read(
        partition_services.agent_options(paths, settings),
        tmp_path,
        partitions.register_agent_options,
    ).hpc_fabric_agent
    assert agent.fabric in server.physical_networks.values()
    files = subnet_manager.manager_files(paths)
    assert agent.partitions_file == str(files.partitions)
    assert agent.simulated_host == "manager"


def test_what_the_lab_had_stays_beside_partitions(paths, settings):
    sections = partition_services.merge_sections(
        config.neutron(paths, settings), partition_services.partition_options(paths, ("p",))
    )
    assert sections["DEFAULT"]["core_plugin"] == "ml2"
    assert sections["ml2"]["mechanism_drivers"] == "hpc_partitions,nova_hpc_lab"
    assert sections["ml2"]["type_drivers"] == "local,flat,vlan"


def test_a_port_stands_for_each_adapter_that_is_kept_for_ports(settings):
    adapters = {
        ("hpc1", "hca2"): ["0000:81:00.0", "0000:81:00.1", "0000:81:00.2"],
        ("hpc2", "hca3"): ["0000:05:00.0", "0000:05:10.0"],
    }
    net = lab_fabric.lab_net(settings, NETWORKS, adapters)
    # The simulator was started when no address was known: it has the same ports.
    assert [port.guid for port in net.ports] == [
        port.guid for port in lab_fabric.lab_net(settings, NETWORKS).ports
    ]
    document = yaml.safe_load(net.inventory())
    assert [(one["host"], one["address"], one["functions"]) for one in document["ports"]] == [
        ("hpc1", "0000:81:00.0", ["0000:81:00.1", "0000:81:00.2"]),
        ("hpc2", "0000:05:00.0", ["0000:05:10.0"]),
    ]


def test_the_subnet_manager_is_closed_from_its_first_start(paths):
    files = subnet_manager.prepare_manager(paths)
    options = dict(line.split(" ", 1) for line in files.config.read_text().splitlines())
    keys = [options[name] for name in ("m_key", "sm_key", "sa_key")]
    assert len(set(keys)) == 3
    assert "0x0000000000000001" not in keys
    assert options["m_key_protection_level"] == "2"
    assert options["part_enforce"] == "both"
    assert files.config.stat().st_mode & 0o777 == 0o600
    assert files.partitions.read_text() == subnet_manager.HARDENED_DEFAULT
    # Keys stay, and partitions are the agent's.
    files.partitions.write_text("# the agent's\n")
    assert subnet_manager.prepare_manager(paths) == files
    assert dict(line.split(" ", 1) for line in files.config.read_text().splitlines()) == options
    assert files.partitions.read_text() == "# the agent's\n"


def test_a_lab_has_a_fabric_when_it_was_asked_for_one(tmp_path):
    paths = Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")
    paths.make()
    names = {"ibsim", "opensm", "neutron-rpc-server", "fabric-agent"}
    assert not names & set(prepared(paths, Wishes(nodes=0)).services())
    assert names < set(prepared(paths, Wishes(fabric=True)).services())
    assert names < set(prepared(paths, Wishes()).services())
    assert not names & set(prepared(paths, Wishes(fabric=False)).services())


def test_settings_of_an_earlier_release_have_no_fabric(paths, settings):
    attrs.evolve(settings, fabric=False).save(paths)
    text = paths.settings.read_text().replace(' "fabric": false', ' "x": 0')
    paths.settings.write_text(text.replace(',\n "x": 0', ""))
    assert "fabric" not in paths.settings.read_text()
    assert not Cloud(paths, Settings.load(paths)).settings.fabric
