"""One operation on virtual functions: look at them, and plan what they become."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import attrs

from nova_hpc.tenancy.adapters import addresses, apply, find, settings
from nova_hpc.tenancy.adapters.apply import Change, NoBackendError
from nova_hpc.tenancy.adapters.find import Backends
from nova_hpc.tenancy.adapters.settings import AdapterError, Layer, VirtualFunction
from nova_hpc.tenancy.adapters.state import Record
from nova_hpc.topology.files import Tree
from nova_hpc.topology.model import Node


@attrs.define
class Work:
    """One operation."""

    tree: Tree
    node: Node
    backends: Backends
    functions: dict[str, VirtualFunction] = attrs.field(factory=dict)
    left_out: dict[str, str] = attrs.field(factory=dict)

    def look(self, each: str) -> tuple[VirtualFunction, dict[str, Any]]:
        """A function and what it shows.

        :raises AdapterError: it cannot be found or read.
        """
        function = find.find(self.tree, self.node, each)
        seen = dict(self.backends.of(function).read(function))
        if function.layer is Layer.INFINIBAND:
            # A driver that shows none yet has given none.
            seen = {"node_guid": 0, "port_guid": 0} | seen
        return function, seen


@attrs.define
class Planner:
    """What a server's functions are to be set to."""

    prefix: addresses.Prefix
    #: A function that cannot be set is refused, and its own addresses are replaced.
    strict: bool
    work: Work
    server: str
    known: Mapping[str, Record]
    records: dict[str, Record] = attrs.field(factory=dict)
    refused: dict[str, str] = attrs.field(factory=dict)
    notes: dict[str, str] = attrs.field(factory=dict)

    def add(self, each: str, index: int) -> None:
        """A function without a port."""
        found = self._look(each)
        if found is None:
            return
        function, before = found
        old = self.known.get(each)
        if old is not None and old.server == self.server and old.index == index:
            own = {name: old.made[name] for name in settings.IDENTITY if name in old.made}
        else:
            theirs = None if self.strict else settings.addresses_of(function.layer, before)
            own = theirs or self._draw(function.layer, each, index)
        self._put(each, index, function, before, settings.plan(function.layer, before, own))

    def add_port(self, each: str) -> None:
        """A function whose addresses libvirt or Nova sets."""
        old = self.known.get(each)
        if not self.strict and (old is None or old.server == self.server):
            return
        found = self._look(each)
        if found is None:
            return
        function, before = found
        floor = self.strict and function.layer is Layer.ETHERNET
        self._put(each, -1, function, before, dict(settings.FLOOR) if floor else {})

    def _look(self, each: str) -> tuple[VirtualFunction, dict[str, Any]] | None:
        """A function, after what another server has left on it is taken from it."""
        old = self.known.get(each)
        try:
            function, seen = self.work.look(each)
            if old is not None and old.server != self.server:
                change = Change(function, old.before, old.made)
                left = apply.restore(self.work.backends.of, [change])
                if left:
                    raise AdapterError(left[each])
        except NoBackendError as error:
            if self.strict or old is not None:
                self.refused[each] = str(error)
            else:
                self.notes[each] = str(error)
            return None
        except AdapterError as error:
            self.refused[each] = str(error)
            return None
        before = seen if old is None else settings.undone(old.before, old.made, seen)
        # One of this cloud that nobody has a record of is no operator's, and
        # another server may have it.
        gone = {
            name: settings.NO_MAC if name == "mac" else 0
            for name in settings.IDENTITY
            if name in before and self.prefix.begins(before[name])
        }
        return function, before | gone

    def _draw(self, layer: Layer, mine: str, index: int) -> dict[str, Any]:
        taken = {
            pair
            for each, record in {**self.known, **self.records}.items()
            # The function that a moving server has left has the same address, put away.
            if each != mine and not (record.server == self.server and record.resting)
            for pair in record.addresses
        }
        if layer is Layer.ETHERNET:
            macs = [value for name, value in taken if name == "mac"]
            return {"mac": addresses.mac(self.prefix, self.server, index, macs)}
        guids = {value for name, value in taken if name != "mac"}
        draw = functools.partial(addresses.guid, self.prefix, self.server, index)
        node = draw("node", guids)
        return {"node_guid": node, "port_guid": draw("port", guids | {node})}

    def _put(
        self,
        each: str,
        index: int,
        function: VirtualFunction,
        before: dict[str, Any],
        made: dict[str, Any],
    ) -> None:
        self.work.functions[each] = function
        self.records[each] = Record(self.server, index, before, made)
