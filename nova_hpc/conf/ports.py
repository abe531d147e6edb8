# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the roles of physical networks."""

from __future__ import annotations

import fnmatch
from typing import Any, Final

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


def role_of(conf: Any, network: str | None) -> str | None:
    """The role of a physical network; None: it has none.

    :param conf: Nova's configuration.
    """
    for entry in conf.hpc.port_roles:
        role, _, pattern = entry.partition(":")
        # Nova compares the tags of devices without regard to case.
        if network and fnmatch.fnmatchcase(network.lower(), pattern.strip().lower()):
            return str(role.strip()) or None
    return None


def roles_of(conf: Any) -> tuple[str, ...]:
    """All roles that networks can have, each once."""
    found = (entry.partition(":")[0].strip() for entry in conf.hpc.port_roles)
    return tuple(dict.fromkeys(role for role in found if role))
