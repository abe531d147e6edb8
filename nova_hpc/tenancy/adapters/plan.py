# SPDX-License-Identifier: Apache-2.0
"""Plans the settings of a server's virtual functions: their addresses and their records.

An address without a port is computed from the server's UUID and the number
of the function among the server's functions. So it is the same on every host and
after every restart, and needs no central service. It begins with the cloud's prefix,
whose bits mean "of one interface" and "locally administered" (EUI-48 and EUI-64,
IEEE Std 802-2014 clause 8), so it is never a manufacturer's address. The rest is a
hash of both. Any two of n GUIDs of a cloud are equal with a probability of
n*n/2**57 for a prefix of one octet (7e-6 for a million), any two of n MACs
with n*n/2**41. On one node equal addresses are excluded.

A record is written to the ledger before its function is touched, and removed
only after the function was restored. So the ledger always contains the
former settings and the addresses in use, whatever happens in between.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs

from nova_hpc.tenancy.adapters import function_changes, settings, virtual_functions
from nova_hpc.tenancy.adapters.function_changes import FunctionChange, NoBackendError
from nova_hpc.tenancy.adapters.settings import AdapterError, AdapterFunction, LinkState, PortLayer
from nova_hpc.tenancy.adapters.virtual_functions import AdapterBackends
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import Node
from nova_hpc.wire.ledger import Ledger

_TEXT: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){0,2}", re.ASCII)
_GUID_OCTETS: Final = 8
_MAC_OCTETS: Final = 6
_MULTICAST: Final = 1
_LOCAL: Final = 2


class PrefixError(ValueError):
    """A text is not a prefix of local addresses; the message gives the reason."""


@attrs.frozen
class AddressPrefix:
    """The first octets of every MAC address and GUID that a cloud sets."""

    octets: bytes

    @classmethod
    def parse(cls, text: str) -> AddressPrefix:
        """Parse one to three octets, e.g. ``0e`` or ``0e:5a``.

        :raises PrefixError: it is not a prefix, or not one of local addresses.
        """
        text = text.strip().lower()
        if not _TEXT.fullmatch(text):
            raise PrefixError(f"{text[:40]!r} is not one to three octets like 0e or 0e:5a")
        octets = bytes.fromhex(text.replace(":", ""))
        if octets[0] & _MULTICAST or not octets[0] & _LOCAL:
            raise PrefixError(
                f"{text!r} does not begin local addresses of single interfaces: the second digit "
                "has to be 2, 6, a or e"
            )
        return cls(octets)

    def begins(self, address: int | str) -> bool:
        """Whether a GUID (a number) or a MAC belongs to this cloud."""
        if isinstance(address, int):
            return address.to_bytes(_GUID_OCTETS, "big").startswith(self.octets)
        return bytes.fromhex(address.replace(":", "")).startswith(self.octets)


def draw_guid(
    prefix: AddressPrefix, server: str, index: int, use: str, taken: Collection[int]
) -> int:
    """Return a GUID that is not in use on this node.

    :param server: UUID of the server.
    :param index: number of the function among the server's functions, from 0.
    :param use: ``node`` or ``port``.
    :param taken: GUIDs of other functions on this node.
    """
    return _draw_number(prefix, _GUID_OCTETS, f"{server}/{index}/{use}", taken)


def draw_mac(prefix: AddressPrefix, server: str, index: int, taken: Collection[str]) -> str:
    """Return a MAC address that is not in use on this node; see :func:`draw_guid`.

    The result depends only on the arguments: prefix ``0e``, server
    6b0e5b6e-0000-4000-8000-000000000001 and index 0 always give 0e:e9:ed:cc:46:e0.
    """
    numbers = {int(address.replace(":", ""), 16) for address in taken}
    number = _draw_number(prefix, _MAC_OCTETS, f"{server}/{index}/mac", numbers)
    return ":".join(f"{octet:02x}" for octet in number.to_bytes(_MAC_OCTETS, "big"))


def _draw_number(prefix: AddressPrefix, octets: int, name: str, taken: Collection[int]) -> int:
    attempt = 0
    while True:
        size = octets - len(prefix.octets)
        text = f"{name}/{attempt}".encode()
        rest = hashlib.blake2b(text, digest_size=size, person=b"nova-hpc").digest()
        number = int.from_bytes(prefix.octets + rest, "big")
        if number not in taken:
            return number
        attempt += 1


# -- records --------------------------------------------------------------------

_LONGEST: Final = 64
_GUIDS: Final = ("node_guid", "port_guid")
_PAIRS: Final = ("vlan", "rate")
_BOOLS: Final = ("spoof_check", "trust")


@attrs.frozen
class AdapterRecord:
    """The ledger's record of one virtual function: its server, and its settings by their names."""

    #: UUID of the server that it was set for.
    server: str
    #: Its number among the server's functions.
    index: int
    #: Settings to restore, and settings that were made.
    before: Mapping[str, Any] = attrs.field(hash=False)
    made: Mapping[str, Any] = attrs.field(hash=False)
    #: Whether it was restored while its server, which is moving, still has it.
    resting: bool = False

    @property
    def addresses(self) -> frozenset[tuple[str, Any]]:
        """Name and value of its addresses."""
        return frozenset((name, self.made[name]) for name in settings.IDENTITY if name in self.made)

    def dumps(self) -> dict[str, Any]:
        """Return the record in the ledger's form: keys and JSON values."""
        body: dict[str, Any] = {
            "server": self.server[:_LONGEST],
            "index": self.index,
            "before": _dump_setting_values(self.before),
            "made": _dump_setting_values(self.made),
        }
        if self.resting:
            body["resting"] = True
        return body


