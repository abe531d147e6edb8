# SPDX-License-Identifier: Apache-2.0
"""The step for devices that no server may ever get, whatever the configuration offers.

* ConnectX functions that manage NVSwitches (HGX B200 and B300): a server with one could
  reconfigure the NVLinks of all servers of the node. Only their VPD identifies them. A process
  with a deadline reads it once per boot, and its result is stored beside the ledger.
* Storage devices whose cleaner proves no erase (:mod:`nova_hpc.tenancy.storage`), also if an
  operator has named them in ``[hpc]offer_anyway``.
* Devices that are known to fail after their first server (:data:`KNOWN`), unless an operator
  has confirmed with ``[hpc]offer_anyway`` that theirs do not.

:mod:`nova_hpc.tenancy.holders` finds devices that the host itself uses: such a use can end.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError, TenancyStep, WithheldDevices
from nova_hpc.tenancy.storage import Erasers, find_unerased_storage
from nova_hpc.topology import atomic_files, vpd
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import Node, PciFunction

#: Vendor id of the adapters that manage NVSwitches.
_MELLANOX: Final = "15b3"
_CURE: Final = "if that is wrong, name it in [hpc]offer_anyway"

_MANAGER: Final = Symptom(HealthSign.NEVER, "NVSwitches are managed by it (SMDL=SW_MNG in its VPD)")

#: Reports exist for the first and the last (AMD's tracker, MxGPU-Virtualization 25): after a reset
#: by VFIO its configuration space reads as ones. The others are variants of the same two chips.
_INSTINCTS: Final = {
    "74a1": "MI300X",
    "74a2": "MI308X",
    "74a5": "MI325X",
    "74a8": "MI308X HF",
    "74a9": "MI300X HF",
    "75a0": "MI350X",
    "75a3": "MI355X",
}
_REPORTED: Final = ("74a1", "75a3")


def _word_instinct(product: str, name: str) -> str:
    known = (
        "its reset by VFIO is known to hang until the host is booted"
        if product in _REPORTED
        else "it is a variant of MI300X or MI355X, whose reset by VFIO is known to hang until the "
        "host is booted"
    )
    return f"an {name} as a whole: {known}; offer its virtual functions instead"


#: vendor:product -> reason why it is not given.
KNOWN: Final = {
    f"1002:{product}": _word_instinct(product, name) for product, name in _INSTINCTS.items()
}

#: Returns the VPD of the function at an address; None if it has none.
Read = Callable[[str], bytes | None]
#: Returns why the function at an address is never given; None if it may be given.
Look = Callable[[str], Symptom | None]


def find_forbidden_devices(
    node: Node, addresses: Iterable[str], look: Look, anyway: Container[str | None] = frozenset()
) -> dict[str, Symptom]:
    """Find devices that no server may ever get, or :attr:`HealthSign.UNSURE` if that is unknown.

    A virtual function gets the result of its physical function.

    :param look: returns the result for an adapter's VPD, see :func:`symptom_of_vpd`.
    :param anyway: addresses, and ``vendor:product``, that an operator allows.
    :returns: PCI address -> the reason; allowed devices are left out.
    """
    symptoms = {}
    for address in addresses:
        function = node.function(address)
        if function is None:
            continue
        parent = node.function(function.physical_function or "")
        symptom = _symptom_of_forbidden(function, look, anyway)
        if symptom is None and parent is not None:
            symptom = _symptom_of_forbidden(parent, look, anyway, address)
        if symptom is not None:
            symptoms[address] = symptom
    return symptoms


def _symptom_of_forbidden(
    function: PciFunction, look: Look, anyway: Container[str | None], of: str | None = None
) -> Symptom | None:
    model = f"{function.vendor_id}:{function.product_id}"
    if any(name in anyway for name in (model, function.address, of)):
        return None
    if of is None and model in KNOWN:
        return Symptom(HealthSign.NEVER, KNOWN[model])
    if function.vendor_id != _MELLANOX or function.physical_function is not None:
        return None
    return look(function.address)


def symptom_of_vpd(read: Read, address: str) -> Symptom | None:
    """Return the reason never to give a function, from its VPD; None if it may be given."""
    try:
        data = read(address)
        if data is not None and vpd.manages_switches(data):
            return _MANAGER
    except FileError as error:
        return _symptom_of_unsure(str(error))
    except vpd.VpdError as error:
        return _symptom_of_unsure(f"its VPD is broken: {error}")
    return None


def _symptom_of_unsure(reason: str) -> Symptom:
    return Symptom(
        HealthSign.UNSURE, f"the node cannot tell whether it manages NVSwitches: {reason}"
    )


#: For an adapter that has no stored result of nova-compute.
UNREAD: Final = _symptom_of_unsure("nova-compute has not read its VPD since the boot")


def answers_beside(ledger: Path) -> Path:
    """Return the path of the stored VPD results, beside the node's ledger."""
    return ledger.with_name(f".{ledger.name}.vpd")


