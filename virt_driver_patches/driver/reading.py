# SPDX-License-Identifier: Apache-2.0
"""One reading of the node: its topology, its quarantine, its offered devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Specs
from nova_hpc.tenancy import health
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.cleaner import OwnResets
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node
from nova_hpc.wire import tags
from nova_hpc.wire.ledger import DeviceState, Ledger

LOG = logging.getLogger(__name__)

#: Seconds during which a reading is valid for the places of devices, but not for their health.
_LATELY: Final = 30.0

#: Address -> offered device, with the tags of its entry.
Offers = dict[str, tuple[OfferedFunction, Mapping[str, str]]]


class _LastReading:
    """The last reading and its time; replaced as one object, so it is safe between threads."""

    last: tuple[float, NodeReading] | None = None


@attrs.frozen
class ReadingSource:
    """Reads the node's devices, its ledger and their health, by settings of nova-compute."""

    specs: Specs
    root: Path
    ledger: LedgerFile
    signs: frozenset[HealthSign]
    own_resets: OwnResets = attrs.field(factory=OwnResets)
    _kept: _LastReading = attrs.field(init=False, eq=False, repr=False, factory=_LastReading)

    @classmethod
    def from_config(cls, conf: Any) -> ReadingSource:
        """Build the source from nova-compute's options ``[hpc]`` and ``[pci]device_spec``."""
        off = {sign for sign in health.OPTIONAL if sign.value not in conf.hpc.health_checks}
        return cls(
            specs=Specs.parse(conf.pci.device_spec),
            root=Path(conf.hpc.sysfs_root),
            ledger=LedgerFile.from_options(conf.hpc, of_compute=True),
            signs=health.ALL - off,
            own_resets=OwnResets.from_options(conf.hpc),
        )

    def lately(self) -> NodeReading:
        """Return a reading of the last seconds, for callers that need only the devices' places.

        A start whose check has just read the node does not read it again for
        each part of the domain.
        """
        last = self._kept.last
        if last is not None and 0 <= time.monotonic() - last[0] < _LATELY:
            return last[1]
        return self.read()

    def read(self) -> NodeReading:
        """Read everything afresh; an unreadable device is missing and raises no error."""
        began = time.monotonic()
        node = sysfs.read_sysfs_node(self.root, hygiene_reset.list_busy_resets(self.ledger.locks))
        # Each function has its own problems; a node without functions has none, so add one.
        problems = () if node.functions else (*node.problems, "the node shows no PCI functions")
        ledger = self.ledger.read()
        problems += ledger.problems
        for problem in problems:
            LOG.error("%s", problem)
        reading = NodeReading(self.specs, node, ledger, self.signs, problems, self.own_resets)
        self._kept.last = (began, reading)
        return reading

    def renewed(self, reading: NodeReading, problems: tuple[str, ...]) -> NodeReading:
        """Return the same reading after a change of the ledger.

        :param problems: problems that were found since.
        """
        again = attrs.evolve(
            reading, ledger=self.ledger.read(), problems=(*reading.problems, *problems)
        )
        again.keep_offers(reading)
        return again


@attrs.frozen
class NodeReading:
    """The node's PCI devices and the ledger, as read at one moment, with the entries that match."""

    specs: Specs
    node: Node
    ledger: Ledger
    signs: frozenset[HealthSign]
    problems: tuple[str, ...] = ()
    own_resets: OwnResets = attrs.field(factory=OwnResets)
    #: Once they are known: what the node's entries offer.
    _offers: list[Offers] = attrs.field(init=False, eq=False, repr=False, factory=list)

    def offers(self) -> Offers:
        """Map the address of each offered device to (function, tags of its ``device_spec`` entry).

        The mapping is computed once, and every check uses it.
        """
        if not self._offers:
            self._offers.append(self.specs.offers(self.node))
        return dict(self._offers[0])

    def fresh(self) -> dict[str, Symptom]:
        """Map the address of each unhealthy offered device to its symptom, read without the ledger.

        So a device that is suspect or in quarantine, but well now, is left out.
        """
        return self._judge(self.offers(), None, health.FRESH)

    def states(self) -> dict[str, tuple[str, float]]:
        """Map the address of each suspect or quarantined device to (state, time when it began).

        The time is in seconds since the epoch; 0.0 if the ledger has no trial of the device.
        """
        return {
            address: (device.state.value, device.trial.since if device.trial else 0.0)
            for address, device in self.ledger.devices.items()
            if device.state is not DeviceState.OFFERED
        }

    def keep_offers(self, earlier: NodeReading) -> None:
        """Copy the offers of an earlier reading of the same devices, to compute them once."""
        self._offers[:] = earlier._offers

    def judge(
        self,
        offers: Mapping[str, tuple[OfferedFunction, Mapping[str, str]]],
        signs: frozenset[HealthSign] = health.ALL,
    ) -> dict[str, Symptom]:
        """Map the address of each offered device that no server may get to its symptom.

        :param offers: as :meth:`offers` returns them.
        :param signs: the signs that are checked; those that the operator turned off never are.
        """
        return self._judge(offers, self.ledger, signs)

    def _judge(
        self,
        offers: Mapping[str, tuple[OfferedFunction, Mapping[str, str]]],
        ledger: Ledger | None,
        signs: frozenset[HealthSign],
    ) -> dict[str, Symptom]:
        roles = {address: entry.get(tags.ROLE) for address, (_, entry) in offers.items()}
        offered = [offer for offer, _ in offers.values()]
        return health.judge_offered_functions(
            self.node,
            offered,
            ledger,
            self.signs & signs,
            self.own_resets.judge(self.node, roles),
        )
