# SPDX-License-Identifier: Apache-2.0
"""Storage devices that no server gets, with the reason: for ``doctor`` and ``configure``. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import tags
from nova_hpc_tools.site import overlooked, pci_classes, readiness, spec_entries
from nova_hpc_tools.site.cures import (
    RESTART_COMPUTE,
    CommandRun,
    CuredCommand,
    CuredOption,
    DoctorCure,
    OptionPlace,
    place_option,
)
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few

_THEIRS: Final = place_option("pci", "device_spec", called="the file that has it")
#: Most devices with a command in one cure.
_MANY: Final = 4
_CLEANERS: Final = place_option("hpc", "cleaners")
_STAGE: Final = OptionPlace(
    tuple(CuredOption("hpc", name) for name in ("clean_stage", "clean_checks", "clean_drivers"))
)
_NVME: Final = "0108"


def find_kept_storage(
    node: Node,
    roles: Roles,
    spec: DeviceSpec,
    device_spec: Iterable[str],
    erasers: Erasers,
) -> list[DoctorFinding]:
    """Find storage devices that nova-compute withholds because no cleaner proves an erase.

    :param spec: the offer that ``configure`` would write.
    :param device_spec: values of ``[pci]device_spec``, ours and foreign ones.
    """
    entries = [spec_entries.read_spec_entry(line) for line in device_spec]
    named: dict[str, str] = {}
    findings = []
    for function in node.functions:
        entry = spec_entries.first_matching_entry(entries, function)
        if entry is None or function.is_bridge:
            continue
        reason = erasers.explain_refusal(node, function, entry.get(tags.ROLE))
        if reason is not None:
            named[function.address] = reason
            findings.append(_finding_of_entry(function, reason, spec_entries.is_own_entry(entry)))
    gpus = overlooked.list_offered_gpus(node, roles, readiness.offered_functions_of(node, spec))
    unerased = {item.address for item in spec.omitted if item.unerased}
    alike: dict[str, list[PciFunction]] = defaultdict(list)
    for function in node.functions:
        if function.address in named or function.is_bridge or function.unknown is not None:
            continue
        role = roles.role_of(function, node)
        # A device with a role may stay with the host for another reason.
        meant = (
            function.address in unerased
            if role is not None
            else overlooked.awaits_servers(function, gpus)
        )
        reason = erasers.explain_refusal(node, function, role) if meant else None
        if reason is not None:
            alike[reason].append(function)
    return [*findings, *_findings_of_kept(alike)]


def _finding_of_entry(function: PciFunction, reason: str, own: bool) -> DoctorFinding:
    words = f"--replace {function.address}"
    first = (
        DoctorCure.of(CommandRun(CuredCommand.CONFIGURE_NODE, words))
        if own
        else DoctorCure.of("Take the entry out of ", _THEIRS)
    )
    return DoctorFinding(
        "offered-never",
        f"{function.address} is offered, and nova-compute withholds it: {reason}.",
        DoctorCure.of(first, ", and ", RESTART_COMPUTE, "."),
    )


def _findings_of_kept(alike: dict[str, list[PciFunction]]) -> Iterator[DoctorFinding]:
    for reason, functions in alike.items():
        yield DoctorFinding(
            "storage-kept",
            f"{_word_functions(functions)} stays with the host: {reason}.",
            DoctorCure.of(
                f"Leave it to the host{_word_host_driver(functions)}; or ",
                *_ways_to_erase(functions[0]),
                ".",
            ),
        )


def _ways_to_erase(function: PciFunction) -> tuple[str | OptionPlace, ...]:
    parent = function.physical_function
    if parent or function.virtual_functions:
        switch = f"/sys/bus/pci/devices/{parent or function.address}/sriov_numvfs"
        return (f"switch its virtual functions off (echo 0 > {switch}) and run the command again",)
    erased = "have it erased between servers: "
    if (function.class_code or "").startswith(_NVME):
        return (f"{erased}with the check nvme in a stage of its role, by ", _STAGE)
    return (f"{erased}with a cleaner of yours that proves it, by ", _CLEANERS)


def _word_host_driver(functions: Iterable[PciFunction]) -> str:
    away = [function.address for function in functions if function.on_vfio]
    words = "; ".join(f"driverctl unset-override {address}" for address in away[:_MANY])
    return f": {words}" if words else ""


def _word_functions(functions: Sequence[PciFunction]) -> str:
    first = functions[0]
    name = pci_classes.class_name_of(first.class_code)
    places = join_first_few(function.address for function in functions)
    bound = f"bound to {first.driver or 'no driver'}"
    return f"{places} ({name} {first.vendor_id}:{first.product_id}, {bound})"
