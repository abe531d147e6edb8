# SPDX-License-Identifier: Apache-2.0
"""``stats['hpc']``: a node's report beyond its PCI pools.

Nova carries the ``stats`` of ``get_available_resource`` to the scheduler's
``HostState.stats`` in one TEXT column. The document contains only the exceptions
(a healthy node's is a few bytes), grouped by reason, because the virtual
functions of one physical function usually fail together::

    {"v": 1,
     "withheld": {"IOMMU group 17 is not viable: ...": ["0000:22:10.0", ...]},
     "in_use": {"link is x8, the device can do x16": ["0000:41:00.0"]},
     "differs": {"is gone from the guest of server ...: hard reboot ...": ["0000:42:00.0"]},
     "unusable": ["0000:43:00.0"],
     "states": {"suspect": {"1767225600": ["0000:22:10.0", ...]}},
     "kinds": {"CUSTOM_VF CUSTOM_FAST": ["0000:22:10.0", ...]},
     "notes": ["the quarantine file cannot be read"],
     "left_out": 3}

Its presence shows that the node runs this project's driver, which checks a server's devices
before it starts. Without it :func:`judge_node_stats` excludes the node for ``hpc:`` flavors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc_common.wire.version import WireDocument, WireError, write_compact_json

STATS: Final = WireDocument(
    name="statistics document",
    lives="stats['hpc'] of Nova's compute node",
    writer="nova_hpc.wire.stats:StatsDocument.dumps",
    readers=("nova_hpc.wire.stats:read_stats_or_none",),
    key="v",
    limit=16 * 1024 - 1,
    # The column has 64 KiB for all statistics (ComputeNode.stats, a TEXT of MySQL).
    longest=64 * 1024,
)

#: The document is smaller than this, in bytes of UTF-8.
LIMIT: Final = 16 * 1024

#: The key of the document in the statistics of the compute node.
KEY: Final = "hpc"

#: Beside it, on nodes that offer memory which servers share (``[hpc]shared_memory_mb``). Other
#: nodes do not have the key.
SHARED_MEMORY_KEY: Final = "hpc_shared_memory"

#: Why a node with tagged devices and without a report serves no ``hpc:`` flavor.
OTHER_DRIVER: Final = (
    "it runs Nova's own libvirt driver, not HpcLibvirtDriver, so no check of a server's devices "
    "runs there before it starts: set [DEFAULT]compute_driver = hpc.HpcLibvirtDriver on it, or "
    "take the hpc_* tags out of its [pci]device_spec"
)

_LONGEST_REASON: Final = 240
_MOST_NOTES: Final = 8
_MOST_UNUSABLE: Final = 256


def _to_plain_text(text: str) -> str:
    """Cut a text to a bounded length and replace all but printable ASCII by ``?``.

    A driver's name may hold anything.
    """
    text = text[:_LONGEST_REASON]
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)


def _normalise_reasons(value: Mapping[str, str]) -> dict[str, str]:
    return {_to_plain_text(address): _to_plain_text(value[address]) for address in sorted(value)}


def _normalise_states(value: Mapping[str, tuple[str, float]]) -> dict[str, tuple[str, float]]:
    return {
        _to_plain_text(address): (_to_plain_text(value[address][0]), float(int(value[address][1])))
        for address in sorted(value)
    }


def _normalise_addresses(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(map(_to_plain_text, value))[:_MOST_UNUSABLE])


def _normalise_notes(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_to_plain_text(note) for note in value[:_MOST_NOTES])


@attrs.frozen
class StatsDocument:
    """The node's report about its devices in ``stats['hpc']``: only devices that are not simply
    free.
    """

    #: PCI address -> why the device is not offered.
    withheld: Mapping[str, str] = attrs.field(
        factory=dict, converter=_normalise_reasons, hash=False
    )
    #: PCI address -> the fault of a device that a server has; it stays
    #: with that server and will be withheld when it is free.
    in_use: Mapping[str, str] = attrs.field(factory=dict, converter=_normalise_reasons, hash=False)
    #: Devices among *in_use* with which no server could start: away, silent, or the host's.
    unusable: tuple[str, ...] = attrs.field(default=(), converter=_normalise_addresses)
    #: PCI address -> the difference between a server's guest and its devices, with the
    #: remedy: the device is gone from the guest, or is in a guest whose server was not given it.
    differs: Mapping[str, str] = attrs.field(factory=dict, converter=_normalise_reasons, hash=False)
    #: PCI address -> state of a device that is suspect or in quarantine, and its
    #: beginning, Unix time in seconds. Omitted first if the document is too long.
    states: Mapping[str, tuple[str, float]] = attrs.field(
        factory=dict, converter=_normalise_states, hash=False
    )
    #: PCI address of a withheld device -> its kind, see :func:`format_kind`; a missing one is
    #: of unknown kind. Omitted before the states if the document is too long.
    kinds: Mapping[str, str] = attrs.field(factory=dict, converter=_normalise_reasons, hash=False)
    #: Faults of the node as a whole.
    notes: tuple[str, ...] = attrs.field(default=(), converter=_normalise_notes)
    #: Devices that are withheld or faulty but did not fit in the document.
    left_out: int = 0

    def dumps(self) -> str:
        """Format the document as JSON, ASCII only, shorter than :data:`LIMIT`.

        Entries that do not fit are omitted from the end (withheld devices come first) and counted
        in ``left_out``.
        """
        for extras in ((self.states, self.kinds), (self.states,), ()):
            text = write_compact_json(self._body(self._kinds(), self.left_out, *extras))
            if len(text) < LIMIT:
                return text
        kept: dict[str, dict[str, str]] = {kind: {} for kind in self._kinds()}
        # The closing brackets and the digits of the count, with a margin.
        room = LIMIT - 128 - len(write_compact_json(self._body({}, 0)))
        paid_reasons: set[tuple[str, str]] = set()
        left = self.left_out
        for kind, address, reason in self._entries():
            cost = len(json.dumps(address)) + 1
            if (kind, reason) not in paid_reasons:
                cost += len(json.dumps(reason)) + 4
            if cost > room:
                left += 1
                continue
            room -= cost
            paid_reasons.add((kind, reason))
            kept[kind][address] = reason
        return write_compact_json(self._body(kept, left))

    def _kinds(self) -> dict[str, Mapping[str, str]]:
        """Return key of the document -> address -> reason, the most important part first."""
        return {"withheld": self.withheld, "differs": self.differs, "in_use": self.in_use}

    def _entries(self) -> Iterator[tuple[str, str, str]]:
        for kind, reasons in self._kinds().items():
            for address, reason in reasons.items():
                yield kind, address, reason

    def _body(
        self,
        kinds: Mapping[str, Mapping[str, str]],
        left_out: int,
        states: Mapping[str, tuple[str, float]] | None = None,
        kinds_of_devices: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {STATS.key: STATS.version}
        for kind, reasons in kinds.items():
            if reasons:
                body[kind] = _by_reason(reasons)
        if self.unusable:
            body["unusable"] = list(self.unusable)
        if states:
            body["states"] = _by_state(states)
        if kinds_of_devices:
            body["kinds"] = _by_reason(kinds_of_devices)
        if self.notes:
            body["notes"] = list(self.notes)
        if left_out:
            body["left_out"] = left_out
        return body


def format_kind(resource_class: str, traits: Iterable[str]) -> str:
    """Format a kind of device as text: the resource class and the sorted traits."""
    return " ".join([resource_class, *sorted(traits)])


def parse_kind(kind: str) -> tuple[str, frozenset[str]]:
    """Split the text of a kind of device into its resource class and its traits."""
    first, *others = kind.split(" ")
    return first, frozenset(others)


def read_stats(text: object) -> StatsDocument | None:
    """Parse the node's report; None without one, because the node does not run nova-hpc's driver.

    :raises WireError: this release cannot read it: the node's report is
        unknown, which is not the same as an empty one.
    """
    if text is None:
        return None
    body = STATS.load(text)
    notes = body.get("notes", [])
    left_out = body.get("left_out", 0)
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise STATS.broken("has notes that are no texts")
    if type(left_out) is not int or left_out < 0:
        raise STATS.broken("has a left_out that is no count")
    unusable = body.get("unusable", [])
    if not isinstance(unusable, list) or not all(isinstance(address, str) for address in unusable):
        raise STATS.broken("has unusable devices that are no addresses")
    return StatsDocument(
        withheld=_reasons_by_address(body, "withheld"),
        in_use=_reasons_by_address(body, "in_use"),
        unusable=tuple(unusable),
        differs=_reasons_by_address(body, "differs"),
        states=_read_states(body.get("states", {})),
        kinds=_reasons_by_address(body, "kinds"),
        notes=tuple(notes),
        left_out=left_out,
    )


@attrs.frozen
class NodeWord:
    """A node's report, and the judgement whether servers may be placed on the node."""

    #: None if there is no report, or an unreadable one.
    document: StatsDocument | None = None
    #: Why the report cannot be read; None if it can, or if there is none.
    unread: str | None = None
    #: Its devices have tags, and it does not run this project's driver.
    stock: bool = False

    @property
    def out(self) -> str | None:
        """The reason against servers with ``hpc:`` keys, for operators; None if there is none."""
        if self.unread is not None:
            return f"the node's withheld devices are unknown: {self.unread}"
        return OTHER_DRIVER if self.stock else None


