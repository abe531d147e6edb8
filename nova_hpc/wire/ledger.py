# SPDX-License-Identifier: Apache-2.0
"""The ledger: a node's memory about its devices between two servers.

One JSON object in a file of the node, ``[hpc]ledger_file``::

    {"v": 1,
     "devices": {
       "0000:41:00.0": {
         "hardware": "serial:0123456789abcdef",
         "state": "quarantined", "reason": "2 new uncorrected fatal errors (AER)",
         "health": {"sign": "errors", "since": 1767225600.0, "tries": 8,
                    "tried": 86400.5, "boot": "<uuid>"},
         "counts": {"cleaned": 12, "failed": 1},
         "server": "<uuid>", "last_server": "<uuid>",
         "unreported": true, "replaced": true,
         "clean": "17 2026-01-01 00:00:00+00:00",
         "baseline": {...},
         "adapter": {"server": "<uuid>", "index": 0, "before": {...}, "made": {...}},
         "stage": {"phase": "due", "server": "<uuid>", "since": 1767225600.0},
         "watch": {"server": "<uuid>", "faults": {"link": {...}}},
         "report": {"server": "<uuid>", "words": {"slow": 1767225600.0}}}},
     "absent": {"serial:...": {as above}},
     "maintenance": {"start": 1767225600.0, "end": 1767232800.0, "reason": "firmware 1.2"},
     "accepted": [{"model": "10de:2330", "change": "...", "reason": "..."}],
     "planned": {"devices": {"0000:41:00.0": "2026-12-04T08:00Z"},
                 "announced": {"<uuid>": "2026-12-04T08:00Z"}},
     "compared": true,
     "node": "<uuid>", "written": "9f86d081884c7d65",
     "nvlink": {"gpus": ["0000:41:00.0", ...],
                "partitions": {"1": {"server": "<uuid>", "gpus": [...]}}},
     "providers": {"0000:41:00.0": {...}}}

``providers`` lists the reservations in Placement (:mod:`nova_hpc.wire.reservation`).
``server`` is written before a server starts and removed only after the device was found
clean. ``baseline``, ``adapter``, ``stage``, ``watch`` and ``report`` belong to their writers
(:mod:`nova_hpc.tenancy.hygiene.baseline`, :mod:`nova_hpc.tenancy.adapters.settings`,
:mod:`nova_hpc.tenancy.stage.device_stage`, :mod:`nova_hpc.tenancy.watch.record`,
:mod:`nova_hpc.tenancy.watch.owner_report`) and are passed on unchanged.
``absent`` contains the records of hardware that is no longer in the node.
``planned`` lists the devices with planned work, and the servers to whose owners it is announced.
``compared`` is set once nova-compute has marked the devices that servers have in Nova's
records. A file that was started again after the old one was lost does not have it.
``clean`` is present while the device is known to be clean, and contains the version of Nova's
record at that time, "" until that was read. A device without it needs every step before the
next server gets it. The same holds if Nova has another record when nova-compute starts
(:mod:`nova_hpc.tenancy.comparison`). ``node`` is Nova's UUID of the node. ``written`` is a new
text at each write of nova-compute, so an older copy does not have the latest one.

Writer and readers: nova-compute of the node and ``nova-hpc device`` and
``nova-hpc device list --nvlink``. A device with a broken entry goes to no server. Keys of
later releases are written again as they were read.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import AddressError, address_key, normalise_address
from nova_hpc.wire import announcements, reservation
from nova_hpc.wire.announcements import Accepted, Maintenance, PlannedDeviceWork
from nova_hpc.wire.reservation import ReservedProvider
from nova_hpc.wire.values import cut_reason, require_finite, require_type, require_type_or_none
from nova_hpc_common.wire.version import WireDocument

LEDGER: Final = WireDocument(
    name="ledger",
    lives="[hpc]ledger_file of the node, and a copy beside it",
    writer="nova_hpc.wire.ledger:Ledger.dumps",
    readers=("nova_hpc.wire.ledger:read_ledger",),
    key="v",
    # A thousand devices need about 1 MiB.
    longest=1 << 24,
)

#: Stands for a server that had the device when it was first seen.
SOMEBODY: Final = "unknown"

_DAMAGED: Final = "its entry in the ledger is damaged"
_LONGEST_SERVER: Final = 64
#: Maximum of accepted changes; the oldest go first.
_MOST_ACCEPTED: Final = 64


class DeviceState(enum.Enum):
    """Whether a device may be given to a server: offered, suspect or quarantined."""

    OFFERED = "offered"
    #: Withheld, and tried again.
    SUSPECT = "suspect"
    #: Withheld until an operator releases it.
    QUARANTINED = "quarantined"


@attrs.frozen
class Trial:
    """The health history of a device: since when it is faulty, and how often it was checked."""

    #: The fault, a value of :class:`nova_hpc.tenancy.sign.HealthSign`; "" if there is none.
    sign: str = ""
    #: When the present state began, Unix time in seconds.
    since: float = 0.0
    #: How often it was found faulty.
    tries: int = 0
    #: Seconds from the boot to the last try.
    tried: float = 0.0
    #: The boot of that try; None if unknown.
    boot: str | None = None
    #: It is faulty and still offered, because too many others are suspect.
    spared: bool = False

    def dumps(self) -> dict[str, Any]:
        """The history as an object for JSON."""
        body = attrs.asdict(self)
        return {key: value for key, value in body.items() if value not in ("", None, False)}


@attrs.frozen
class LedgerDevice:
    """The ledger's record of the device at one address.

    Only the node has it; the scheduler gets the exceptions from ``stats['hpc']``. In the order
    of a tenancy: `server`, `adapter` and a due `stage` are written after the claim, before the
    guest starts; a clean `stage`, `proof` and `last_server` after it, if the device is clean.
    """

    #: The piece of hardware: ``serial:`` and its PCIe serial number, ``vpd:`` and the serial
    #: number of its vital product data, or ``slot:`` and its address. Read from sysfs; if it
    #: has moved to another address, the record moves there.
    hardware: str | None = None
    #: OFFERED: Nova may give it, or a server has it. SUSPECT: withheld, and tried again.
    #: QUARANTINED: withheld until an operator releases it.
    state: DeviceState = DeviceState.OFFERED
    #: Why it is not offered, for operators; "" if it is.
    reason: str = attrs.field(default="", converter=cut_reason)
    #: The start of its state, and its tries; None if it never had a fault.
    trial: Trial | None = None
    #: The server that used it since the last successful cleaning, written before the guest
    #: starts; None if there is none.
    server: str | None = None
    #: The last server before the last successful cleaning; None if unknown.
    last_server: str | None = None
    #: It was found clean after a server, and Placement must still be updated.
    unreported: bool = False
    #: Other hardware came to its place during a server's tenancy, and was not given to the
    #: server since. It is cleaned before the server starts. It belongs to the place.
    replaced: bool = False
    #: Version of Nova's record when it was known to be clean, "" as long as that was not read;
    #: None if it is unknown whether it is clean.
    proof: str | None = None
    #: Its state in sysfs when it was healthy, for comparison with later readings; None if
    #: it was not read yet.
    baseline: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: Seconds from the boot to the reading of the baseline's error counters.
    counted: float | None = None
    #: Settings of its virtual function for its server, and the ones to restore afterwards; None
    #: if it has its driver's settings.
    adapter: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: Progress of the stage that cleans it from within; None if it needs none.
    stage: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: The difference between the guest and the server's devices, for this device, at the last
    #: update; "" if there is none.
    differs: str = attrs.field(default="", converter=cut_reason)
    #: Its present faults while a server has it, and the values they are compared with; None if
    #: it is not watched.
    watch: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: The faults that the owner of its server, or of the last one, has reported; None if none.
    report: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    #: How often it was found clean after a server, and how often not.
    cleaned: int = 0
    failed: int = 0
    #: Keys of a later release.
    more: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)

    def dumps(self) -> dict[str, Any]:
        """The device's record as an object for JSON."""
        body: dict[str, Any] = {**self.more, "state": self.state.value}
        if self.hardware is not None:
            body["hardware"] = self.hardware
        if self.reason:
            body["reason"] = self.reason
        if self.trial is not None:
            body["health"] = self.trial.dumps()
        if self.server is not None:
            body["server"] = self.server[:_LONGEST_SERVER]
        if self.last_server is not None:
            body["last_server"] = self.last_server[:_LONGEST_SERVER]
        if self.unreported:
            body["unreported"] = True
        if self.replaced:
            body["replaced"] = True
        if self.proof is not None:
            body["clean"] = self.proof
        if self.baseline is not None:
            body["baseline"] = dict(self.baseline)
        if self.counted is not None:
            body["counted"] = self.counted
        if self.adapter is not None:
            body["adapter"] = dict(self.adapter)
        if self.stage is not None:
            body["stage"] = dict(self.stage)
        if self.differs:
            body["differs"] = self.differs
        if self.watch is not None:
            body["watch"] = dict(self.watch)
        if self.report is not None:
            body["report"] = dict(self.report)
        if self.cleaned or self.failed:
            body["counts"] = {"cleaned": self.cleaned, "failed": self.failed}
        return body

    @property
    def owes(self) -> bool:
        """Whether the device must be cleaned before the next server gets it."""
        return self.server is not None or self.proof is None

    @property
    def staged(self) -> bool:
        """Whether a stage has to clean the device from within before the next server gets it."""
        return self.stage is not None and self.stage.get("phase") != "clean"

    def doubted(self) -> LedgerDevice:
        """A copy of the record for a device that needs every step again: passed steps do not
        count.
        """
        return attrs.evolve(self, proof=None, stage=self.stage if self.staged else None)


