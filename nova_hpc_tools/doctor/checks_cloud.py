# SPDX-License-Identifier: Apache-2.0
"""Faults in the settings of controllers, in Placement, and in a fleet. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc_tools.site import settings, spec_entries
from nova_hpc_tools.site.cures import (
    CONTROLLERS,
    NOVA,
    RESTART_PLACEMENT,
    RESTART_SCHEDULER,
    WRITE_CONTROLLER,
    WRITE_PLACEMENT,
    AliasCopy,
    AliasSource,
    CuredService,
    DoctorCure,
    ServiceRestart,
    place_option,
)
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few

_FILTERS: Final = "enabled_filters"
_TWO: Final = ServiceRestart((CuredService.API, CuredService.CONDUCTOR))
_BREADTH: Final = "breadth-first"
#: Prefix of Nova's own weighers: of the name for all, and of each.
_NOVAS_WEIGHERS: Final = "nova.scheduler.weights."
_ALL: Final = "nova.scheduler.filters.all_filters"
_SCHEDULER: Final = CuredService.SCHEDULER
_WRITE: Final = DoctorCure.of(WRITE_CONTROLLER, ", and ", RESTART_SCHEDULER, ".")
_WRITE_PLACEMENT: Final = DoctorCure.of(WRITE_PLACEMENT, ", and ", RESTART_PLACEMENT, ".")


@attrs.frozen
class Controller:
    """The settings of nova-scheduler and nova-api on a controller."""

    filters: tuple[str, ...] = settings.NOVA_FILTERS
    available: tuple[str, ...] = (_ALL,)
    weighers: tuple[str, ...] = (settings.ALL_WEIGHERS,)
    pci_in_placement: bool = False
    limit: int = settings.FEWEST_CANDIDATES
    aliases: tuple[str, ...] = ()
    group_members: int = 10
    #: ``[hpc]cache_size``.
    cache: int = settings.FEWEST_RESULTS
    #: File -> the filters that it enables; the files are in the order of reading.
    by_file: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    #: The same for weighers.
    weighers_by_file: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class PlacementOptions:
    """The settings of the Placement API that the doctor checks."""

    strategy: str = "depth-first"
    limit: int = -1
    retries: int = 10


def check_controller(told: Controller, hosts: int = 1) -> list[DoctorFinding]:
    """Find faults in the settings of a controller.

    :param hosts: the declared number of hosts of the cloud.
    """
    findings = [*_check_filters(told), *_check_alias_lines(told.aliases)]
    if not set(settings.WEIGHER_CLASSES) <= set(told.weighers):
        lost = [path for path in settings.WEIGHER_CLASSES if path not in told.weighers]
        findings.append(
            DoctorFinding(
                "weigher-missing",
                f"[filter_scheduler]weight_classes has not {', '.join(lost)}.",
                _WRITE,
            )
        )
    findings += _check_weighers(told)
    if not told.pci_in_placement:
        findings.append(
            DoctorFinding(
                "pci-in-placement",
                "[filter_scheduler]pci_in_placement is not true.",
                DoctorCure.of(
                    "Set ",
                    place_option("filter_scheduler", "pci_in_placement", "true", *CONTROLLERS),
                    " on all controllers, and ",
                    ServiceRestart(CONTROLLERS),
                    ".",
                ),
            )
        )
    if told.limit <= hosts:
        findings.append(
            DoctorFinding(
                "limit-placement",
                f"[scheduler]{settings.NOVA_LIMIT} is {told.limit}, and there are {hosts} hosts.",
                _WRITE,
            )
        )
    # 0 is not a low limit: it switches the cache off, by the operator's decision.
    if 0 < told.cache < settings.RESULTS_OF_HOST * hosts:
        findings.append(
            DoctorFinding(
                "cache-small",
                f"[hpc]{settings.CACHE} is {told.cache}, and {hosts} hosts that are not alike need "
                f"{settings.RESULTS_OF_HOST * hosts}.",
                _WRITE,
            )
        )
    if 0 <= told.group_members < hosts:
        findings.append(
            DoctorFinding(
                "group-members",
                f"[quota]server_group_members is {told.group_members}, and {hosts} hosts can "
                "match.",
                DoctorCure.of(
                    "Set ",
                    place_option("quota", "server_group_members", str(hosts), CuredService.API),
                    " (or -1) and ",
                    ServiceRestart((CuredService.API,)),
                    ".",
                ),
            )
        )
    return findings


def _check_filters(told: Controller) -> Iterator[DoctorFinding]:
    """Find faults of our filters, and filters of others that a later file hides."""
    ours = {name: path for path in settings.FILTER_CLASSES for name in [path.rpartition(".")[2]]}
    names = list(told.filters)
    for name, path in ours.items():
        if name not in names:
            yield DoctorFinding(
                "filter-missing",
                f"[filter_scheduler]enabled_filters has not {name}.",
                _WRITE,
            )
        elif path not in told.available:
            yield DoctorFinding(
                "filter-unknown",
                f"[filter_scheduler]available_filters has not {path}.",
                _change_list("Add ", f"available_filters = {path}", "available_filters", path),
            )
    if settings.FILTER in names:
        first = names.index(settings.FILTER)
        early = [name for name in settings.AFTER if name in names[:first]]
        if early:
            yield DoctorFinding(
                "filter-order",
                f"{' and '.join(early)} come before {settings.FILTER}.",
                _change_list(f"Put {settings.FILTER} before them in ", _FILTERS, _FILTERS),
            )
    if settings.FABRIC_FILTER in names[:-1]:
        yield DoctorFinding(
            "filter-last",
            f"{settings.FABRIC_FILTER} is not the last of enabled_filters.",
            _change_list(
                f"Put {settings.FABRIC_FILTER} behind {names[-1]} in ", _FILTERS, _FILTERS
            ),
        )
    for file, enabled in told.by_file.items():
        lost = [name for name in enabled if name not in names]
        if lost:
            yield DoctorFinding(
                "filter-lost",
                f"{', '.join(lost)}, which {file} enables, are hidden by a later file.",
                _change_list(
                    f"Add {','.join(lost)} to ",
                    f"{_FILTERS} of the last file that has it: {list(told.by_file)[-1]}",
                    _FILTERS,
                ),
            )


def _change_list(first: str, called: str, name: str, value: str | None = None) -> DoctorCure:
    """Build the cure that adds a value to a list option of the scheduler.

    :param called: the text for the list on a plain host.
    """
    place = place_option("filter_scheduler", name, value, _SCHEDULER, called=called)
    return DoctorCure.of(first, place, ", and ", RESTART_SCHEDULER, ".")


def _check_weighers(told: Controller) -> Iterator[DoctorFinding]:
    """Find weighers that a later file hides, and the loss of all of Nova's weighers.

    A list with at least one of Nova's weighers is the operator's choice.
    """
    before = {
        weigher: file
        for file, names in told.weighers_by_file.items()
        for weigher in reversed(names)
    }
    lost = {weigher: before[weigher] for weigher in before if weigher not in told.weighers}
    if not any(weigher.startswith(_NOVAS_WEIGHERS) for weigher in told.weighers):
        lost[settings.ALL_WEIGHERS] = lost.get(settings.ALL_WEIGHERS, "Nova's default")
    # The check weigher-missing reports our weighers.
    lost = {
        weigher: file for weigher, file in lost.items() if weigher not in settings.WEIGHER_CLASSES
    }
    if lost:
        last = list(told.weighers_by_file)[-1:] or ["nova.conf"]
        text = ", ".join(f"{weigher} ({file})" for weigher, file in lost.items())
        yield DoctorFinding(
            "weigher-lost",
            f"[filter_scheduler]weight_classes has not {text}.",
            _change_list(
                f"Add {','.join(lost)} to ",
                f"weight_classes of the last file that has it: {last[0]}",
                "weight_classes",
            ),
        )


def _check_alias_lines(lines: Iterable[str]) -> Iterator[DoctorFinding]:
    """Find aliases that are not JSON objects with a name, and names that are given twice."""
    seen: dict[str, str] = {}
    for text in lines:
        alias = spec_entries.read_spec_entry(text)
        name = str(alias.get("name", ""))
        if not alias or not name:
            yield DoctorFinding(
                "alias-broken",
                f"[pci]alias is {text[:100]!r}.",
                DoctorCure.of("Write a JSON object with a name, and ", _TWO, "."),
            )
        elif name in seen:
            yield DoctorFinding(
                "alias-twice",
                f"[pci]alias {name} is given twice.",
                DoctorCure.of(
                    f"Remove one: {text}; and ",
                    ServiceRestart(
                        (CuredService.API, CuredService.CONDUCTOR, CuredService.COMPUTE), ()
                    ),
                    ".",
                ),
            )
        else:
            seen[name] = text


def check_placement(
    told: PlacementOptions, limit: int | None = None, hosts: int = 1
) -> list[DoctorFinding]:
    """Find faults in the settings of Placement.

    Its limit has to be at least Nova's, and more than the hosts.

    :param limit: ``[scheduler]max_placement_results``; None if unknown.
    :param hosts: the declared number of hosts of the cloud.
    """
    findings = []
    if told.strategy != _BREADTH:
        findings.append(
            DoctorFinding(
                "candidates-depth",
                f"[placement]allocation_candidates_generation_strategy is {told.strategy}.",
                _WRITE_PLACEMENT,
            )
        )
    most = max(hosts + 1, limit or 1)
    if 0 <= told.limit < most:
        findings.append(
            DoctorFinding(
                "limit-candidates",
                f"[placement]{settings.PLACEMENT_LIMIT} is {told.limit}, and {most} are requested.",
                DoctorCure.of(
                    "Set ",
                    place_option(
                        "placement", settings.PLACEMENT_LIMIT, str(most), CuredService.PLACEMENT
                    ),
                    ", and ",
                    RESTART_PLACEMENT,
                    ".",
                ),
            )
        )
    if told.retries > 1:
        findings.append(
            DoctorFinding(
                "conflict-retry",
                f"[placement]allocation_conflict_retry_count is {told.retries}.",
                _WRITE_PLACEMENT,
            )
        )
    return findings


def check_fleet(aliases: Mapping[str, Iterable[str]]) -> list[DoctorFinding]:
    """Find faults between nodes: aliases of one name that differ, or that a node lacks.

    :param aliases: node -> values of its ``[pci]alias``.
    """
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for node, lines in aliases.items():
        for alias in map(spec_entries.read_spec_entry, lines):
            devices = {key: value for key, value in alias.items() if key != "name"}
            meanings[str(alias.get("name"))][json.dumps(devices, sort_keys=True)].append(node)
    findings = []
    for name, variants in sorted(meanings.items()):
        if len(variants) > 1:
            findings.append(
                DoctorFinding(
                    "aliases-differ",
                    f"[pci]alias {name} differs: "
                    + "; ".join(
                        f"{_some_nodes(nodes)}: {text}" for text, nodes in variants.items()
                    ),
                    DoctorCure.of(
                        AliasCopy(AliasSource.ONE_NODE),
                        ", and ",
                        ServiceRestart(NOVA, (), called="their services"),
                        ".",
                    ),
                )
            )
        without = set(aliases).difference(*variants.values())
        if without:
            findings.append(
                DoctorFinding(
                    "aliases-missing",
                    f"[pci]alias {name} is not known on {_some_nodes(without)}.",
                    DoctorCure.of(
                        AliasCopy(AliasSource.OTHER_NODES, _some_nodes(set(aliases) - without)),
                        ", and ",
                        ServiceRestart(NOVA, (), called="the services"),
                        ".",
                    ),
                )
            )
    return findings


def _some_nodes(nodes: Iterable[str]) -> str:
    return join_first_few(sorted(set(nodes)))
