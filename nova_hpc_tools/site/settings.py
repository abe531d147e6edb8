# SPDX-License-Identifier: Apache-2.0
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

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology import cpuset
from nova_hpc.topology.model import Node
from nova_hpc_tools.site import aliases, configured, spec_entries
from nova_hpc_tools.site.configured import Configured, Loss
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.device_spec import DeviceSpec

COMMON: Final = "common"
CONTROLLER: Final = "controller"
COMPUTE: Final = "compute"
PLACEMENT: Final = "placement"
PARTS: Final = (COMMON, CONTROLLER, COMPUTE, PLACEMENT)

FILTER: Final = "HpcTopologyFilter"
FILTER_CLASS: Final = f"scheduler_filters.hpc_topology_filter.{FILTER}"
FABRIC_FILTER: Final = "HpcFabricFilter"
FILTER_CLASSES: Final = (FILTER_CLASS, f"scheduler_filters.hpc_fabric_filter.{FABRIC_FILTER}")
ALL_WEIGHERS: Final = "nova.scheduler.weights.all_weighers"
WEIGHER_CLASS: Final = "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher"
WEIGHER_CLASSES: Final = (WEIGHER_CLASS, "scheduler_filters.hpc_fabric_weigher.HpcFabricWeigher")
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

#: ``[hpc]cache_size``, its default, and the number of entries that a host unlike all others takes
#: in one store for one flavor. One store has all of its devices, and the devices that the request
#: can distinguish; another has two answers (:mod:`nova_hpc.from_nova.cache`). A test counts them.
CACHE: Final = "cache_size"
FEWEST_RESULTS: Final = 4096
RESULTS_OF_HOST: Final = 2

#: Options with one value, the last one: our value would replace the value of others.
NOVA_LIMIT: Final = "max_placement_results"
PLACEMENT_LIMIT: Final = "max_allocation_candidates"
CPU_SETS: Final = ("cpu_shared_set", "cpu_dedicated_set")
SINGLE: Final = (*CPU_SETS, NOVA_LIMIT, PLACEMENT_LIMIT, CACHE)


class CpuSetError(Exception):
    """A CPU set cannot be computed from the readable facts. The text contains the reason."""


@attrs.frozen
class SettingsOptions:
    """The operator's wishes for the settings, which the inventory does not contain."""

    #: Number of the cloud's hosts; the limits of candidates are higher.
    hosts: int = 1
    #: Physical cores of each NUMA node that servers with dedicated CPUs do not get. None to
    #: keep the configured sets, or one core if no set is configured.
    housekeeping_cores: int | None = None
    #: The deployment's own filters, to which ours are added; None for the configured ones.
    filters: Sequence[str] | None = None
    #: Always put the product id into the name of an alias.
    product_names: bool = False
    #: Values of ``[hpc]device_role``, from the declaration.
    device_role: Sequence[str] = ()
    #: Options of SINGLE that keep the configured value, and names of items to replace.
    keep: frozenset[str] = frozenset()
    replace: frozenset[str] = frozenset()
    #: The declaration behind the node's offer.
    declaration: Declaration = attrs.field(factory=Declaration)


@attrs.frozen
class NovaSettings:
    """The texts of the include files by part, with remarks for the operator and losses."""

    #: Part -> text.
    files: Mapping[str, str] = attrs.field(hash=False)
    #: Remarks for the operator, one sentence each.
    remarks: tuple[str, ...] = ()
    #: The same for settings of controllers, whatever the node.
    of_controller: tuple[str, ...] = ()
    #: Part -> the configured values that its file would remove.
    losses: Mapping[str, Sequence[Loss]] = attrs.field(factory=dict, hash=False)


def file_name(part: str) -> str:
    """Return the name of the include file of a part, e.g. ``nova-hpc-compute.conf``."""
    return f"nova-hpc-{part}.conf"


def limit_of_candidates(hosts: int) -> int:
    """Limit of candidates with which an answer that has all *hosts* is recognised as complete.

    One more than the hosts: an answer with as many candidates as the limit may lack some.
    """
    return max(FEWEST_CANDIDATES, hosts + 1)


def results_of(hosts: int) -> int:
    """Return the value of ``[hpc]cache_size`` that suffices for *hosts* unlike hosts."""
    return max(FEWEST_RESULTS, RESULTS_OF_HOST * hosts)


