# SPDX-License-Identifier: Apache-2.0
"""The files below ``etc`` say what the code does.

``python -m tests.unit.test_samples`` writes them anew.
"""

import io
import sys
from pathlib import Path

import pytest
from oslo_config import cfg, generator

from nova_hpc import conf
from nova_hpc.conf import partitions
from nova_hpc.topology import roles
from nova_hpc.topology.model import NumaNode
from nova_hpc_tools.site import device_spec, include_files, settings
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.identity import Form
from tests.unit.adopt.machines import adapter, gpu, node

ETC = Path(__file__).resolve().parents[2] / "etc"


#: Name of a sample -> the options in it.
SAMPLES = {"nova-hpc": conf.list_opts, "nova-hpc-neutron": partitions.list_opts}


def sample(name):
    """The sample called *name*, as oslo-config-generator writes it."""
    options = cfg.ConfigOpts()
    generator.register_cli_opts(options)
    options(["--config-file", str(ETC / f"{name}-config-generator.conf")])
    output = io.StringIO()
    generator.generate(options, output)
    return output.getvalue()


def examples():
    """The include files of a small node: two GPUs and an adapter with two VFs."""
    second = {
        "numa_node": 1,
        "socket": 1,
        "root": "pci0000:97",
        "switches": ("0000:98:00.0",),
    }
    machine = node(
        gpu("0000:19:00.0", 40, total_vfs=16),
        gpu("0000:9b:00.0", 80, total_vfs=16, **second),
        *adapter("0000:1a:00.0", ["0000:1a:00.1", "0000:1a:00.2"], [42, 43], group=41),
        numa_nodes=(
            NumaNode(
                id=0,
                cpus=frozenset({*range(8), *range(16, 24)}),
                smt_siblings=tuple(frozenset({core, core + 16}) for core in range(8)),
            ),
            NumaNode(
                id=1,
                cpus=frozenset({*range(8, 16), *range(24, 32)}),
                smt_siblings=tuple(frozenset({core, core + 16}) for core in range(8, 16)),
            ),
        ),
    )
    table = roles.parse_roles(conf.roles.DEFAULT_ROLES)
    terms = Declaration(identity=dict.fromkeys(table.names, Form.CLASS))
    spec = device_spec.build_device_spec(machine, table, terms)
    files = settings.render_settings(
        machine, spec, settings.SettingsOptions(declaration=terms)
    ).files
    return {
        settings.file_name(part): include_files.mark_as_owned(text) for part, text in files.items()
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_is_what_the_generator_writes(name):
    assert (ETC / f"{name}.conf.sample").read_text(encoding="utf-8") == sample(name)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_has_every_option(name):
    text = sample(name)
    for group, options in SAMPLES[name]():
        assert f"\n[{group}]\n" in text
        for option in options:
            assert f"\n#{option.name} =" in text
            assert len(option.help.split()) > (20 if name == "nova-hpc" else 2)


@pytest.mark.parametrize("name", [settings.file_name(part) for part in settings.PARTS])
def test_the_examples_are_what_configure_writes(name):
    assert (ETC / "examples" / name).read_text(encoding="utf-8") == examples()[name]


def test_there_are_no_other_examples():
    """A declaration is an example, too; tests/unit/adopt/test_rails.py loads it."""
    written = {path.name for path in (ETC / "examples").iterdir()}
    assert written == {*examples(), "hgx-rails-node.yaml"}


if __name__ == "__main__":
    for name in SAMPLES:
        (ETC / f"{name}.conf.sample").write_text(sample(name), encoding="utf-8")
    for name, text in examples().items():
        (ETC / "examples" / name).write_text(text, encoding="utf-8")
    sys.exit()
