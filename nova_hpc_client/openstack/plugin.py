# SPDX-License-Identifier: Apache-2.0
"""The plug-in of the OpenStack client (entry point ``openstack.cli.extension``)."""

from __future__ import annotations

import argparse
from typing import Any, Final

#: Attribute of the client manager, and the middle of the commands' entry point group.
API_NAME: Final = "hpc"
API_VERSION_OPTION: Final = "os_hpc_api_version"
API_VERSIONS: Final = {"1": "openstack.connection.Connection"}
DEFAULT_API_VERSION: Final = "1"


def make_client(instance: Any) -> Any:
    """Return the connection that all commands of the shell share."""
    return instance.sdk_connection


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Declare the version option that the OpenStack client expects of each plug-in."""
    parser.add_argument(
        "--os-hpc-api-version",
        metavar="<hpc-api-version>",
        default=DEFAULT_API_VERSION,
        help=f"version of the commands below hpc, default: {DEFAULT_API_VERSION}",
    )
    return parser
