# SPDX-License-Identifier: Apache-2.0
"""The commands read what oslo.config reads for the services themselves."""

import argparse
import itertools

import pytest
from oslo_config import cfg

from nova_hpc import conf
from nova_hpc_tools.inventory.command import Inventory
from nova_hpc_tools.site import service_settings, source_options


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Files in every place where a service looks for its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = (".nova/nova.conf.d", ".nova/nova-compute.conf.d", "given", "empty")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    files = (
        *(".nova/nova.conf", ".nova/nova-compute.conf", "nova.conf", "one.conf", "two.conf"),
        *(".nova/nova.conf.d/b.conf", ".nova/nova.conf.d/a.conf", ".nova/nova.conf.d/.new.conf"),
        *(".nova/nova.conf.d/c.txt", ".nova/nova-compute.conf.d/d.conf"),
        *("given/f.conf", "given/e.conf"),
    )
    for name in files:
        text = f"[hpc]\nnvlink_set = {name}\nsysfs_root = {name}\n"
        (tmp_path / name).write_text(text, encoding="ascii")
    return tmp_path


WORDS = ("--config-file=one.conf", "--config-file=two.conf", "--config-dir=given")


@pytest.mark.parametrize(
    "words",
    [each for count in range(4) for each in itertools.permutations(WORDS, count)],
)
def test_as_oslo_config(home, words):
    words = [word.replace("=", f"={home}/") for word in words]
    service = cfg.ConfigOpts()
    conf.register_all_options(service)
    service(words, project="nova", prog="nova-compute")
    ours = service_settings.load_options(service_settings.config_files_of(words))
    assert ours.hpc.nvlink_set == service.hpc.nvlink_set
    assert ours.hpc.sysfs_root == service.hpc.sysfs_root
    assert len(ours.hpc.nvlink_set) >= 2


def test_the_words_stay_in_their_order(home):
    parser = argparse.ArgumentParser()
    source_options.add_config_options(parser)
    given = ["--config-dir", "{a}", "--config-file=b", "--config-dir", "c"]
    assert parser.parse_args(given).config == [
        "--config-dir={a}",
        "--config-file=b",
        "--config-dir=c",
    ]
    assert parser.parse_args([]).config == []


@pytest.mark.parametrize("word", ["--config-file=none", "--config-dir=none"])
def test_what_is_named_has_to_be_there(home, word):
    with pytest.raises(service_settings.ConfigError, match="none"):
        service_settings.load_options(service_settings.config_files_of([word]))


def test_inventory_reads_the_directory_too(home, machine, capsys):
    """The roles of the node's own file, as in ``nova-hpc device``."""
    role = '{"role": "accelerator", "class": "03*"}'
    for path in home.rglob("*.conf"):
        path.write_text("", encoding="ascii")
    file = home / ".nova/nova.conf.d/nova-hpc-compute.conf"
    file.write_text(f"[hpc]\ndevice_role = {role}\n", encoding="ascii")
    command = Inventory(None, None)
    words = ["--root", str(machine), "--show", "device-spec"]
    parser = command.get_parser("nova-hpc inventory")
    assert command.run(parser.parse_args(words)) == 0
    assert '"hpc_role": "accelerator"' in capsys.readouterr().out
