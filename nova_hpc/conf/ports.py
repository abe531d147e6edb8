# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the roles of physical networks."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.ListOpt(
        "port_roles",
        default=[],
        help="""
Which physical networks play which role for servers: a list of
``role:physical network``, for example ``rail:ib*,storage:roce0``. A network may
contain the wildcards ``*`` and ``?``; the first entry that fits a network wins.

A flavor names Neutron's direct ports in ``hpc:group`` by the role of their
network, ``gpu:1,rail:1``, or all of them by the word ``port``. Networks without
a role need none. The option has to be the same for nova-scheduler and
nova-compute.

Related options:

* ``[pci]device_spec``, with ``physical_network``
""",
    ),
]
