# SPDX-License-Identifier: Apache-2.0
"""Configuration options, one module a group.

The plug-ins call :func:`register_all_options` with Nova's own ``CONF``, and the command
calls it with a private one; ``list_opts`` feeds ``oslo-config-generator``.
"""

from __future__ import annotations

from oslo_config import cfg

from nova_hpc.conf import hpc


def register_all_options(conf: cfg.ConfigOpts) -> None:
    """Register every group of this project on *conf* (idempotent)."""
    hpc.register_hpc_group(conf)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return group and options of nova-hpc in nova.conf, for the entry point of oslo.config."""
    return [(hpc.GROUP.name, list(hpc.OPTS))]
