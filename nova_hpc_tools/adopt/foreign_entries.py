# SPDX-License-Identifier: Apache-2.0
"""Entries of ``[pci]device_spec`` of others, as ``nova-hpc configure`` treats them. Pure.

Nova takes the first entry that names a device, so an entry of others hides one of ours. Such an
entry, and one with which nova-compute does not start, is refused, and nothing is written.
Operators remove it in their configuration management.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import yaml

from nova_hpc.topology.model import Node
from nova_hpc.topology.roles import Roles
from nova_hpc.topology.vfio import Vfio
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.adopt.foreign_lines import ForeignFiles
from nova_hpc_tools.site import configured, entry_losses, nova_rules, spec_entries
from nova_hpc_tools.site.configured import Configured, Loss
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.entry_losses import Hiding
from nova_hpc_tools.site.identity import Form

_OPTION: Final = "device_spec"
#: Most devices or losses that one line names.
_MOST: Final = 12
_MANY_COLUMNS: Final = 1 << 20


def translate_configured_interfaces(configuration: Configured, node: Node) -> Configured:
    """Replace interface names in the present device_spec entries by PCI addresses."""
    return attrs.evolve(
        configuration,
        device_spec=spec_entries.translate_interfaces(configuration.device_spec, node),
    )


def functions_on_vendor_driver(device_spec: Iterable[str], node: Node) -> dict[str, str]:
    """Return address -> why a function that others offer on its vendor's driver stays unchanged.

    Examples are virtual functions of a GPU that the vendor's driver shares (the example of
    ``managed: no`` in Nova's help of ``device_spec``). With tags they would be withheld until they
    are on a VFIO driver, and bound to one at the next start of the host.
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


@attrs.frozen
class EntryJudge:
    """Check of foreign device_spec entries against the entries that ``configure`` would write."""

    node: Node
    #: Entries of others, one each, unchanged.
    others: Sequence[str]
    spec: DeviceSpec
    files: ForeignFiles
    #: Path of the declaration, for messages.
    declaration: str

    def hiding(self) -> list[Hiding]:
        """Find foreign entries that come first and hide an entry of ``configure``."""
        lines = list(self.spec.lines())
        return list(entry_losses.find_hiding_entries(self.others, lines, lines, self.node))

    def losses(self, to_declare: Mapping[str, Any]) -> Iterator[Loss]:
        """Build the refusals: entries that hide ours, and entries that Nova refuses.

        :param to_declare: keys of the declaration with the meaning of the hiding entries.
        """
        hiding = self.hiding()
        for hidden in hiding:
            yield self._refuse_hiding(hidden)
        for key, value in to_declare.items() if hiding else ():
            text = f"first add the device settings of these lines to {self.declaration}"
            yield Loss(_OPTION, key, text, _format_yaml({key: value}))
        lines = [*self.others, *self.spec.lines()]
        refusals = nova_rules.placement_refusals_of(lines, self.node)
        refused_names = {refusal.what for refusal in refusals}
        mixed = nova_rules.driver_refusals(lines, self.node)
        going = {hidden.line for hidden in hiding}
        for refusal in [
            *refusals,
            *(refusal for refusal in mixed if refusal.what not in refused_names),
        ]:
            theirs = [line for line in refusal.entries if line in self.others]
            if not going & set(theirs):
                places = "".join(f"{self.files.quote(line)}: " for line in theirs)
                text = f"{places}{refusal.text}"
                yield Loss(_OPTION, refusal.what, text, self._cure_of_refused(theirs))

    def _refuse_hiding(self, hidden: Hiding) -> Loss:
        text = (
            f"{self.files.quote(hidden.line)}: Nova takes this entry for "
            f"{join_first(hidden.addresses, _MOST)}, and not the one with tags"
        )
        parents = dict.fromkeys(
            (function.physical_function if function else None) or address
            for address in hidden.addresses
            for function in (self.node.function(address),)
        )
        leave = f"or keep it, with {_format_yaml({'left_out': [*parents]})} in {self.declaration}"
        if interface := self._interface_cure(hidden.line):
            leave += f", and {interface}"
        if hidden.losses:
            lost = join_first([loss.text for loss in hidden.losses], _MOST)
            leave += f" (without it, {lost})"
        return Loss(_OPTION, hidden.line, text, f"{self._removal(hidden.line)}; {leave}")

    def _removal(self, line: str) -> str:
        return f"{self.files.explain_removal(line)}, and run this command again"

    def _interface_cure(self, line: str) -> str | None:
        """Return the cure that writes an address for an interface; None without interface."""
        entry = spec_entries.read_spec_entry(line)
        name = entry.get(spec_entries.DEVNAME)
        if not name:
            return None
        addressed = spec_entries.entry_by_address(entry, self.node)
        if addressed is entry:
            return f"this node has no interface {name}"
        pair = f'"address": "{addressed["address"]}"'
        return f'write {pair} in the place of "{spec_entries.DEVNAME}": "{name}"'

    def _cure_of_refused(self, theirs: Sequence[str]) -> str:
        if not theirs:
            return (
                "give the devices of the adapter one role, or their roles one identity "
                "(role_options of the declaration)"
            )
        removals = "; ".join(map(self._removal, theirs))
        if len(theirs) == 1 and (interface := self._interface_cure(theirs[0])):
            return f"{interface}, or {removals}"
        return f"name vendor and product in it, or {removals}"


def identities_to_declare(
    hiding: Iterable[Hiding],
    before: Configured,
    node: Node,
    roles: Roles,
    chosen: Mapping[str, Form],
) -> dict[str, Form]:
    """Return role -> the form of its identity from an entry to remove, and would be lost.

    :param before: interfaces translated.
    :param chosen: the declared forms.
    """
    hidden = list(hiding)
    gone = spec_entries.translate_interfaces([entry.line for entry in hidden], node)
    rest = tuple(line for line in before.device_spec if line not in gone)
    now = configured.identity_forms_of(before, node, roles, chosen)
    then = configured.identity_forms_of(attrs.evolve(before, device_spec=rest), node, roles, chosen)
    return {role: form for role, form in now.items() if then[role] is not form}


def _format_yaml(value: Mapping[str, Any]) -> str:
    """Return a mapping as one line of YAML without the outer braces, as in a declaration."""
    return yaml.safe_dump(value, default_flow_style=True, width=_MANY_COLUMNS).strip()[1:-1]
