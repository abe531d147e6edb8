# SPDX-License-Identifier: Apache-2.0
"""The examination of this machine, or of the capture of another one, for ``nova-hpc doctor``."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from oslo_config import cfg

from nova_hpc.tenancy.hygiene.cleaner import OwnResets
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_common.wire.version import WireError
from nova_hpc_tools.adopt import configure_options, declaration_file, prepare
from nova_hpc_tools.adopt.configure import Configure, NodeSetup
from nova_hpc_tools.doctor import (
    checks_cloud,
    checks_entries,
    checks_node,
    facts_host,
    facts_memory,
    facts_nova,
    facts_quiet,
    facts_records,
    facts_service,
    nova_release,
)
from nova_hpc_tools.doctor.checks_cloud import Controller, PlacementOptions
from nova_hpc_tools.doctor.checks_node import Facts, Needless
from nova_hpc_tools.doctor.doctor_options import CLOUD, CONTROLLER, NODE, PLACEMENT
from nova_hpc_tools.site import configured, device_users, service_settings, settings, spec_entries
from nova_hpc_tools.site.cures import CuredOption
from nova_hpc_tools.site.findings import DoctorFinding
from nova_hpc_tools.site.node_findings import find_device_faults
from nova_hpc_tools.snapshot import SnapshotError

#: The errors that end an examination with one line.
ERRORS: Final[tuple[type[Exception], ...]] = (*Configure.errors, SnapshotError, WireError)
_GOVERNOR: Final = "governor"
_TABLET: Final = "usbtablet"

#: Options of Nova and Placement with their defaults (nova/conf/scheduler.py, pci.py, libvirt.py,
#: compute.py, vnc.py, spice.py and quota.py of 32 to 34; placement/conf/placement.py of 13 to 16).
_NOVA: Final[Mapping[str, Sequence[cfg.Opt]]] = {
    "DEFAULT": [
        cfg.StrOpt("compute_driver"),
        cfg.StrOpt("pointer_model", default=_TABLET),
        cfg.IntOpt("reserved_host_memory_mb", default=512),
    ],
    "vnc": [cfg.BoolOpt("enabled", default=True)],
    "spice": [cfg.BoolOpt("enabled", default=False), cfg.BoolOpt("agent_enabled", default=True)],
    "compute": [cfg.StrOpt(name) for name in settings.CPU_SETS],
    "pci": [*service_settings.PCI, cfg.BoolOpt("report_in_placement", default=False)],
    "filter_scheduler": [
        cfg.ListOpt("enabled_filters", default=list(settings.NOVA_FILTERS)),
        cfg.MultiStrOpt("available_filters", default=["nova.scheduler.filters.all_filters"]),
        cfg.ListOpt("weight_classes", default=[settings.ALL_WEIGHERS]),
        cfg.BoolOpt("pci_in_placement", default=False),
    ],
    "scheduler": [cfg.IntOpt(settings.NOVA_LIMIT, default=settings.FEWEST_CANDIDATES)],
    "quota": [cfg.IntOpt("server_group_members", default=10)],
    "libvirt": [
        cfg.StrOpt("connection_uri", default=""),
        *service_settings.CPU_POWER,
        cfg.IntOpt("mem_stats_period_seconds", default=10),
    ],
}
_PLACEMENT: Final[Mapping[str, Sequence[cfg.Opt]]] = {
    "placement": [
        cfg.StrOpt("allocation_candidates_generation_strategy", default="depth-first"),
        cfg.IntOpt(settings.PLACEMENT_LIMIT, default=-1),
        cfg.IntOpt("allocation_conflict_retry_count", default=10),
    ]
}


@attrs.frozen
class MachineFindings:
    """The findings of the doctor's examination of one machine, and facts for comparing machines."""

    found: tuple[DoctorFinding, ...]
    #: Its name; None if unknown.
    node: str | None
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...]
    #: URI of the libvirt whose version matters; None if no feature depends on the version.
    libvirt: str | None = None
    #: Its nova-compute has entries of ``[pci]device_spec``, or was not examined.
    is_set_up: bool = True


def examine_this_machine(args: argparse.Namespace) -> MachineFindings:
    """Find the faults of this machine, in the parts that the options name (by default the node).

    The declaration has the number of the cloud's hosts, with which limits of controllers and of
    Placement are compared. The part cloud alone needs neither a node nor a declaration.

    :raises Exception: one of :data:`ERRORS`, or CommandError.
    """
    parts = args.part or [NODE]
    nova = service_settings.load_options(service_settings.config_files_of(args.config), _NOVA)
    if set(parts) == {CLOUD}:
        # The part cloud needs no node, so none is read.
        findings = facts_records.examine_records_twice(args.config)
        return MachineFindings(tuple(findings), socket.gethostname(), tuple(nova.pci.alias))
    node_parts = (settings.COMMON, settings.COMPUTE)
    expected = node_parts if NODE in parts else (settings.CONTROLLER,)
    work = NodeSetup.read(configure_options.parse_as_configure(args, expected))
    hosts = (work.wishes.limits.hosts if work.wishes.limits else None) or 1
    findings = []
    libvirt = None
    if NODE in parts:
        facts = _collect_node_facts(work, nova)
        findings += checks_node.check_compute_node(facts)
        here = attrs.evolve(work.told.configured, device_spec=facts.device_spec)
        findings += find_device_faults(
            work.root,
            work.node,
            facts.spec,
            facts.roles,
            facts.wishes,
            attrs.evolve(work.told, configured=here),
        )
        findings += checks_entries.check_entries(
            facts_nova.read_entries_with_nova(work.root, work.node, nova, facts.spec.lines())
        )
        if facts_service.configured_libvirt_needs(work.node, facts.offered, nova):
            libvirt = facts_service.libvirt_uri_of(nova)
    if {NODE, CONTROLLER} & {*parts} and facts_service.is_this_machine(work.root):
        findings += filter(None, [nova_release.find_unfixed_nova_here()])
    limit = None
    if CONTROLLER in parts:
        told = _read_controller_settings(args.config, nova)
        limit = told.limit
        findings += checks_cloud.check_controller(told, hosts)
    if PLACEMENT in parts:
        findings += checks_cloud.check_placement(_read_placement_settings(), limit, hosts)
    if CLOUD in parts:
        findings += facts_records.examine_records_twice(args.config, alone=False)
    return MachineFindings(
        tuple(findings),
        work.node.hostname,
        tuple(nova.pci.alias),
        libvirt,
        is_set_up=NODE not in parts or bool(nova.pci.device_spec),
    )


