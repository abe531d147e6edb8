# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: memory that servers of one group on this node share."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

OPTS: Final[list[cfg.Opt]] = [
    cfg.ListOpt(
        "shared_memory_mb",
        item_type=types.String(regex=r"^([0-9]{1,4}:)?[0-9]{1,9}$"),
        default=["0"],
        help="""
MiB of this compute node's memory for segments that servers of one group share, on each NUMA node.
One number holds for every NUMA node; ``0:4096,1:8192`` gives a number for each, and a NUMA node
that is not named has none. 0, the default: no server gets a segment here.

A server of a flavor with ``hpc:shared_memory`` shares a segment with the members of its server
group that are on this node, if the group is of the server's project. A segment takes 4 MiB and,
for each part, as many MiB as the flavor requests. It has as many parts as the CPUs of
``[compute]cpu_dedicated_set`` hold such servers, 2 to 16. It is taken whole when its first server
starts, on the NUMA node of that server's first cell, and given back when its last server has
ended.

Nova does not count this memory: it has to be part of ``[DEFAULT]reserved_host_memory_mb``.
``nova-hpc doctor`` compares the two. It is counted where files of tmpfs are counted: as shared
memory of the host, and by systemd with nova-compute's service.

With less, or with 0, running servers keep their segments. A server with a segment needs it again
when it starts again. If no other server keeps the segment alive and there is no room any more,
the start is refused; then resize the server to a flavor without the key.

Related options:

* ``[hpc]shared_memory_dir``
* ``[DEFAULT]reserved_host_memory_mb``
* ``[compute]cpu_dedicated_set``
""",
    ),
    cfg.StrOpt(
        "shared_memory_dir",
        default="/dev/shm/nova-hpc",  # nosec  nova-compute makes it, for itself alone
        help="""
The directory of the segments, on a tmpfs that is large enough for all of
``[hpc]shared_memory_mb``. nova-compute makes it with mode 0711; one that is there already
has to belong to the user of nova-compute, and others must not be able to write in it. All
nova-compute services of a host need directories of their own.

Which server has which part of which file is in the guests' domains alone. A file that no
running domain names is removed when the service starts and at every periodic update; while
libvirt does not answer, all are kept.

Related options:

* ``[hpc]shared_memory_mb``
""",
    ),
]
