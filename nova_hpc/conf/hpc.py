# SPDX-License-Identifier: Apache-2.0
"""Group ``[hpc]``: the options that every part of the project shares, one module a concern."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from nova_hpc.conf import (
    adapters,
    fabric,
    health,
    node,
    nvlink,
    peer,
    ports,
    roles,
    scheduler,
    segments,
    servers,
    stage,
    watch,
)

GROUP: Final = cfg.OptGroup(
    "hpc",
    title="Virtual HPC clusters (nova-hpc)",
    help="""
Options of nova-hpc: the topology filter and the packing weigher of the
scheduler, and the libvirt driver of the compute nodes. Without ``hpc_*`` tags
in ``[pci]device_spec`` and ``hpc:`` keys in flavors none of them has an
effect.
""",
)

OPTS: Final[list[cfg.Opt]] = [
    option
    for concern in (
        *(roles, ports, scheduler, fabric, node, health),
        *(servers, nvlink, adapters, peer, stage, segments, watch),
    )
    for option in concern.OPTS
]


def register_hpc_group(conf: cfg.ConfigOpts) -> None:
    """Register the group on *conf* (idempotent)."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