_NOTHING: Final = LedgerDevice()
_KEYS: Final = frozenset(
    {"hardware", "state", "reason", "server", "unreported", "baseline", "adapter", "counts"}
    | {"health", "last_server", "counted", "differs", "stage", "clean", "replaced", "watch"}
    | {"report"}
)
_TOP: Final = frozenset(
    {LEDGER.key, "devices", "nvlink", "absent", "maintenance", "accepted"}
    | {"planned", "providers", "compared", "node", "written"}
)


@attrs.frozen
class PartitionTenancy:
    """An NVLink partition in use: its server, and the GPUs."""

    server: str
    gpus: frozenset[str]


def _latest_accepted(changes: tuple[Accepted, ...]) -> tuple[Accepted, ...]:
    return changes[-_MOST_ACCEPTED:]


@attrs.frozen
class Ledger:
    """The ledger of a compute node: the records of all its devices and NVLink partitions."""

    #: Normalised PCI address -> record of the device.
    devices: Mapping[str, LedgerDevice] = attrs.field(factory=dict, hash=False)
    #: Id of each NVLink partition that a server has; None if unknown.
    partitions: Mapping[int, PartitionTenancy] | None = attrs.field(factory=dict, hash=False)
    #: Every GPU that the manager of the NVLink fabric has ever shown.
    gpus: frozenset[str] = frozenset()
    #: Hardware that was in the node, and is no longer found -> its record.
    absent: Mapping[str, LedgerDevice] = attrs.field(factory=dict, hash=False)
    #: When devices may change; None if no time is announced.
    maintenance: Maintenance | None = None
    #: Accepted changes of a model, the latest last.
    accepted: tuple[Accepted, ...] = attrs.field(default=(), converter=_latest_accepted)
    #: Work that is planned on devices.
    planned: PlannedDeviceWork = attrs.field(factory=PlannedDeviceWork)
    #: Normalised PCI address -> reservation of the provider that is named after it.
    providers: Mapping[str, ReservedProvider] = attrs.field(factory=dict, hash=False)
    #: nova-compute has compared this file with Nova's records since it was begun: a device
    #: without a mark has no server.
    compared: bool = False
    #: Nova's UUID of the node; "" if it was not read yet.
    node: str = ""
    #: A new text each time that nova-compute writes the file.
    written: str = ""
    #: Entries whose key is not an address. They are kept unchanged.
    unread: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    #: Keys of a later release.
    more: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)
    #: The faults of the file, for the log and the statistics.
    problems: tuple[str, ...] = attrs.field(default=(), eq=False)
    #: A part of the file cannot be read: an empty field here may not be empty there.
    damaged: bool = attrs.field(default=False, eq=False)
    #: The file exists and cannot be used: every device is unknown.
    lost: bool = False

    def device(self, address: str) -> LedgerDevice:
        """The record of the device at *address*."""
        return self.devices.get(address, _NOTHING)

    def put(self, changes: Mapping[str, LedgerDevice]) -> Ledger:
        """A copy with the records of some devices replaced; an empty record is removed."""
        # A used device is not known to be clean, whichever process writes the mark.
        changes = {
            address: device if device.server is None else attrs.evolve(device, proof=None)
            for address, device in changes.items()
        }
        devices = {
            address: device
            for address, device in {**self.devices, **changes}.items()
            if device != _NOTHING or device.more
        }
        return attrs.evolve(self, devices=devices)

    @property
    def marked(self) -> dict[str, str]:
        """Device address -> UUID of the server that uses the device, or used it last."""
        return {address: device.server for address, device in self.devices.items() if device.server}

    @property
    def staged(self) -> frozenset[str]:
        """Addresses of devices that a stage has to clean before the next server gets them."""
        return frozenset(address for address, device in self.devices.items() if device.staged)

    @property
    def quarantined(self) -> dict[str, str]:
        """Address -> reason, for devices that are in quarantine themselves."""
        return {
            address: device.reason
            for address, device in self.devices.items()
            if device.state is DeviceState.QUARANTINED
        }

    @property
    def suspect(self) -> dict[str, str]:
        """Address -> reason, for suspect devices."""
        return {
            address: device.reason or "no reason given"
            for address, device in self.devices.items()
            if device.state is DeviceState.SUSPECT
        }

    def why(self, *addresses: str | None) -> str | None:
        """The reason why any of *addresses* is in quarantine; None if none is.

        A quarantined physical function quarantines its virtual functions with it.
        """
        for address in addresses:
            device = self.devices.get(address or "")
            if device is not None and device.state is DeviceState.QUARANTINED:
                return device.reason or "no reason given"
        if self.lost:
            return f"the quarantined devices in the ledger are unknown; {self.problems[0]}"
        return None

    def dumps(self) -> str:
        """The text of the ledger file."""
        nvlink = None
        if self.partitions is not None:
            nvlink = {
                "gpus": sorted(self.gpus, key=address_key),
                "partitions": {
                    str(key): {
                        "server": tenancy.server,
                        "gpus": sorted(tenancy.gpus, key=address_key),
                    }
                    for key, tenancy in sorted(self.partitions.items())
                },
            }
        devices = {address: self.devices[address].dumps() for address in sorted(self.devices)}
        body = {
            **self.more,
            LEDGER.key: LEDGER.version,
            "devices": {**self.unread, **devices},
            "nvlink": nvlink,
        }
        if self.compared:
            body["compared"] = True
        if self.node:
            body["node"] = self.node
        if self.written:
            body["written"] = self.written
        if self.absent:
            body["absent"] = {
                hardware: self.absent[hardware].dumps() for hardware in sorted(self.absent)
            }
        if self.maintenance is not None:
            body["maintenance"] = attrs.asdict(self.maintenance)
        if self.accepted:
            body["accepted"] = [attrs.asdict(change) for change in self.accepted]
        if planned := self.planned.dumps():
            body["planned"] = planned
        if self.providers:
            body["providers"] = reservation.write_reservations(self.providers)
        return json.dumps(body, indent=1, sort_keys=True) + "\n"


