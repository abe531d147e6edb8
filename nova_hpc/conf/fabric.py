# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the places of the members of server groups on the fabric."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.IntOpt(
        "fabric_max_members",
        default=4096,
        min=1,
        max=999_999,
        help="""
The highest number that users may announce with the scheduler hint ``hpc_members``.
HpcFabricFilter keeps so many places of a domain for one server group, until its members have come
or the group has none any more. The quotas of a project limit the real number; Nova checks
``server_group_members`` with each server.
""",
    ),
    cfg.FloatOpt(
        "fabric_placement_timeout",
        default=30.0,
        min=1.0,
        help="""
Seconds for which HpcFabricFilter repeats a request to Placement about the domain of a server
group, if Placement gives no usable answer. After that the server is refused, because another
scheduler may already have chosen the domain. The filter waits for a Placement that is slow and
answers. Leave this below ``rpc_response_timeout``.

Related options:

* ``[DEFAULT]rpc_response_timeout``
""",
    ),
    cfg.FloatOpt(
        "fabric_weight_multiplier",
        default=100000.0,
        help="""
Multiplier of HpcFabricWeigher, which prefers, among the hosts of a server
group's domain, those of the leaf where its members are already, or will have
room together. It has no effect on servers without ``hpc:fabric`` in their
flavor, and none where ``hpc:fabric`` is ``leaf``, because all hosts that are left
are equally near then. 0 switches the weigher off. The default comes before
HpcPackingWeigher, and stays below the weighers of failed builds and of moves
between cells.

Related options:

* ``[filter_scheduler]weight_classes``
* ``[hpc]packing_weight_multiplier``
""",
    ),
]
