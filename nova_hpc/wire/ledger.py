# SPDX-License-Identifier: Apache-2.0
"""The ledger: what a node remembers of its devices between two servers.

One JSON object in a file of the node, ``[hpc]ledger_file``::

    {"v": 1,
     "devices": {
       "0000:41:00.0": {
         "hardware": "serial:0123456789abcdef",
         "state": "quarantined", "reason": "2 new uncorrected fatal errors (AER)",
         "counts": {"cleaned": 12, "failed": 1},
         "server": "<uuid>",
         "unreported": true,
         "baseline": {...},
         "adapter": {"server": "<uuid>", "index": 0, "before": {...}, "made": {...}}}},
     "nvlink": {"gpus": ["0000:41:00.0", ...],
                "partitions": {"1": {"server": "<uuid>", "gpus": [...]}}}}

``server`` is written before a server starts and taken away only after the
device was found clean. ``baseline`` and ``adapter`` belong to the steps that
write them (:mod:`nova_hpc.tenancy.hygiene.baseline`,
:mod:`nova_hpc.tenancy.adapters.settings`) and are carried here as they are.

Writer and readers: nova-compute of the node and ``nova-hpc device`` and
``nova-hpc nvlink``. The version before the first one was four files, one of each
step, which :func:`fold` turns into this one. A broken entry makes its device one
that nobody may have. Keys that this release does not know are written again as
they were read.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs

from nova_hpc.topology.model import AddressError, address_key, normalise_address
from nova_hpc.wire.documents import LEDGER
from nova_hpc.wire.version import WireError

#: A server that had the device when it was first seen.
SOMEBODY: Final = "unknown"

#: The files of the release before, by the name of their part of this one.
BEFORE: Final = ("quarantine", "hygiene", "adapters", "nvlink")

_DAMAGED: Final = "its entry in the ledger is damaged"
_LONGEST_SERVER: Final = 64
_LONGEST_REASON: Final = 1000

_T = TypeVar("_T")


class State(enum.Enum):
    """Whether a device may be given."""

    OFFERED = "offered"
    #: Withheld, and tried again.
    SUSPECT = "suspect"
    #: Withheld until an operator releases it.
    QUARANTINED = "quarantined"


def _short(text: str) -> str:
    return text[:_LONGEST_REASON]


@attrs.frozen
class Device:
    """What is known of the device at one address."""

    #: Which piece of hardware it is: ``serial:`` and its PCIe serial number,
    #: ``vpd:`` and that of its vital product data, or ``slot:`` and its address.
    hardware: str | None = None
    state: State = State.OFFERED
    reason: str = attrs.field(default="", converter=_short)
    #: Who has had it since it was last found clean; None: nobody.
    server: str | None = None
    #: It was found clean after a server, and Placement has yet to hear of it.
    unreported: bool = False
    baseline: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: What its virtual function was set to, and goes back to.
    adapter: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: How often it was found clean after a server, and how often it was not.
    cleaned: int = 0
    failed: int = 0
    #: Keys of a later release.
    more: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)

    def dumps(self) -> dict[str, Any]:
        """As JSON can hold it."""
        body: dict[str, Any] = {**self.more, "state": self.state.value}
        if self.hardware is not None:
            body["hardware"] = self.hardware
        if self.reason:
            body["reason"] = self.reason
        if self.server is not None:
            body["server"] = self.server[:_LONGEST_SERVER]
        if self.unreported:
            body["unreported"] = True
        if self.baseline is not None:
            body["baseline"] = dict(self.baseline)
        if self.adapter is not None:
            body["adapter"] = dict(self.adapter)
        if self.cleaned or self.failed:
            body["counts"] = {"cleaned": self.cleaned, "failed": self.failed}
        return body


_NOTHING: Final = Device()
_KEYS: Final = frozenset(
    {"hardware", "state", "reason", "server", "unreported", "baseline", "adapter", "counts"}
)


@attrs.frozen
class Tenancy:
    """An NVLink partition that a server has, or will have when it has started."""

    server: str
    gpus: frozenset[str]


@attrs.frozen
class Ledger:
    """The whole document."""

    #: Normalised PCI address -> what is known of the device.
    devices: Mapping[str, Device] = attrs.field(factory=dict, hash=False)
    #: Id of each NVLink partition that a server has; None: nobody knows.
    partitions: Mapping[int, Tenancy] | None = attrs.field(factory=dict, hash=False)
    #: Every GPU that the manager of the NVLink fabric has ever shown.
    gpus: frozenset[str] = frozenset()
    #: Entries under a key that is no address. They are kept as they are.
    unread: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    #: Keys of a later release.
    more: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)
    #: What is wrong with the file, for the log and the statistics.
    problems: tuple[str, ...] = attrs.field(default=(), eq=False)
    #: The file is there and cannot be used: nothing is known of any device.
    lost: bool = False

    def device(self, address: str) -> Device:
        """What is known of the device at *address*."""
        return self.devices.get(address, _NOTHING)

    def put(self, changes: Mapping[str, Device]) -> Ledger:
        """With other entries of these devices; one that says nothing goes."""
        devices = {
            each: found
            for each, found in {**self.devices, **changes}.items()
            if found != _NOTHING or found.more
        }
        return attrs.evolve(self, devices=devices)

    @property
    def marked(self) -> dict[str, str]:
        """Address -> server of the devices that somebody has had."""
        return {each: found.server for each, found in self.devices.items() if found.server}

    @property
    def quarantined(self) -> dict[str, str]:
        """Address -> reason of the devices that are in quarantine themselves."""
        return {
            each: found.reason
            for each, found in self.devices.items()
            if found.state is State.QUARANTINED
        }

    def why(self, *addresses: str | None) -> str | None:
        """The reason why any of *addresses* is in quarantine; None: none is.

        A quarantined physical function quarantines its virtual functions with it.
        """
        for address in addresses:
            found = self.devices.get(address or "")
            if found is not None and found.state is State.QUARANTINED:
                return found.reason or "no reason given"
        if self.lost:
            return f"nobody knows which devices are in it; {self.problems[0]}"
        return None

    def dumps(self) -> str:
        """The text of the file."""
        nvlink = None
        if self.partitions is not None:
            nvlink = {
                "gpus": sorted(self.gpus, key=address_key),
                "partitions": {
                    str(key): {
                        "server": one.server,
                        "gpus": sorted(one.gpus, key=address_key),
                    }
                    for key, one in sorted(self.partitions.items())
                },
            }
        devices = {each: self.devices[each].dumps() for each in sorted(self.devices)}
        body = {
            **self.more,
            LEDGER.key: LEDGER.version,
            "devices": {**self.unread, **devices},
            "nvlink": nvlink,
        }
        return json.dumps(body, indent=1, sort_keys=True) + "\n"


def loads(text: str) -> Ledger:
    """Read a document.

    A damaged entry is that of a device that somebody has had and nobody may
    have: its problem is in the result.

    :raises nova_hpc.wire.version.LaterError: only a later release reads it.
    :raises nova_hpc.wire.version.WireError: it is no ledger at all.
    """
    body = LEDGER.load(text)
    devices = body.get("devices")
    if not isinstance(devices, dict):
        raise LEDGER.broken("has no devices")
    found: dict[str, Device] = {}
    unread: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in devices.items():
        try:
            address = normalise_address(key)
        except AddressError as error:
            problems.append(str(error))
            unread[key] = value
            continue
        try:
            found[address] = _device(value)
        except (AttributeError, KeyError, TypeError, ValueError):
            problems.append(f"{address}: {_DAMAGED}")
            found[address] = Device(state=State.QUARANTINED, reason=_DAMAGED, server=SOMEBODY)
    partitions, gpus = _nvlink(body.get("nvlink"), "gpus")
    more = {key: body[key] for key in body.keys() - {LEDGER.key, "devices", "nvlink"}}
    return Ledger(found, partitions, gpus, unread, more, tuple(problems))


def _device(body: Any) -> Device:
    counts = body.get("counts", {})
    return Device(
        hardware=_optional(body.get("hardware"), str),
        state=State(body["state"]),
        reason=_expect(body.get("reason", ""), str),
        server=_optional(body.get("server"), str) or None,
        unreported=body.get("unreported") is True,
        baseline=_part(body.get("baseline")),
        adapter=_part(body.get("adapter")),
        cleaned=_expect(counts.get("cleaned", 0), int),
        failed=_expect(counts.get("failed", 0), int),
        more={key: body[key] for key in body.keys() - _KEYS},
    )


def _part(value: Any) -> Mapping[str, Any] | None:
    """What belongs to a step; what is none is left to it as something that it cannot read."""
    return value if isinstance(value, dict) or value is None else {"": ""}


def _expect(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(kind.__name__)
    return value


def _optional(value: Any, kind: type[_T]) -> _T | None:
    return None if value is None else _expect(value, kind)


def _nvlink(body: Any, key: str) -> tuple[dict[int, Tenancy] | None, frozenset[str]]:
    """Partitions and GPUs; None in place of partitions: nobody knows."""
    try:
        partitions = {
            int(number): Tenancy(
                _expect(one["server"], str), frozenset(map(normalise_address, one["gpus"]))
            )
            for number, one in body["partitions"].items()
        }
        return partitions, frozenset(map(normalise_address, body[key]))
    except (AddressError, AttributeError, KeyError, TypeError, ValueError):
        return None, frozenset()


# -- the files before the ledger -------------------------------------------------


def fold(ledger: Ledger, name: str, text: str) -> Ledger:
    """Add what a file of the release before says.

    Such a file is there once, before it is put away, or because that release
    was in use again: what it says is newer. A device that either has in
    quarantine stays there.

    :param name: one of :data:`BEFORE`.
    :raises nova_hpc.wire.version.WireError: it cannot be read.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"it is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise WireError("it is no JSON object")
    return _FOLDS[name](ledger, body)