def read_ledger(text: str) -> Ledger:
    """Parse the text of a ledger file.

    A damaged entry counts as a device that a server has used and that no server
    may have: its problem is in the result.

    :raises nova_hpc_common.wire.version.LaterError: only a later release reads it.
    :raises nova_hpc_common.wire.version.WireError: it is not a ledger at all.
    """
    body = LEDGER.load(text)
    devices = body.get("devices")
    if not isinstance(devices, dict):
        raise LEDGER.broken("has no devices")
    by_address: dict[str, LedgerDevice] = {}
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
            by_address[address] = _read_device_entry(value)
        except (AttributeError, KeyError, TypeError, ValueError):
            problems.append(f"{address}: {_DAMAGED}")
            by_address[address] = LedgerDevice(
                state=DeviceState.QUARANTINED, reason=_DAMAGED, server=SOMEBODY
            )
    partitions, gpus = _read_nvlink_tenancies(body.get("nvlink"))
    return Ledger(
        by_address,
        partitions,
        gpus,
        absent=_read_absent(body.get("absent", {}), problems),
        maintenance=announcements.read_maintenance(body.get("maintenance"), problems),
        accepted=announcements.read_accepted_changes(body.get("accepted", []), problems),
        planned=announcements.read_planned_work(body.get("planned", {}), problems),
        providers=reservation.read_reservations(body.get("providers"), problems),
        compared=body.get("compared") is True,
        node=_text_or_none(body.get("node")) or "",
        written=_text_or_none(body.get("written")) or "",
        unread=unread,
        more={key: body[key] for key in body.keys() - _TOP},
        problems=tuple(problems),
        damaged=bool(problems),
    )


