"""What the node remembers of each device: its baseline, and who has had it.

One JSON document with a version, ``[hpc]hygiene_file``::

    {"v": 1, "devices": {"0000:41:00.0": {"baseline": {...}, "server": "<uuid>"}}}

``server`` is written before a server starts and taken away only after the
device was found clean, so whatever happens in between, a device that somebody
has had since its last check is known as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.tenancy import locked_file
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.topology.model import AddressError, normalise_address

#: Version of the document; a file of another version is not touched.
VERSION: Final = 1

#: A server that had the device when it was first seen.
SOMEBODY: Final = "unknown"

_WHAT: Final = "hygiene file"
_LONGEST: Final = 64


@attrs.frozen
class Record:
    """What is known of one device."""

    baseline: Snapshot | None = None
    #: Who has had it since it was last found clean; None: nobody.
    server: str | None = None
    #: It was found clean after a server, and Placement has yet to hear of it.
    owed: bool = False

    def dumps(self) -> dict[str, Any]:
        """As JSON can hold it."""
        body: dict[str, Any] = {}
        if self.baseline is not None:
            body["baseline"] = self.baseline.dumps()
        if self.server is not None:
            body["server"] = self.server[:_LONGEST]
        if self.owed:
            body["owed"] = True
        return body


@attrs.frozen
class State:
    """What the file says."""

    records: Mapping[str, Record] = attrs.field(factory=dict, hash=False)
    problems: tuple[str, ...] = ()
    #: The file is there and cannot be used: nothing is known of any device.
    lost: bool = False

    def record(self, address: str) -> Record:
        """What is known of the device at *address*."""
        return self.records.get(address, _NOTHING)

    @property
    def marked(self) -> dict[str, str]:
        """Address -> server of the devices that somebody has had."""
        return {each: record.server for each, record in self.records.items() if record.server}


_NOTHING: Final = Record()


def read(path: Path) -> State:
    """Read the file; one that is not there knows nothing. Never raises."""
    loaded = locked_file.load(path, _WHAT)
    body = loaded.body
    if not body and not loaded.lost:
        return State(problems=loaded.problems)
    devices = body.get("devices")
    if loaded.lost or body.get("v") != VERSION or not isinstance(devices, dict):
        problem = f"the {_WHAT} {path} is not of version {VERSION}"
        return State(problems=loaded.problems or (problem,), lost=True)
    records: dict[str, Record] = {}
    problems = list(loaded.problems)
    for key, value in devices.items():
        try:
            address = normalise_address(key)
        except AddressError as error:
            problems.append(f"the {_WHAT} {path}: {error}")
            continue
        records[address] = _record(value)
    return State(records, tuple(problems))


def _record(value: object) -> Record:
    """A damaged record is that of a device that somebody has had."""
    if not isinstance(value, dict):
        return Record(server=SOMEBODY)
    known = baseline.loads(value["baseline"]) if "baseline" in value else None
    server = value.get("server")
    damaged = known is None and "baseline" in value
    if damaged or not (server is None or isinstance(server, str)):
        server = SOMEBODY
    return Record(known, server or None, value.get("owed") is True)


def change(path: Path, edit: Callable[[Mapping[str, Record]], Mapping[str, Record]]) -> State:
    """Change the file; nothing is written when nothing changes.

    :param edit: gets all records, and returns those that are different.
    :returns: what the file says then.
    :raises StateError: the file is lost, or cannot be written.
    """
    with locked_file.locked(path, _WHAT):
        now = read(path)
        if now.lost:
            raise StateError(f"{now.problems[0]}; repair or remove it first")
        records = {**now.records, **edit(now.records)}
        if records != now.records:
            devices = {each: records[each].dumps() for each in sorted(records)}
            locked_file.save(path, {"v": VERSION, "devices": devices}, _WHAT)
        return State(records, now.problems)