def load_answers(root: Path, cache: Path) -> dict[str, Symptom | None]:
    """Load PCI address -> result of its VPD, as nova-compute has read it since the boot.

    {} if the cache is missing, unreadable or older than the boot.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        body = json.loads(cache.read_text())
        boot = baseline.boot_of(FileTree(root))
        if boot is not None and body["boot"] == boot:
            return {
                str(address): _MANAGER if is_manager else None
                for address, is_manager in body["known"].items()
            }
    return {}


@attrs.frozen
class ForbiddenDevices(TenancyStep):
    """Tenancy step that withholds devices that no server may ever get."""

    name: ClassVar[str] = "never"

    root: Path
    #: Reads VPD, within its deadline; raises FileError.
    read: Read
    #: File of the stored results.
    cache: Path
    #: Addresses, and ``vendor:product``, that an operator allows to be given.
    anyway: frozenset[str] = frozenset()
    #: Roles whose cleaner proves that it erases storage.
    erasers: Erasers = attrs.field(factory=Erasers)
    #: VPD results that are certain, or were read since the service started.
    _known: dict[str, Symptom | None] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """Read VPDs that were not read since the boot; return a note for each forbidden device."""
        self._known.update(load_answers(self.root, self.cache))
        return tuple(
            f"PCI device {address} is never offered: {symptom.reason}"
            for address, symptom in self.reasons(view, view.roles).items()
        )

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Refuse such devices: the configuration may have changed since the last update."""
        refused = self.reasons(view, tenant.devices)
        if refused:
            reasons = {address: symptom.reason for address, symptom in refused.items()}
            raise RefusedError.of_devices(len(tenant.devices), reasons, "are never given to any")
        return ()

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Allow a server to keep such a device, and log it."""
        return tuple(
            f"A server has PCI device {address}, which should never be given: {symptom.reason}"
            for address, symptom in self.reasons(view, tenant.devices).items()
        )

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Return the offered devices that no server may ever get, with the reasons."""
        return WithheldDevices(self.reasons(view, view.roles))

    def reasons(self, view: NodeView, addresses: Iterable[str]) -> dict[str, Symptom]:
        """Return PCI address -> why a server never gets it; allowed devices are left out.

        A virtual function counts as its physical function.
        """
        asked = tuple(addresses)
        symptoms = find_forbidden_devices(view.node, asked, self._look, self.anyway)
        return {
            address: attrs.evolve(symptom, reason=f"{symptom.reason}; {_CURE}")
            for address, symptom in symptoms.items()
        } | find_unerased_storage(view.node, asked, view.roles, self.erasers)

    def _look(self, address: str) -> Symptom | None:
        if address not in self._known:
            self._known[address] = symptom_of_vpd(self.read, address)
            self._save()
        return self._known[address]

    # -- once a boot ----------------------------------------------------------------

    def _save(self) -> None:
        """Store the certain results; the next start tries the others again.

        An empty text means that the function may be given.
        """
        sure = {
            address: "" if symptom is None else symptom.sign.value
            for address, symptom in self._known.items()
            if symptom is None or symptom.sign is not HealthSign.UNSURE
        }
        body = {"boot": baseline.boot_of(FileTree(self.root)), "known": sure}
        with contextlib.suppress(OSError):
            atomic_files.write_file(self.cache, json.dumps(body).encode(), 0o644)