def _read_absent(body: Any, problems: list[str]) -> dict[str, LedgerDevice]:
    absent: dict[str, LedgerDevice] = {}
    if not isinstance(body, dict):
        problems.append("the absent hardware cannot be read")
        return absent
    for number, (key, value) in enumerate(body.items()):
        try:
            absent[require_type(key, str)] = _read_device_entry(value)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Hardware that comes back without an entry is unknown. Its
            # serial number must not be in a log.
            problems.append(f"absent hardware number {number}: {_DAMAGED}")
    return absent


def _read_trial(body: Any) -> Trial | None:
    """None for a damaged one: the device is tried again at once."""
    try:
        return Trial(
            sign=require_type(body.get("sign", ""), str),
            since=require_finite(body.get("since", 0.0)),
            tries=max(0, require_type(body.get("tries", 0), int)),
            tried=require_finite(body.get("tried", 0.0)),
            boot=require_type_or_none(body.get("boot"), str),
            spared=body.get("spared") is True,
        )
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def _text_or_none(value: Any) -> str | None:
    """The text; None for other values, so that more is cleaned, and never less."""
    return value if isinstance(value, str) else None


def _read_device_entry(body: Any) -> LedgerDevice:
    counts = body.get("counts", {})
    return LedgerDevice(
        hardware=require_type_or_none(body.get("hardware"), str),
        state=DeviceState(body["state"]),
        reason=require_type(body.get("reason", ""), str),
        trial=None if "health" not in body else _read_trial(body["health"]),
        server=require_type_or_none(body.get("server"), str) or None,
        last_server=require_type_or_none(body.get("last_server"), str) or None,
        unreported=body.get("unreported") is True,
        replaced=body.get("replaced", False) is not False,  # a damaged one is cleaned once more
        proof=_text_or_none(body.get("clean")),
        baseline=_step_part_of(body.get("baseline")),
        counted=None if body.get("counted") is None else require_finite(body["counted"]),
        adapter=_step_part_of(body.get("adapter")),
        stage=_step_part_of(body.get("stage")),
        differs=require_type(body.get("differs", ""), str),
        watch=_step_part_of(body.get("watch")),
        report=_step_part_of(body.get("report")),
        cleaned=require_type(counts.get("cleaned", 0), int),
        failed=require_type(counts.get("failed", 0), int),
        more={key: body[key] for key in body.keys() - _KEYS},
    )


def _step_part_of(value: Any) -> Mapping[str, Any] | None:
    """The part of a step; a value that is not one becomes a part that the step cannot read."""
    return value if isinstance(value, dict) or value is None else {"": ""}


def _read_nvlink_tenancies(body: Any) -> tuple[dict[int, PartitionTenancy] | None, frozenset[str]]:
    """Partitions and GPUs; None in place of partitions if they are unknown."""
    try:
        partitions = {
            int(number): PartitionTenancy(
                require_type(partition["server"], str),
                frozenset(map(normalise_address, partition["gpus"])),
            )
            for number, partition in body["partitions"].items()
        }
        return partitions, frozenset(map(normalise_address, body["gpus"]))
    except (AddressError, AttributeError, KeyError, TypeError, ValueError):
        return None, frozenset()