Records = Mapping[str, AdapterRecord]


def adapter_records_of(ledger: Ledger) -> dict[str, AdapterRecord]:
    """Return every record of the ledger, by address.

    :raises ValueError: a record is damaged: the settings are unknown.
    """
    records = {}
    for address, device in ledger.devices.items():
        if device.adapter is not None:
            try:
                records[address] = _parse_adapter_record(device.adapter)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"what {address} was set to is damaged ({error!r})") from error
    return records


def _dump_setting_values(values: Mapping[str, Any]) -> dict[str, Any]:
    dumped: dict[str, Any] = {}
    for name, value in values.items():
        if name in _GUIDS:
            dumped[name] = f"{value:016x}"
        elif name in _PAIRS:
            dumped[name] = list(value)
        else:
            dumped[name] = value.value if isinstance(value, LinkState) else value
    return dumped


def _parse_adapter_record(body: Mapping[str, Any]) -> AdapterRecord:
    server, index = body["server"], body["index"]
    if not isinstance(server, str) or type(index) is not int:
        raise TypeError("server or index")
    return AdapterRecord(
        server=server,
        index=index,
        before=_parse_setting_values(body["before"]),
        made=_parse_setting_values(body["made"]),
        resting=body.get("resting") is True,
    )


def _parse_setting_values(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _parse_setting_value(name, value) for name, value in body.items()}


def _parse_setting_value(name: str, value: Any) -> Any:
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
    if name == "mac" and isinstance(value, str) and len(value) == len(settings.NO_MAC):
        return value
    raise ValueError(name)


# -- the plan ------------------------------------------------------------------


@attrs.define
class AdapterWork:
    """The node's reading, the backends and the functions of one operation on virtual functions."""

    tree: FileTree
    node: Node
    backends: AdapterBackends
    functions: dict[str, AdapterFunction] = attrs.field(factory=dict)
    left_out: dict[str, str] = attrs.field(factory=dict)

    def look(self, address: str) -> tuple[AdapterFunction, dict[str, Any]]:
        """Find a function and read its settings.

        :raises AdapterError: it cannot be found or read.
        """
        function = virtual_functions.find_virtual_function(self.tree, self.node, address)
        seen = dict(self.backends.of(function).read(function))
        if function.layer is PortLayer.INFINIBAND:
            # A driver that shows no GUIDs yet has assigned none.
            seen = {"node_guid": 0, "port_guid": 0} | seen
        return function, seen


