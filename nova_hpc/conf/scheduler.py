# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the filter and the weigher."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

OPTS: Final[list[cfg.Opt]] = [
    cfg.FloatOpt(
        "packing_weight_multiplier",
        default=10000.0,
        help="""
Multiplier of HpcPackingWeigher, which prefers, for a server with an ``hpc:``
flavor, the host whose free devices fit the request most tightly, so that
whole switches and whole hosts stay free for larger servers.

A positive value packs, a negative value spreads, and 0 switches the weigher off. It has no effect
on servers without ``hpc:`` keys in their flavor. The best host gets the multiplier and the worst
nothing. So the difference between two neighbouring scores is the multiplier divided by the number
of different scores. The default outweighs Nova's weighers of memory, CPUs, disk and PCI devices,
with a multiplier of 1.0 each, up to some two thousand different scores, and is far below those of
failed builds and of moves between cells. The users' own wishes come before packing, whatever the
value: see ``[hpc]weighers_before_packing``. The value can be overridden for the hosts of an
aggregate with the metadata key ``hpc_packing_weight_multiplier``.

Related options:

* ``[filter_scheduler]weight_classes``
* ``[hpc]weighers_before_packing``
""",
    ),
    cfg.ListOpt(
        "weighers_before_packing",
        default=["ServerGroupSoftAffinityWeigher", "ServerGroupSoftAntiAffinityWeigher"],
        help="""
Weighers for wishes of the users: HpcPackingWeigher decides only among hosts that get the same
weight from these. By default they are the weighers of the soft policies of server groups. Name
the class of a weigher, or its whole path. A weigher has no effect if
``[filter_scheduler]weight_classes`` does not name it, or if its multiplier is 0.

Each difference that they make between two hosts is worth twice
``[hpc]packing_weight_multiplier``. With an empty list packing comes before the
users' wishes, as large as its multiplier is.

Related options:

* ``[hpc]packing_weight_multiplier``
* ``[filter_scheduler]weight_classes``
* ``[filter_scheduler]soft_affinity_weight_multiplier``
* ``[filter_scheduler]soft_anti_affinity_weight_multiplier``
""",
    ),
    cfg.StrOpt(
        "placement_question",
        default="hosts",
        choices=[
            (
                "hosts",
                "for CPUs, memory and disk, and for the resources of ports; devices are then "
                "chosen from the free providers of each host in the answer",
            ),
            ("devices", "for each device in a request group of its own, as Nova does it"),
        ],
        help="""
The resources in nova-scheduler's request to Placement for a server with an ``hpc:`` flavor.

Placement reads all providers of the cloud once for each requested device: eight devices take it
five times as long as none. Both values choose the same hosts and devices, and give the same
reason for a refusal.

With ``hosts`` every host with enough CPUs, memory and disk takes one of the
``[scheduler]max_placement_results`` candidates, hosts without devices among them. An answer with
as many candidates was cut off; then the requests of the next five minutes contain each device. So
set it, and Placement's own ``[placement]max_allocation_candidates``, to more than the number of
all hosts.

Related options:

* ``[scheduler]max_placement_results``
""",
    ),
    cfg.IntOpt(
        "candidates_per_host",
        default=8,
        min=1,
        max=64,
        help="""
How many ranked device sets HpcTopologyFilter tries on one host until one of
them also satisfies Nova's own check of CPUs and memory pages. The best is tried
first, and the others are only made where Nova would refuse it. Only the first
set that passes is offered to the rest of the scheduler.
""",
    ),
    cfg.Opt(
        "flavor_weights",
        type=types.Dict(value_type=types.Integer(min=0)),
        default={},
        help="""
How much each flavor counts when HpcTopologyFilter measures the loss that a placement causes for
later servers: a list of ``flavor name:weight``, for example ``hpc.gpu8:4,hpc.gpu1:10``. Only the
proportions matter, and the share of a flavor among the requested servers is a good weight. A
flavor that is not named has the weight 1, and one with the weight 0 is left out. If the list is
empty, see ``learn_flavor_weights``.

The filter reads the flavors with PCI devices from the API database, at most every five minutes.
If it cannot, or if there are none, servers with 1, 2, 4, 8 and 16 GPUs are the measure.

Related options:

* ``[hpc]learn_flavor_weights``
""",
    ),
    cfg.BoolOpt(
        "learn_flavor_weights",
        default=True,
        help="""
Whether flavors count by how many servers of them there are, where
``flavor_weights`` is empty; without it all count the same.

The servers of all cells are counted whenever the flavors are read. The share of a
flavor is rounded to a power of two, so that all schedulers work with the same weights,
and a flavor counts like four servers more than it has. As long as a cell does not
answer, the weights stay as they are.

Related options:

* ``[hpc]flavor_weights``
""",
    ),
    cfg.BoolOpt(
        "spread_equal_sets",
        default=True,
        help="""
Whether equally good device sets of a host are offered in an order that depends
on the server. Schedulers that work at the same moment then mostly choose
different devices; without it all but one of them would lose the host, because
Nova tries only one set of devices of each host before it goes on to the next.

Related options:

* ``[filter_scheduler]shuffle_best_same_weighed_hosts``
""",
    ),
    cfg.IntOpt(
        "contended_hosts",
        default=64,
        min=1,
        max=1024,
        help="""
Largest number of best hosts among which a server chooses, while schedulers (or threads of one)
take each other's devices away.

HpcPackingWeigher prefers the host that a server fills best, so schedulers that decide at the same
moment all choose that one. Each lost claim makes the number of hosts for its scheduler's next
servers four times as large, and each successful claim reduces it by 3 %, down to 1. Each request
has its own order of these hosts. Hosts that meet less of the flavor than the best one are never
among them. So up to so many hosts are filled side by side as long as claims are lost. 1 packs in
strict order, even if claims are lost.

Related options:

* ``[hpc]packing_weight_multiplier``
* ``[hpc]spread_equal_sets``
""",
    ),
    cfg.StrOpt(
        "moves_on_unknown_nova",
        default="aligned",
        choices=[
            (
                "aligned",
                "only to hosts with devices that satisfy the flavor, as far as the filter can "
                "read them",
            ),
            ("any", "to any host that Nova takes where none of these is found"),
        ],
        help="""
Hosts to which servers with ``hpc:`` flavors may be evacuated, migrated, resized and unshelved by
a scheduler of a release of Nova that this release does not support.

New servers are refused there, with the reason. Servers that run have to be able to leave a host:
HpcTopologyFilter chooses for them as ever, without a promise. With ``any`` a server for which it
finds nothing, or whose hosts it cannot read, goes to the host that Nova chooses. The node's own
check has the last word with any value: a server whose flavor requires alignment is never started
without it. Where no host has such devices it stays as it was, with the reason in its faults; one
with ``hpc:affinity_policy`` ``preferred`` moves.
""",
    ),
    cfg.BoolOpt(
        "disclose_capacity",
        default=False,
        help="""
Whether the user of a server that finds no host reads how much there is: "2 of 3 nodes: 2 gpu
free, but at most 1 under one switch (needs 2)". By default the server's fault contains the wish
that no host meets and a possible cure, and nothing about the cloud. The names of hosts and the
addresses of devices are never in it.

Operators find all of it in the log of nova-scheduler and with ``nova-hpc
explain``, whatever the value is.
""",
    ),
    cfg.IntOpt(
        "log_interval",
        default=300,
        min=0,
        help="""
Seconds for which nova-scheduler does not repeat a line of the log about the same cause: a device
that cannot be used, a host that cannot be read, a flavor for which Placement has no candidate.
The line contains the number of times that it was held back. 0 repeats them all. The reason why a
server found no host is always in the log.
""",
    ),
    cfg.IntOpt(
        "full_collection_interval",
        default=60,
        min=0,
        help="""
Seconds between full passes of Python's garbage collector in nova-scheduler, at least,
while it serves servers with ``hpc:`` flavors. A pass takes half a second with some
thousand hosts, and Python itself makes one or two of them for each request. They come
after a request then, a second later and while no other is served; where requests follow
one another without such a moment, after one more interval. A pass comes earlier if
memory has a quarter more objects than after the last one, and at least 250,000 more
(some 25 MB). 0 leaves it to Python.
""",
    ),
    cfg.IntOpt(
        "cache_size",
        default=4096,
        min=0,
        help="""
Number of results of each kind that the scheduler keeps: the parsed tags of a device, the places
of a host's free devices, and the best devices for a request. Hosts with the same free devices,
CPUs and pages share them. A host of 16 devices that is like no other takes some 20 kilobytes in
all; the results used last are kept, and 0 keeps none.
""",
    ),
    cfg.IntOpt(
        "kept_hosts",
        default=20000,
        min=0,
        help="""
Largest number of hosts whose records the scheduler keeps. For a server with an ``hpc:`` flavor it
then reads only the hosts again whose records have changed. One short query to the databases of
the cells finds them. Set it to at least the number of hosts of the cloud.

A host with twelve devices takes 12 to 20 kilobytes, and two NUMA nodes of 128 CPUs take 12 more,
in each process. The hosts used last are kept; 0 keeps none, and reads all hosts for each request
as Nova does.
""",
    ),
]