def judge_node_stats(text: object, tagged: bool) -> NodeWord:
    """Parse the node's report, and judge whether the node may have ``hpc:`` servers.

    An unreadable report means unknown, which never counts as healthy.

    :param text: from the compute node; None if there is none.
    :param tagged: whether any device of the node has ``hpc_*`` tags.
    """
    try:
        document = read_stats(text)
    except WireError as error:
        return NodeWord(unread=str(error))
    return NodeWord(document, stock=document is None and tagged)


def read_stats_or_none(text: object) -> StatsDocument | None:
    """Parse the document like :func:`read_stats`; None also if it cannot be read. Never raises."""
    try:
        return read_stats(text)
    except WireError:
        return None


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Turn address -> reason into reason -> addresses: most devices share a few reasons."""
    grouped: dict[str, list[str]] = {}
    for address, reason in reasons.items():
        grouped.setdefault(reason, []).append(address)
    return grouped


def _by_state(states: Mapping[str, tuple[str, float]]) -> dict[str, dict[str, list[str]]]:
    """Group addresses by state, and within a state by the second since which they have it."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for address, (state, since) in states.items():
        grouped.setdefault(state, {}).setdefault(str(int(since)), []).append(address)
    return grouped


def _read_states(body: object) -> dict[str, tuple[str, float]]:
    try:
        return {
            str(address): (str(state), float(int(since)))
            for state, moments in body.items()  # type: ignore[attr-defined]
            for since, addresses in moments.items()
            for address in addresses
        }
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise STATS.broken("has states that are no states") from error


def _reasons_by_address(body: Mapping[str, Any], key: str) -> dict[str, str]:
    reasons = body.get(key, {})
    if not isinstance(reasons, dict):
        raise STATS.broken(f"has a {key} that is no object")
    by_address: dict[str, str] = {}
    for reason, addresses in reasons.items():
        if not isinstance(addresses, list) or not all(
            isinstance(address, str) for address in addresses
        ):
            raise STATS.broken(f"has a {key} that does not list addresses")
        by_address.update(dict.fromkeys(addresses, reason))
    return by_address