def render_settings(
    node: Node,
    spec: DeviceSpec,
    options: SettingsOptions,
    others: Iterable[DeviceSpec] = (),
    before: Configured | None = None,
) -> NovaSettings:
    """Compute the settings for *node* and its cloud, as texts of include files.

    :param spec: the offer of *node*.
    :param others: the offers of nodes of other kinds: the aliases are one set of
        names for the whole cloud.
    :param before: the present configuration, to which values are added.
    :raises nova_hpc_tools.site.aliases.ClashError: Nova cannot distinguish two roles.
    """
    files = _Files(node, spec, options, before or Configured())
    specs = [spec, *others]
    aliases.check_alias_roles(specs)
    texts = {
        COMMON: files.common(aliases.build_aliases(specs, options.product_names), specs),
        CONTROLLER: files.controller(),
        COMPUTE: files.compute(),
        PLACEMENT: files.placement(),
    }
    return NovaSettings(
        files={part: "\n".join(lines) + "\n" for part, lines in texts.items()},
        remarks=tuple(files.remarks),
        of_controller=tuple(files.of_controller),
        losses=files.losses,
    )


def place_own_filters(enabled: Sequence[str]) -> list[str]:
    """Return Nova's (or the deployment's) filters with the project's filters added.

    FABRIC_FILTER is the last: it counts the hosts that all others leave.
    """
    names = [name for name in dict.fromkeys(enabled) if name not in (FILTER, FABRIC_FILTER)]
    names += [name for name in AFTER if name not in names]
    place = min(names.index(name) for name in AFTER)
    return [*names[:place], FILTER, *names[place:], FABRIC_FILTER]


# --- the files ----------------------------------------------------------------


