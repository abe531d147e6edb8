"""What the node remembers of virtual functions that it has set.

One JSON document with a version, ``[hpc]adapters_file``::

    {"v": 1, "functions": {"0000:5e:00.3": {"server": "<uuid>", "index": 0,
        "before": {"node_guid": "0000000000000000", ...}, "made": {...}}}}

A record is written before its function is touched, and taken away only after
the function was put back, so whatever happens in between, it is known what it
has to go back to, and which addresses are in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.tenancy import locked_file
from nova_hpc.tenancy.adapters import settings as adapter
from nova_hpc.tenancy.adapters.settings import LinkState
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.topology.model import AddressError, normalise_address

#: Version of the document; a file of another version is not touched.
VERSION: Final = 1

WHAT: Final = "adapters file"
_LONGEST: Final = 64
_GUIDS: Final = ("node_guid", "port_guid")
_PAIRS: Final = ("vlan", "rate")
_BOOLS: Final = ("spoof_check", "trust")


@attrs.frozen
class Record:
    """One virtual function; settings as :func:`nova_hpc.tenancy.adapters.settings.values`."""

    #: UUID of the server that it was set for.
    server: str
    #: Its number among the functions of the server.
    index: int
    #: What it goes back to, and what it was set to.
    before: Mapping[str, Any] = attrs.field(hash=False)
    made: Mapping[str, Any] = attrs.field(hash=False)
    #: It has been put back while its server still has it, which is moving.
    resting: bool = False

    @property
    def addresses(self) -> frozenset[tuple[str, Any]]:
        """Name and value of the addresses that it was given."""
        return frozenset((name, self.made[name]) for name in adapter.IDENTITY if name in self.made)

    def dumps(self) -> dict[str, Any]:
        """As JSON can hold it."""
        body: dict[str, Any] = {
            "server": self.server[:_LONGEST],
            "index": self.index,
            "before": _dump(self.before),
            "made": _dump(self.made),
        }
        if self.resting:
            body["resting"] = True
        return body


Records = Mapping[str, Record]


def load(path: Path) -> dict[str, Record]:
    """Every record of the file; {} when there is none.

    :raises StateError: the file and its copy are broken: nobody knows what was set.
    """
    loaded = locked_file.load(path, WHAT)
    if loaded.lost:
        raise StateError(f"{loaded.problems[0]}; repair or remove it")
    body = loaded.body
    if not body:
        return {}
    functions = body.get("functions")
    if body.get("v") != VERSION or not isinstance(functions, dict):
        raise StateError(f"the {WHAT} {path} is not of version {VERSION}; repair or remove it")
    try:
        return {normalise_address(key): _record(value) for key, value in functions.items()}
    except (AddressError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the {WHAT} {path} is damaged ({error!r}); repair or remove it"
        ) from error


def change(path: Path, edit: Callable[[Records], Records]) -> dict[str, Record]:
    """Change the file, below its lock; nothing is written when nothing changes.

    :param edit: gets all records and returns all that are to be kept.
    :raises StateError: the file is lost, or cannot be written.
    """
    now = load(path)
    then = dict(edit(now))
    if then != now:
        functions = {each: then[each].dumps() for each in sorted(then)}
        locked_file.save(path, {"v": VERSION, "functions": functions}, WHAT)
    return then


def _dump(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _GUIDS:
            found[name] = f"{value:016x}"
        elif name in _PAIRS:
            found[name] = list(value)
        else:
            found[name] = value.value if isinstance(value, LinkState) else value
    return found


def _record(body: Mapping[str, Any]) -> Record:
    server, index = body["server"], body["index"]
    if not isinstance(server, str) or type(index) is not int:
        raise TypeError("server or index")
    return Record(
        server=server,
        index=index,
        before=_settings(body["before"]),
        made=_settings(body["made"]),
        resting=body.get("resting") is True,
    )


def _settings(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _setting(name, value) for name, value in body.items()}


def _setting(name: str, value: Any) -> Any:
    if name in _GUIDS:
        return int(value, 16)
    if name in _PAIRS:
        first, second = value
        return (int(first), int(second))
    if name in _BOOLS:
        if not isinstance(value, bool):
            raise TypeError(name)
        return value
    if name == "link_state":
        return LinkState(value)
    if name == "mac" and isinstance(value, str) and len(value) == len(adapter.NO_MAC):
        return value
    raise ValueError(name)
