"""The settings of Nova and Placement that this project needs, as include files.

Pure: an inventory in, texts out. The files are disjoint, so that a machine
that runs several services can have all of them in one ``--config-dir``:

=============================  ==============================================
file                           read by
=============================  ==============================================
``nova-hpc-common.conf``       every Nova service: the names of the devices
``nova-hpc-controller.conf``   nova-api, nova-scheduler, nova-conductor
``nova-hpc-compute.conf``      nova-compute of this one node
``nova-hpc-placement.conf``    the Placement API
=============================  ==============================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.offer import aliases
from nova_hpc.offer.device_spec import DeviceSpec
from nova_hpc.topology.cpuset import format_list
from nova_hpc.topology.model import Node

COMMON: Final = "common"
CONTROLLER: Final = "controller"
COMPUTE: Final = "compute"
PLACEMENT: Final = "placement"
PARTS: Final = (COMMON, CONTROLLER, COMPUTE, PLACEMENT)

FILTER: Final = "HpcTopologyFilter"
FILTER_CLASS: Final = f"scheduler_filters.hpc_topology_filter.{FILTER}"
WEIGHER_CLASS: Final = "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher"
DRIVER: Final = "hpc.HpcLibvirtDriver"

#: Nova's default of ``[filter_scheduler]enabled_filters``, the same on 32-34.
NOVA_FILTERS: Final = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)
#: Filters that re-validate every candidate: ours goes before the first.
AFTER: Final = ("NUMATopologyFilter", "PciPassthroughFilter")

#: Nova's default of ``[scheduler]max_placement_results``.
FEWEST_CANDIDATES: Final = 1000


@attrs.frozen
class Options:
    """What the operator wants that the inventory cannot know."""

    #: Hosts that may match one request; the limits of Placement reach them all.
    hosts: int = 1
    #: Physical cores of each NUMA node that servers with dedicated CPUs do not get.
    housekeeping_cores: int = 1
    #: The deployment's own filters, to which ours are added.
    filters: Sequence[str] = NOVA_FILTERS
    #: Always put the product id into the name of an alias.
    product_names: bool = False
    #: Values of ``[hpc]device_role`` that are not in a configuration file yet.
    device_role: Sequence[str] = ()


@attrs.frozen
class Settings:
    """The texts of the include files."""

    #: Part -> text.
    files: Mapping[str, str] = attrs.field(hash=False)
    #: What the operator should know, each one sentence.
    remarks: tuple[str, ...] = ()


def file_name(part: str) -> str:
    """Name of the include file of a part, e.g. ``nova-hpc-compute.conf``."""
    return f"nova-hpc-{part}.conf"


def render(
    node: Node,
    spec: DeviceSpec,
    options: Options,
    others: Iterable[DeviceSpec] = (),
) -> Settings:
    """Write the settings for *node* and for a cloud that has it.

    :param spec: what *node* offers.
    :param others: what nodes of other kinds offer: the aliases are one set of
        names for the whole cloud.
    """
    remarks: list[str] = []
    files = {
        COMMON: _common(aliases.build([spec, *others], options.product_names)),
        CONTROLLER: _controller(options),
        COMPUTE: _compute(node, spec, options, remarks),
        PLACEMENT: _placement(options),
    }
    return Settings(files=files, remarks=tuple(remarks))


# --- the files ----------------------------------------------------------------


def _common(names: Sequence[Mapping[str, str]]) -> str:
    lines = [
        "# For every Nova service. A flavor asks for devices by these names:",
        "# pci_passthrough:alias=NAME:COUNT",
        "[pci]",
        *(f"alias = {_literal(json.dumps(alias))}" for alias in names),
        "",
        "[filter_scheduler]",
        "# Devices are claimed in Placement; aliases are read with that in mind.",
        "pci_in_placement = true",
    ]
    return _text(lines)


def _controller(options: Options) -> str:
    limit = _limit(options)
    lines = [
        "# For nova-api, nova-scheduler and nova-conductor.",
        "[filter_scheduler]",
        "available_filters = nova.scheduler.filters.all_filters",
        f"available_filters = {FILTER_CLASS}",
        f"# {FILTER} puts the exact devices into the request before",
        f"# {' and '.join(AFTER)} look at them.",
        f"enabled_filters = {','.join(filters(options.filters))}",
        f"weight_classes = nova.scheduler.weights.all_weighers,{WEIGHER_CLASS}",
        "# Schedulers that work at the same moment do not all choose the same host.",
        "shuffle_best_same_weighed_hosts = true",
        "",
        "[scheduler]",
        "# A total for one request: it has to reach every host that can match.",
        f"max_placement_results = {limit}",
        "",
        "[workarounds]",
        "# Dedicated CPUs are PCPU inventory on every node: no second request.",
        "disable_fallback_pcpu_query = true",
    ]
    return _text(lines)


def filters(enabled: Sequence[str]) -> list[str]:
    """Nova's (or the deployment's) filters with the project's in their place."""
    names = [name for name in enabled if name != FILTER]
    names += [name for name in AFTER if name not in names]
    place = min(names.index(name) for name in AFTER)
    return [*names[:place], FILTER, *names[place:]]


