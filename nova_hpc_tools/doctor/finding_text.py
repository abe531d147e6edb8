# SPDX-License-Identifier: Apache-2.0
"""The text of the doctor's findings, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nova_hpc.topology.model import ADDRESS
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.site import layout_names
from nova_hpc_tools.wire.findings import WireFinding

#: Most devices, or nodes, in one line.
_MOST_NAMES: Final = 12


def format_finding_lines(
    rows: Sequence[tuple[str | None, WireFinding]], layout: str = layout_names.PLAIN
) -> Iterator[str]:
    """Format findings as lines for people, grouped by check and cure.

    Devices or nodes with the same fault share one line.

    :param layout: the layout of the cures, and of the help command that a finding names.
    """
    chosen = "" if layout == layout_names.PLAIN else f" --layout {layout}"
    alike: dict[tuple[str, ...], list[tuple[str | None, WireFinding]]] = {}
    for node, finding in rows:
        key = (finding.severity, finding.check, finding.why, finding.cure, finding.docs)
        alike.setdefault(key, []).append((node, finding))
    for (severity, check, why, cure, _), members in alike.items():
        seen: dict[tuple[str, str], list[str]] = {}
        for node, finding in members:
            name = f"{node}: " if node else ""
            address, colon, rest = finding.seen.partition(": ")
            if colon and ADDRESS.fullmatch(address):
                seen.setdefault((name, f": {rest}"), []).append(address)
            else:
                seen.setdefault(("", finding.seen), []).append(name)
        for (name, text), names in seen.items():
            if text.startswith(": "):
                subject = f"{name}{join_first(names, _MOST_NAMES)}"
            elif len(names) == 1:
                subject = names[0]
            else:
                nodes = [node.removesuffix(": ") for node in dict.fromkeys(names)]
                subject = f"{join_first(nodes, _MOST_NAMES)}: " if any(nodes) else ""
                subject += f"{len(names)} times: " if len(nodes) < len(names) else ""
            yield f"{severity.upper()} {subject}{text} [{check}]"
        yield f"  {why}"
        yield f"  Cure: {cure}"
        yield f"  See: nova-hpc help check {check}{chosen}"