@attrs.define
class AdapterPlanner:
    """Planner of the addresses and records of one server's virtual functions."""

    prefix: AddressPrefix
    #: Whether to refuse a function that cannot be set, and to replace its own addresses.
    strict: bool
    work: AdapterWork
    server: str
    known: Mapping[str, AdapterRecord]
    records: dict[str, AdapterRecord] = attrs.field(factory=dict)
    refused: dict[str, str] = attrs.field(factory=dict)
    notes: dict[str, str] = attrs.field(factory=dict)

    def add(self, address: str, index: int) -> None:
        """Plan a function without a port."""
        function_and_values = self._look(address)
        if function_and_values is None:
            return
        function, before = function_and_values
        old = self.known.get(address)
        if old is not None and old.server == self.server and old.index == index:
            own = {name: old.made[name] for name in settings.IDENTITY if name in old.made}
        else:
            theirs = None if self.strict else settings.own_addresses_of(function.layer, before)
            own = theirs or self._draw(function.layer, address, index)
        self._put(
            address,
            index,
            function,
            before,
            settings.plan_free_function(function.layer, before, own),
        )

    def add_port(self, address: str) -> None:
        """Plan a function whose addresses libvirt or Nova sets."""
        old = self.known.get(address)
        if not self.strict and (old is None or old.server == self.server):
            return
        function_and_values = self._look(address)
        if function_and_values is None:
            return
        function, before = function_and_values
        floor = self.strict and function.layer is PortLayer.ETHERNET
        self._put(address, -1, function, before, dict(settings.FLOOR) if floor else {})

    def _look(self, address: str) -> tuple[AdapterFunction, dict[str, Any]] | None:
        """Find and read a function, after removing the settings of another server from it."""
        old = self.known.get(address)
        try:
            function, seen = self.work.look(address)
            if old is not None and old.server != self.server:
                change = FunctionChange(function, old.before, old.made)
                left = function_changes.restore_functions(self.work.backends.of, [change])
                if left:
                    raise AdapterError(left[address])
        except NoBackendError as error:
            if self.strict or old is not None:
                self.refused[address] = str(error)
            else:
                self.notes[address] = str(error)
            return None
        except AdapterError as error:
            self.refused[address] = str(error)
            return None
        before = seen if old is None else settings.undo_settings(old.before, old.made, seen)
        # The operator did not set an address of this cloud's prefix without a record. Another
        # server may have it.
        gone = {
            name: settings.NO_MAC if name == "mac" else 0
            for name in settings.IDENTITY
            if name in before and self.prefix.begins(before[name])
        }
        return function, before | gone

    def _draw(self, layer: PortLayer, address: str, index: int) -> dict[str, Any]:
        """Draw addresses that no other record of this node contains."""
        taken = {
            pair
            for other_address, record in {**self.known, **self.records}.items()
            # The function that a moving server has left has the same address, already removed.
            if other_address != address and not (record.server == self.server and record.resting)
            for pair in record.addresses
        }
        if layer is PortLayer.ETHERNET:
            macs = [value for name, value in taken if name == "mac"]
            return {"mac": draw_mac(self.prefix, self.server, index, macs)}
        guids = {value for name, value in taken if name != "mac"}
        draw = functools.partial(draw_guid, self.prefix, self.server, index)
        node = draw("node", guids)
        return {"node_guid": node, "port_guid": draw("port", guids | {node})}

    def _put(
        self,
        address: str,
        index: int,
        function: AdapterFunction,
        before: dict[str, Any],
        made: dict[str, Any],
    ) -> None:
        self.work.functions[address] = function
        self.records[address] = AdapterRecord(self.server, index, before, made)