def _limit(options: Options) -> int:
    """Never below Nova's default: other flavors keep the choice they had."""
    return max(FEWEST_CANDIDATES, options.hosts)


def _placement(options: Options) -> str:
    lines = [
        "# For the Placement API.",
        "[placement]",
        "# One candidate of each host before the second of any; depth first would",
        "# spend the whole limit on the first hosts.",
        "allocation_candidates_generation_strategy = breadth-first",
        f"max_allocation_candidates = {_limit(options)}",
        "# Placement's own retries, in a transaction that began before the conflict,",
        "# can give one device to two servers; Nova retries in a new one.",
        "allocation_conflict_retry_count = 1",
        "",
        "[workarounds]",
        "# Without it, 8 of 8 devices of one host take minutes.",
        "optimize_for_wide_provider_trees = true",
    ]
    return _text(lines)


def _compute(node: Node, spec: DeviceSpec, options: Options, remarks: list[str]) -> str:
    shared, dedicated = _cpu_sets(node, options.housekeeping_cores, remarks)
    lines = [
        "# For nova-compute of this node only.",
        "[DEFAULT]",
        f"compute_driver = {DRIVER}",
        "",
        "[compute]",
    ]
    if shared:
        lines += [
            "# The host's own work, emulator threads and servers without dedicated CPUs.",
            f"cpu_shared_set = {format_list(shared)}",
        ]
    if dedicated:
        lines += [f"cpu_dedicated_set = {format_list(dedicated)}"]
    lines += ["", "[pci]", "report_in_placement = true"]
    if not spec.offers:
        lines += ["# No function of this node has a role: nothing is offered."]
        remarks.append("No device of this node is offered to servers.")
    lines += [f"device_spec = {_literal(entry)}" for entry in spec.lines()]
    if options.device_role:
        lines += ["", "[hpc]"]
        lines += [f"device_role = {_literal(entry)}" for entry in options.device_role]
    return _text(lines)


def _literal(text: str) -> str:
    """Keep oslo.config from substituting anything in *text*."""
    return text.replace("$", "$$")


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


# --- CPUs ---------------------------------------------------------------------


def _cpu_sets(
    node: Node, housekeeping: int, remarks: list[str]
) -> tuple[frozenset[int], frozenset[int]]:
    """Host CPUs and CPUs for servers; a core's threads are never separated."""
    shared: set[int] = set()
    for numa in node.numa_nodes:
        cores = sorted(numa.smt_siblings or [frozenset({cpu}) for cpu in numa.cpus], key=min)
        if not cores:
            continue
        # A node's last core stays with the servers: their memory is there.
        keep = min(housekeeping, len(cores) - 1)
        if keep < housekeeping:
            remarks.append(
                f"NUMA node {numa.id}: {keep} of {len(cores)} cores kept for the host, not "
                f"{housekeeping}, so that servers have one."
            )
        shared.update(*cores[:keep])
    everything = node.cpus
    if not everything:
        remarks.append(
            "The CPUs of this node are not known: set [compute]cpu_dedicated_set yourself."
        )
    return frozenset(shared), everything - shared