@attrs.define
class _Files:
    """Builder of the include files of one node, and of remarks about them."""

    node: Node
    spec: DeviceSpec
    options: SettingsOptions
    before: Configured
    remarks: list[str] = attrs.field(factory=list)
    of_controller: list[str] = attrs.field(factory=list)
    losses: dict[str, list[Loss]] = attrs.field(
        factory=lambda: {part: [] for part in PARTS}  # each file is refused for itself
    )

    def common(self, wanted: Sequence[Mapping[str, str]], specs: Sequence[DeviceSpec]) -> list[str]:
        lines, losses = configured.merge_aliases(
            self.before, wanted, not self.options.product_names
        )
        for text in (*lines, *self.before.other_aliases):
            self._warn(text, specs)
        self.losses[COMMON] += losses
        named = [
            "# For every Nova service. A flavor asks for devices by these names:",
            "# pci_passthrough:alias=NAME:COUNT",
            "[pci]",
            *(f"alias = {_escape_dollars(alias)}" for alias in lines),
        ]
        already = ["# For every Nova service. The aliases are configured already."]
        return [
            *(named if lines else already),
            "",
            "[filter_scheduler]",
            "# Devices are claimed in Placement; aliases are read with that in mind.",
            "pci_in_placement = true",
        ]

    def _warn(self, text: str, specs: Sequence[DeviceSpec]) -> None:
        """Add a remark if an alias matches several roles; aliases of this run never do."""
        alias = spec_entries.read_spec_entry(text)
        roles = aliases.roles_of(alias, specs)
        if len(roles) > 1:
            self.remarks.append(
                f"The alias {alias.get('name')} requests devices of the roles "
                f"{' and '.join(roles)}: a flavor without hpc: keys gets any of them."
            )

    def controller(self) -> list[str]:
        before = self.before
        enabled = place_own_filters(
            self.options.filters
            if self.options.filters is not None
            else before.filters or NOVA_FILTERS
        )
        weighers = [*(before.weighers or (ALL_WEIGHERS,)), *WEIGHER_CLASSES]
        self.losses[CONTROLLER] += configured.losses_of_list(
            "enabled_filters", before.filters, enabled
        )
        return [
            "# For nova-api, nova-scheduler and nova-conductor.",
            "[filter_scheduler]",
            "available_filters = nova.scheduler.filters.all_filters",
            *(f"available_filters = {path}" for path in FILTER_CLASSES),
            f"# {FILTER} puts the exact devices into the request before",
            f"# {' and '.join(AFTER)} look at them. {FABRIC_FILTER} counts",
            "# what all others leave.",
            f"enabled_filters = {','.join(enabled)}",
            f"weight_classes = {','.join(dict.fromkeys(weighers))}",
            "# Schedulers that work at the same moment do not all choose the same host.",
            "shuffle_best_same_weighed_hosts = true",
            "# Devices are claimed in Placement, also where the controller has none itself.",
            "pci_in_placement = true",
            "",
            "[scheduler]",
            "# A total for one request: it has to be more than the hosts of the cloud.",
            f"{NOVA_LIMIT} = {self._limit(NOVA_LIMIT)}",
            "",
            "[workarounds]",
            "# Dedicated CPUs are PCPU inventory on every node: no second request.",
            "disable_fallback_pcpu_query = true",
            *self._cache(),
        ]

    def placement(self) -> list[str]:
        return [
            "# For the Placement API.",
            "[placement]",
            "# One candidate of each host before the second of any; depth first would",
            "# spend the whole limit on the first hosts.",
            "allocation_candidates_generation_strategy = breadth-first",
            f"{PLACEMENT_LIMIT} = {self._limit(PLACEMENT_LIMIT)}",
            "# Placement's own retries, in a transaction that began before the conflict,",
            "# can give one device to two servers; Nova retries in a new one.",
            "allocation_conflict_retry_count = 1",
            "",
            "[workarounds]",
            "# Without it, 8 of 8 devices of one host take minutes.",
            "optimize_for_wide_provider_trees = true",
        ]

    def compute(self) -> list[str]:
        before, spec = self.before, self.spec
        self.losses[COMPUTE] += configured.driver_losses(before, DRIVER)
        self.losses[COMPUTE] += configured.device_losses(
            before, self.node, spec, self.options.declaration.left_out
        )
        lines = [
            "# For nova-compute of this node only.",
            "[DEFAULT]",
            f"compute_driver = {DRIVER}",
            "",
            "[compute]",
            *self._cpu_sets(),
            "",
            "[pci]",
            "report_in_placement = true",
        ]
        if not spec.offers:
            lines += ["# No function of this node has a role: nothing is offered."]
            self.remarks.append("No device of this node is offered to servers.")
        lines += [f"device_spec = {_escape_dollars(entry)}" for entry in spec.lines()]
        if entries := self.options.device_role:
            lines += [
                "",
                "[hpc]",
                *(f"device_role = {_escape_dollars(entry)}" for entry in entries),
            ]
        return lines

    def _limit(self, option: str) -> int:
        """Return the limit, never below Nova's default, so that other flavors keep their choice."""
        limit = limit_of_candidates(self.options.hosts)
        if option in self.options.replace:
            return limit
        return configured.not_lowered(self.before, option, limit)

    def _cache(self) -> list[str]:
        """Return the lines of ``[hpc]cache_size``, if neither default nor set value suffices."""
        need = RESULTS_OF_HOST * self.options.hosts
        wanted: int | None
        stays: int | None
        theirs, own = self.before.limits.get(CACHE), self.before.own_cache
        if CACHE in self.options.replace:
            wanted = results_of(self.options.hosts)
            stays = FEWEST_RESULTS if theirs is None else None
        elif theirs == 0 or CACHE in self.options.keep:
            # 0 is not a low limit: it switches the cache off, by the operator's decision.
            wanted, stays = (own if theirs is None else theirs), theirs
        else:
            # A value below the default is the operator's decision, too, if it is enough.
            stays = FEWEST_RESULTS if theirs is None else theirs
            wanted = max(need, stays, own or 0)
        if wanted is not None and wanted < need:
            self.of_controller.append(
                f"[hpc]{CACHE} stays {wanted}; {self.options.hosts} hosts that are not alike need "
                f"{need} (--replace {CACHE})."
            )
        if wanted == stays:
            return []
        return [
            "",
            "[hpc]",
            "# What the scheduler remembers: enough for every host.",
            f"{CACHE} = {wanted}",
        ]

    def _cpu_sets(self) -> list[str]:
        housekeeping = self.options.housekeeping_cores
        # An operator who has set one of the two has also decided about the other.
        stays = self.before.cpu_sets and housekeeping is None
        derived = self._derive_cpus(1 if housekeeping is None else housekeeping)
        lines = []
        for option, cpus in zip(CPU_SETS, derived, strict=True):
            kept = stays or option in self.options.keep
            if kept and option not in self.options.replace:
                text = self.before.own_cpu_sets.get(option)
                self._say_kept(option, cpus)
            elif cpus is None:
                raise CpuSetError(
                    f"CPUs {cpuset.format_list(self.node.offline_cpus)} are offline (Nova's CPU "
                    "power management), so it cannot be read which of them are one core, and "
                    f"{option} cannot be made: set them online (echo 1 > /sys/devices/system/cpu/"
                    f"cpuN/online of each), or --keep {option}"
                )
            else:
                text = cpuset.format_list(cpus) if cpus else None
            if text is not None and option == CPU_SETS[0]:
                lines += [
                    "# The host's own work, emulator threads and servers without dedicated CPUs."
                ]
            if text is not None:
                lines += [f"{option} = {text}"]
        return lines

    def _derive_cpus(
        self, housekeeping: int
    ) -> tuple[frozenset[int] | None, frozenset[int] | None]:
        """Choose the CPUs for the host and the CPUs for servers; None if the cores are unknown."""
        if not (self.before.switches_cpus_off and self.node.offline_cpus):
            return _split_cpus(self.node, housekeeping, self.remarks)
        own = [configured.parse_cpus(self.before.own_cpu_sets.get(name, "")) for name in CPU_SETS]
        if own[0] and own[1] and _is_split(self.node, own[0], own[1], housekeeping):
            return own[0], own[1]
        return None, None

    def _say_kept(self, option: str, derived: frozenset[int] | None) -> None:
        """Add a remark if a set that stays differs from the set that would be made now."""
        before = self.before.cpu_sets.get(option)
        if before is None:
            return
        cpus = configured.parse_cpus(before)
        if cpus is None:
            self.remarks.append(f"{option} is {before!r}, with which nova-compute does not start.")
        elif derived is not None and cpus != derived:
            self.remarks.append(
                f"{option} stays {before}; with one core of each NUMA node for the host it would "
                f"be {cpuset.format_list(derived) or 'empty'} (cpus: {{housekeeping_cores: 1}} in "
                "the declaration)."
            )