def _addressed(ledger: Ledger, entries: Mapping[str, Any]) -> tuple[Ledger, dict[str, Any]]:
    """Entries by normalised address; the others go to those that nobody can read."""
    found, unread, problems = {}, {}, []
    for key, value in entries.items():
        try:
            found[normalise_address(key)] = value
        except AddressError as error:
            unread[key] = value
            problems.append(str(error))
    return attrs.evolve(
        ledger,
        unread={**ledger.unread, **unread},
        problems=(*ledger.problems, *problems),
    ), found


def _fold_quarantine(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, found = _addressed(ledger, body)
    return ledger.put(
        {
            each: attrs.evolve(ledger.device(each), state=State.QUARANTINED, reason=str(reason))
            for each, reason in found.items()
        }
    )


def _entries(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not body:
        return {}
    entries = body.get(key)
    if type(body.get("v")) is not int or body["v"] != 1 or not isinstance(entries, dict):
        raise WireError("it is not of version 1")
    return entries


def _fold_hygiene(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, found = _addressed(ledger, _entries(body, "devices"))
    changes = {}
    for each, value in found.items():
        now = ledger.device(each)
        if not isinstance(value, dict):
            changes[each] = attrs.evolve(now, server=SOMEBODY)
            continue
        server, known = value.get("server"), value.get("baseline", now.baseline)
        if not (server is None or isinstance(server, str)):
            server = SOMEBODY
        changes[each] = attrs.evolve(
            now,
            server=server or None,
            unreported=value.get("owed") is True,
            baseline=_part(known),
        )
    return ledger.put(changes)


def _fold_adapters(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    ledger, found = _addressed(ledger, _entries(body, "functions"))
    return ledger.put(
        {
            each: attrs.evolve(ledger.device(each), adapter=_part(value) or {"": ""})
            for each, value in found.items()
        }
    )


def _fold_nvlink(ledger: Ledger, body: Mapping[str, Any]) -> Ledger:
    partitions, gpus = _nvlink({"partitions": {}, "known": [], **body}, "known")
    return attrs.evolve(ledger, partitions=partitions, gpus=ledger.gpus | gpus)


_FOLDS: Final[Mapping[str, Callable[[Ledger, Mapping[str, Any]], Ledger]]] = {
    "quarantine": _fold_quarantine,
    "hygiene": _fold_hygiene,
    "adapters": _fold_adapters,
    "nvlink": _fold_nvlink,
}
