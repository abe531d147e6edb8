# SPDX-License-Identifier: Apache-2.0
"""The options of ``nova-hpc doctor`` for its sources. Imports little, for a quick ``--help``."""

from __future__ import annotations

import argparse

from nova_hpc_tools.site import layout_names, source_options

NODE, CONTROLLER, PLACEMENT, CLOUD = "node", "controller", "placement", "cloud"


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the examined machine and its services."""
    source_options.add_node_options(parser)
    source_options.add_config_options(parser, "the services that are looked at")
    parser.add_argument(
        "--part",
        choices=(NODE, CONTROLLER, PLACEMENT, CLOUD),
        action="append",
        help="role of this machine, or cloud: compare the records of all nodes in Nova, Placement "
        "and the fabric map, on a machine with nova-manage (default: node); may be repeated",
    )


def add_advice_options(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the deployment tool in the cures."""
    parser.add_argument(
        "--layout",
        choices=layout_names.NAMES,
        default=layout_names.PLAIN,
        help="deployment tool of the services, as in nova-hpc configure --layout: the cures name "
        "the files and commands of Kolla-Ansible or OpenStack-Ansible (default: plain)",
    )