def _collect_node_facts(work: NodeSetup, nova: Any) -> Facts:
    spec, _ = work.render()
    table = work.table()
    lines = spec_entries.translate_interfaces(
        spec_entries.split_entries(nova.pci.device_spec), work.node
    )
    never = declaration_file.find_withheld_devices(
        work.root, work.node, table, lines, (), ("all",), work.told.anyway
    ).reasons
    sets = {name: value for name in settings.CPU_SETS if (value := nova.compute[name]) is not None}
    dedicated = configured.parse_cpus(sets.get(settings.CPU_SETS[1], "")) or frozenset()
    host = facts_host.read_host_facts(
        work.root,
        work.node,
        [address for offer in spec.offers for address in (offer.provider, *offer.functions)],
        dedicated & work.node.cpus,
    )
    libvirt, functions = nova.libvirt, work.node.functions
    slows = libvirt.cpu_power_management and libvirt.cpu_power_management_strategy == _GOVERNOR
    facts = Facts(
        node=work.node,
        roles=table,
        spec=spec,
        wishes=work.wishes,
        device_spec=lines,
        driver=nova.compute_driver,
        report=nova.pci.report_in_placement,
        cpu_sets=sets,
        left_out=frozenset(work.left_out.addresses),
        nova_switches=service_settings.switches_cpus_off(nova),
        never=never,
        drift=prepare.find_host_file_drift(work),
        host=attrs.evolve(host, nova_slows=slows),
        quiet=facts_quiet.read_quiet_facts(
            work.root,
            work.node,
            dedicated & work.node.cpus,
            bool(work.wishes.quiet_cpus),
            facts_service.is_this_machine(work.root),
        ),
        own_resets=OwnResets.from_options(nova.hpc, work.root).judge(
            work.node,
            {function.address: table.role_of(function, work.node) for function in functions},
        ),
        peer=PeerWish(nova.hpc.peer_to_peer),
        nvlink=nova.hpc.nvlink_backend,
        own_roles=bool(work.told.other_roles),
        stand_ins=work.stand_ins,
        needless=tuple(_find_needless_devices(nova)),
        shared=facts_memory.read_shared_memory_facts(
            work.root, [numa.id for numa in work.node.numa_nodes], nova, bool(dedicated)
        ),
    )
    service = facts_service.read_service_facts(work.root, work.node, facts.offered, nova)
    users = device_users.find_device_users(work.root, facts.offered)
    return attrs.evolve(facts, service=service, users=users)


def _find_needless_devices(nova: Any) -> Iterator[Needless]:
    """Yield emulated devices that nova/virt/libvirt/driver.py adds unless the image prevents it."""
    agent = nova.spice.enabled and nova.spice.agent_enabled and not nova.vnc.enabled
    if nova.pointer_model == _TABLET and not agent:
        what = "a USB tablet with its controller"
        yield Needless(what, CuredOption("DEFAULT", "pointer_model", "ps2mouse"), _TABLET)
    seconds = nova.libvirt.mem_stats_period_seconds
    if seconds > 0:
        # Memory of devices is pinned: a balloon can give nothing back.
        what = f"a memory balloon that is queried every {seconds} s"
        yield Needless(what, CuredOption("libvirt", "mem_stats_period_seconds", "0"), str(seconds))


def _read_controller_settings(words: Sequence[str], nova: Any) -> Controller:
    by_file, weighers = {}, {}
    for path in service_settings.config_files_of(words, "nova-scheduler"):
        alone = service_settings.load_options([path], _NOVA)
        where = alone.get_location("enabled_filters", "filter_scheduler")
        if where is not None and where.location.is_user_controlled:
            by_file[str(path)] = tuple(alone.filter_scheduler.enabled_filters)
        where = alone.get_location("weight_classes", "filter_scheduler")
        if where is not None and where.location.is_user_controlled:
            weighers[str(path)] = tuple(alone.filter_scheduler.weight_classes)
    scheduler = nova.filter_scheduler
    return Controller(
        filters=tuple(scheduler.enabled_filters),
        available=tuple(scheduler.available_filters),
        weighers=tuple(scheduler.weight_classes),
        pci_in_placement=scheduler.pci_in_placement,
        limit=nova.scheduler[settings.NOVA_LIMIT],
        aliases=tuple(nova.pci.alias),
        group_members=nova.quota.server_group_members,
        cache=nova.hpc[settings.CACHE],
        by_file=by_file,
        weighers_by_file=weighers,
    )


def _read_placement_settings() -> PlacementOptions:
    folder = os.environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    words = [f"--config-file={folder}/placement.conf"] if folder else []
    options = service_settings.load_options(
        service_settings.config_files_of(words, "placement", "placement"), _PLACEMENT
    )
    told = options.placement
    return PlacementOptions(
        strategy=told.allocation_candidates_generation_strategy,
        limit=told[settings.PLACEMENT_LIMIT],
        retries=told.allocation_conflict_retry_count,
    )
