# SPDX-License-Identifier: Apache-2.0
"""Each configuration of the documentation, loaded with all options of Nova and of Placement."""

from __future__ import annotations

from collections import defaultdict

import pytest
from keystoneauth1 import loading
from nova.conf import opts as nova_opts
from oslo_config import cfg, types
from oslo_limit import opts as limit_opts
from oslo_messaging import opts as messaging_opts
from placement.conf import opts as placement_opts

from nova_hpc.conf import partitions
from tests.unit.commands import pages


def everything(*lists):
    """Group -> options."""
    found = defaultdict(dict)
    for group, opts in (each for every in lists for each in every):
        name = getattr(group, "name", group) or "DEFAULT"
        found[name] |= {opt.dest: opt for opt in opts}
    found.pop("hpc", None)
    return {group: list(opts.values()) for group, opts in found.items()}


KEYSTONE = [
    (
        "oslo_limit",
        [
            *loading.get_auth_common_conf_options(),
            *loading.get_auth_plugin_conf_options("password"),
        ],
    )
]
#: Of Neutron, which is not beside every Nova: what the pages set.
NEUTRON = [
    ("ml2", [cfg.ListOpt("mechanism_drivers"), cfg.ListOpt("type_drivers")]),
    ("ml2_type_vlan", [cfg.ListOpt("network_vlan_ranges")]),
    ("sriov_nic", [cfg.ListOpt("physical_device_mappings")]),
]
#: Of Masakari, whose options have the same names as Nova's.
MASAKARI = [
    (
        "taskflow_driver_recovery_flows",
        [
            cfg.Opt(
                "host_auto_failure_recovery_tasks",
                type=types.Dict(types.List(bounds=True), bounds=False),
            )
        ],
    ),
    ("nova_hpc", [cfg.ListOpt("drain_command")]),
]
SERVICES = {
    "nova": everything(nova_opts.list_opts(), limit_opts.list_opts(), KEYSTONE),
    "placement": everything(placement_opts.list_opts()),
    "neutron": everything(partitions.list_opts(), messaging_opts.list_opts(), NEUTRON),
    "masakari": everything(MASAKARI),
}


def wrong(text, folder, service):
    known = SERVICES[service]
    found = pages.wrong_settings(text, folder, known, {"hpc", *known})
    sections = {}
    cfg.ConfigParser(str(folder / "block.conf"), sections).parse()
    return found + [
        f"{service} has no [{each}]" for each in sections if each not in known and each != "hpc"
    ]


@pytest.mark.parametrize(("where", "text"), pages.of_services())
def test_settings(tmp_path, where, text):
    """A block is of one service, all of it."""
    found = {service: wrong(text, tmp_path, service) for service in SERVICES}
    assert [] in found.values(), found


def test_the_page_on_services_says_what_configure_writes(tmp_path):
    block, _ = pages.settings(pages.DOCS / "admin/services.rst")
    said = []
    for text in (block.text, (pages.TOP / "etc/examples/nova-hpc-controller.conf").read_text()):
        (tmp_path / "nova.conf").write_text(text)
        options = cfg.ConfigOpts()
        options.register_opts(SERVICES["nova"]["filter_scheduler"], group="filter_scheduler")
        options([], default_config_files=[str(tmp_path / "nova.conf")], default_config_dirs=[])
        said.append(options.filter_scheduler)
    page, written = said
    assert page.weight_classes == written.weight_classes
    assert page.weight_classes[0] == "nova.scheduler.weights.all_weighers"
    assert page.available_filters == written.available_filters
    assert page.enabled_filters == written.enabled_filters


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[filter_scheduler]\nweight_classes = a\nweight_classes = b", "is given 2 times"),
        ("[pci]\nreport_in_placment = true", "is no option"),
        ("[workaround]\ndisable_fallback_pcpu_query = true", "has no [workaround]"),
        ("[scheduler]\nmax_placement_results = many", "max_placement_results"),
    ],
)
def test_wrong_settings_are_found(tmp_path, text, why):
    assert any(why in each for each in wrong(text, tmp_path, "nova"))
