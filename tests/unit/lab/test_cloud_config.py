# SPDX-License-Identifier: Apache-2.0
"""The configuration that the lab's services read."""

import configparser
import json

import pytest
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.topology import roles
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_lab import config
from nova_hpc_lab.node import qemu
from nova_hpc_lab.state import Paths, Settings

PF = dict(zip(("vendor_id", "product_id"), qemu.PF_IDS, strict=True))
VF = dict(zip(("vendor_id", "product_id"), qemu.VF_IDS, strict=True))


@pytest.fixture
def settings():
    return Settings.fresh(20000, 1, "two-socket")


@pytest.fixture
def paths(tmp_path):
    found = Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")
    found.make()
    return found


def _read(text, tmp_path, *options):
    """Read a text the way services do: with oslo.config."""
    file = tmp_path / "x.conf"
    file.write_text(text)
    conf = cfg.ConfigOpts()
    for group, option in options:
        conf.register_opt(option, group=group)
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    return conf


def test_values_come_back_as_they_were(tmp_path):
    text = config.render(
        {"a": {"flag": True, "number": 7, "text": "p$w %(x)s", "many": ["one", "two, three"]}}
    )
    conf = _read(
        text,
        tmp_path,
        ("a", cfg.BoolOpt("flag")),
        ("a", cfg.IntOpt("number")),
        ("a", cfg.StrOpt("text")),
        ("a", cfg.MultiStrOpt("many")),
    )
    assert (conf.a.flag, conf.a.number) == (True, 7)
    assert conf.a.text == "p$w %(x)s"
    assert conf.a.many == ["one", "two, three"]


def test_a_value_never_brings_another_option_with_it():
    with pytest.raises(ValueError, match="line break"):
        config.render({"a": {"b": "c\nd = e"}})


def test_the_filter_comes_before_those_that_validate_its_candidates(paths, settings, tmp_path):
    conf = _read(
        config.render(config.nova(paths, settings)),
        tmp_path,
        ("filter_scheduler", cfg.ListOpt("enabled_filters")),
        ("filter_scheduler", cfg.ListOpt("weight_classes")),
        ("filter_scheduler", cfg.MultiStrOpt("available_filters")),
        ("filter_scheduler", cfg.BoolOpt("pci_in_placement")),
    ).filter_scheduler
    order = conf.enabled_filters
    assert order.index("HpcTopologyFilter") < order.index("NUMATopologyFilter")
    assert order.index("HpcTopologyFilter") < order.index("PciPassthroughFilter")
    assert any(name.endswith(".HpcTopologyFilter") for name in conf.available_filters)
    assert any(name.endswith(".HpcPackingWeigher") for name in conf.weight_classes)
    assert order[-1] == "HpcFabricFilter"
    assert any(name.endswith(".HpcFabricFilter") for name in conf.available_filters)
    assert conf.pci_in_placement


def test_a_compute_knows_no_database_and_reaches_all_services_from_the_node(settings):
    text = config.render(config.compute(settings, "hpc1", "10.0.2.2"))
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    assert not {"database", "api_database"} & set(parser.sections())
    assert settings.passwords["database"] not in text
    assert settings.passwords["admin"] not in text
    assert "127.0.0.1" not in text
    for group in ("placement", "glance", "neutron"):
        assert parser[group]["endpoint_override"].startswith("http://10.0.2.2:")
        assert parser[group]["auth_url"].startswith("http://10.0.2.2:")
    assert parser["DEFAULT"]["host"] == "hpc1"
    assert parser["DEFAULT"]["compute_driver"] == "hpc.HpcLibvirtDriver"


def test_controllers_and_computes_agree_on_the_names_of_devices(paths, settings):
    controller = config.nova(paths, settings)
    compute = config.compute(settings, "hpc1", "10.0.2.2")
    assert controller["pci"]["alias"] == compute["pci"]["alias"]
    assert controller["hpc"]["device_role"] == compute["hpc"]["device_role"]
    assert "report_in_placement" in compute["pci"]


def test_the_roles_of_the_virtual_node_are_valid(settings, tmp_path):
    conf = cfg.ConfigOpts()
    hpc_conf.register_all_options(conf)
    file = tmp_path / "nova.conf"
    file.write_text(config.render(config.compute(settings, "hpc1", "10.0.2.2")))
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    assert roles.parse_roles(conf.hpc.device_role).names == ("gpu", "vf", "pf", "wide", "nvme")


def test_adapters_of_a_network_have_a_role_of_their_own(settings):
    compute = config.compute(settings, "hpc1", "10.0.2.2", {"hca2": "physnet1"})
    found = roles.parse_roles(compute["hpc"]["device_role"])
    assert found.names == ("physnet1", "gpu", "vf", "pf", "wide", "nvme")
    parent = PciFunction(address="0000:44:00.0", os_devices=("net hca2",), **PF)
    other = PciFunction(address="0000:42:00.0", os_devices=("net hca1",), **PF)
    kept = PciFunction(address="0000:44:10.0", physical_function=parent.address, **VF)
    free = PciFunction(address="0000:42:10.0", physical_function=other.address, **VF)
    node = Node(source="test", functions=(parent, other, kept, free))
    assert [found.role_of(each, node) for each in (kept, free)] == ["physnet1", "vf"]


def test_a_node_with_disks_erases_them(settings):
    hpc = config.compute(settings, "hpc1", "10.0.2.2", has_disks=True)["hpc"]
    assert (hpc["clean_stage"], hpc["clean_checks"]) == ("nvme:host", "nvme:nvme")
    assert "clean_stage" not in config.compute(settings, "hpc1", "10.0.2.2")["hpc"]


def test_all_files_are_for_the_owner_only_and_listen_on_the_loopback(paths, settings):
    config.write_all(paths, settings)
    files = [path for path in paths.config.rglob("*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert "0.0.0.0" not in path.read_text()
    clouds = json.loads((paths.config / "clouds.yaml").read_text())["clouds"]
    assert clouds["nova-hpc-lab"]["auth"]["auth_url"] == "http://127.0.0.1:20000/v3"


def test_writing_again_changes_nothing(paths, settings):
    config.write_all(paths, settings)
    before = {path: path.stat().st_ino for path in paths.config.rglob("*")}
    config.write_all(paths, settings)
    assert before == {path: path.stat().st_ino for path in paths.config.rglob("*")}


def test_a_node_does_not_count_as_down_for_one_answer_that_was_lost(paths, settings, tmp_path):
    """RabbitMQ was killed with a report under way: the next is sent when it times out."""
    default = configparser.RawConfigParser(strict=False)
    default.read_string(config.render(config.nova(paths, settings)))
    compute = configparser.RawConfigParser(strict=False)
    compute.read_string(config.render(config.compute(settings, "hpc1", "10.0.2.2")))
    report_interval = 10
    longest = report_interval + compute.getint("DEFAULT", "rpc_response_timeout")
    assert default.getint("DEFAULT", "service_down_time") > longest + report_interval
