# SPDX-License-Identifier: Apache-2.0
"""Entries of ``[pci]device_spec`` of others, as ``nova-hpc configure`` treats them.

``--replace ENTRY`` takes one out, where ours says all that it says. What Nova would not start
with, once devices are reported in Placement, is refused, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from nova_hpc.topology.model import Node
from nova_hpc.topology.vfio import Vfio
from nova_hpc_tools.adopt import nova_rules, replacement, spec_entries
from nova_hpc_tools.adopt.configured import Configured, Loss
from nova_hpc_tools.adopt.device_spec import DeviceSpec
from nova_hpc_tools.adopt.replacement import ReplacementPlan
from nova_hpc_tools.base import CommandError

_OPTION = "device_spec"


@attrs.frozen
class ReplacedEntries:
    """The entries that ``--replace`` names."""

    #: As they are written.
    lines: tuple[str, ...] = ()
    #: One sentence each: what is not there.
    notes: tuple[str, ...] = ()


def find_replaced_entries(replace: Iterable[str], others: Sequence[str]) -> ReplacedEntries:
    """Find the entries that are named by what they say.

    :param replace: values of ``--replace``; one that begins with a bracket is an entry.
    :param others: entries of others, one each.
    :raises CommandError: it is no entry.
    """
    lines, notes = [], []
    for word in replace:
        if not word.lstrip().startswith(("{", "[")):
            continue
        entry = spec_entries.read_spec_entry(word)
        if entry is spec_entries.NOTHING:
            raise CommandError(f"--replace: {word} is no JSON object, as one entry is")
        matches = [line for line in others if replacement.is_same_entry(line, entry)]
        lines += matches
        if not matches:
            notes.append(f"--replace: no entry of device_spec of yours is {word}.")
    return ReplacedEntries(tuple(dict.fromkeys(lines)), tuple(notes))


def translate_configured_interfaces(configuration: Configured, node: Node) -> Configured:
    """The present entries, with addresses in the place of interfaces."""
    return attrs.evolve(
        configuration,
        device_spec=spec_entries.translate_interfaces(configuration.device_spec, node),
    )


def functions_on_vendor_driver(device_spec: Iterable[str], node: Node) -> dict[str, str]:
    """Address -> why a function that others give on its vendor's driver stays as it is.

    So are virtual functions of a GPU that the vendor's driver shares (Nova's help of
    ``device_spec`` has them as its example of ``managed: no``). With tags they would be withheld
    until they are on a VFIO driver, and bound to one at the next start of the host.
    """
    entries = [spec_entries.read_spec_entry(line) for line in device_spec]
    reasons = {}
    for function in node.functions:
        entry = spec_entries.first_matching_entry(entries, function)
        if entry is None or spec_entries.is_own_entry(entry) or "managed" not in entry:
            continue
        driver = function.driver
        if driver is None or (function.on_vfio and function.vfio is not Vfio.VENDOR):
            continue
        if not nova_rules.is_true(entry["managed"]):
            reasons[function.address] = (
                f"an entry of yours gives it on the driver {driver} (managed: no), so it stays as "
                "it is"
            )
            if function.physical_function is not None:
                reasons[function.physical_function] = (
                    f"an entry of yours gives its virtual functions on the driver {driver}"
                )
    return reasons


def find_entry_losses(plan: ReplacementPlan, spec: DeviceSpec, node: Node) -> Iterator[Loss]:
    """The losses, and the entries that Nova would not start with."""
    for loss in plan.losses:
        yield Loss(_OPTION, loss.address, loss.text)
    lines = [*plan.others, *spec.lines()]
    refusals = nova_rules.placement_refusals_of(lines, node)
    refused_names = {refusal.what for refusal in refusals}
    mixed = nova_rules.driver_refusals(lines, node)
    for refusal in [
        *refusals,
        *(refusal for refusal in mixed if refusal.what not in refused_names),
    ]:
        theirs = [line for line in refusal.entries if line in plan.others]
        yield Loss(_OPTION, refusal.what, refusal.text, _cure_of_entries(theirs, node))


def _cure_of_entries(theirs: Sequence[str], node: Node) -> str:
    if len(theirs) == 1 and (
        name := spec_entries.read_spec_entry(theirs[0]).get(spec_entries.DEVNAME)
    ):
        words = replacement.format_replace_option(theirs[0])
        translated_entry = spec_entries.entry_by_address(
            spec_entries.read_spec_entry(theirs[0]), node
        )
        if spec_entries.DEVNAME in translated_entry:
            return (
                f"this node has no interface {name}: write the address of the device in its place, "
                f"or take the entry out ({words})"
            )
        return (
            f"{words} puts its address {translated_entry['address']} in the place of the "
            f"interface, or takes "
            "the entry out where the one with tags says all of it"
        )
    if not theirs:
        return (
            "give the devices of the adapter one role, or their roles one identity (role_options "
            "of the declaration)"
        )
    words = " ".join(map(replacement.format_replace_option, theirs))
    return f"take it out ({words}), or name vendor and product in it"


def describe_hidden_entries(
    others: Sequence[str], ours: Iterable[str], node: Node
) -> Iterator[str]:
    """One sentence for each entry of others that hides ours."""
    our_lines = list(ours)
    for hiding_entry in replacement.find_hiding_entries(others, our_lines, our_lines, node):
        head = (
            f"{', '.join(hiding_entry.addresses)}: an entry of device_spec of yours "
            f"comes first, so the "
            "one with tags does not count"
        )
        if hiding_entry.plan.losses:
            losses_text = "; ".join(loss.text for loss in hiding_entry.plan.losses)
            yield f"{head}. It says what ours cannot ({losses_text}), so leave it."
        else:
            yield f"{head}: {replacement.format_replace_option(hiding_entry.line)} takes it out."


def keys_to_remember(
    kept: Mapping[str, Mapping[str, str | None]], spec: DeviceSpec
) -> dict[str, dict[str, str | None]]:
    """Those of its keys that no entry of ours would tell the next run."""
    offered = {address for offer in spec.offers for address in offer.functions}
    remembered = {
        address: {key: value for key, value in keys.items() if key != spec_entries.NETWORK}
        for address, keys in kept.items()
        if address in offered
    }
    return {address: keys for address, keys in remembered.items() if keys}