def _escape_dollars(text: str) -> str:
    """Escape *text* so that oslo.config substitutes nothing in it."""
    return text.replace("$", "$$")


# --- CPUs ---------------------------------------------------------------------


def _split_cpus(
    node: Node, housekeeping: int, remarks: list[str]
) -> tuple[frozenset[int], frozenset[int]]:
    """Split CPUs into those for the host and those for servers; a core's threads stay together.

    A CPU that is offline and that Nova does not switch on is for neither: nova-compute refuses it.
    """
    shared: set[int] = set()
    if node.offline_cpus:
        remarks.append(
            f"CPUs {cpuset.format_list(node.offline_cpus)} are offline, so no CPU set has them."
        )
    for numa in node.numa_nodes:
        online = numa.cpus - numa.offline
        cores = sorted(numa.smt_siblings or [frozenset({cpu}) for cpu in online], key=min)
        if not cores:
            continue
        # A node's last core stays with the servers, which have memory on that node.
        keep = min(housekeeping, len(cores) - 1)
        if keep < housekeeping:
            remarks.append(
                f"NUMA node {numa.id}: {keep} of {len(cores)} cores kept for the host, not "
                f"{housekeeping}, so that servers have one."
            )
        shared.update(*cores[:keep])
    everything = node.cpus - node.offline_cpus
    if not everything:
        remarks.append(
            "The CPUs of this node are not known: set [compute]cpu_dedicated_set yourself."
        )
    return frozenset(shared), everything - shared


def _is_split(
    node: Node, shared: frozenset[int], dedicated: frozenset[int], housekeeping: int
) -> bool:
    """Whether :func:`_split_cpus` could have made the sets, judged by the CPUs that are online."""
    for numa in node.numa_nodes:
        kept = shared & numa.cpus
        cores = [core for core in numa.smt_siblings if core & kept]
        whole = frozenset[int]().union(*cores) == kept
        first = not kept or min(kept) == min(numa.cpus)
        if numa.cpus and not (whole and first and len(cores) == housekeeping):
            return False
    return shared | dedicated == node.cpus and not shared & dedicated
