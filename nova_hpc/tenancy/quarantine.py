"""The devices that an operator, or a failed check, has taken out of service.

One JSON object of PCI addresses to reasons, kept by the compute node
(``[hpc]quarantine_file``). A quarantined physical function quarantines its
virtual functions with it. A file that cannot be read is read from its copy;
where that is broken too, nobody knows which devices are out of service, and
:attr:`Quarantine.lost` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import locked_file
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.topology.model import AddressError, normalise_address

_WHAT: Final = "quarantine file"
_LONGEST_REASON: Final = 1000


class QuarantineError(Exception):
    """The file cannot be written, or must not be; the text names it and the cure."""


@attrs.frozen
class Quarantine:
    """What the file says."""

    #: Normalised PCI address -> reason.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: What is wrong with the file, for the log and the statistics.
    problems: tuple[str, ...] = ()
    #: Neither the file nor its copy can be read.
    lost: bool = False

    def why(self, *addresses: str | None) -> str | None:
        """The reason why any of *addresses* is quarantined; None: none is."""
        for address in addresses:
            if address is not None and address in self.reasons:
                return self.reasons[address] or "no reason given"
        if self.lost:
            return f"nobody knows which devices are in it; {self.problems[0]}"
        return None


def read(path: Path) -> Quarantine:
    """Read the file at *path*; one that is not there quarantines nothing.

    Never raises for what the file holds or for how it may be read.
    """
    loaded = locked_file.load(path, _WHAT)
    reasons: dict[str, str] = {}
    problems = list(loaded.problems)
    for key, reason in loaded.body.items():
        try:
            reasons[normalise_address(key)] = str(reason)
        except AddressError as error:
            problems.append(f"the {_WHAT} {path}: {error}")
    return Quarantine(reasons, tuple(problems), loaded.lost)


def put(path: Path, address: str, reason: str) -> None:
    """Add *address* to the file, or give it another reason.

    :raises QuarantineError: the file is broken or cannot be written.
    :raises AddressError: *address* is no PCI address.
    """
    put_all(path, {address: reason})


def put_all(path: Path, reasons: Mapping[str, str]) -> None:
    """Add several devices at once, or none.

    :raises QuarantineError: the file is broken or cannot be written.
    :raises AddressError: one of them is no PCI address.
    """
    more = {
        normalise_address(address): reason[:_LONGEST_REASON] for address, reason in reasons.items()
    }
    _change(path, lambda now: {**now, **more})


def release(path: Path, address: str) -> bool:
    """Take *address* out of the file.

    :returns: False when it was not in it.
    :raises QuarantineError: the file is broken or cannot be written.
    :raises AddressError: *address* is no PCI address.
    """
    address = normalise_address(address)
    return _change(path, lambda now: {each: now[each] for each in now if each != address})


def _change(path: Path, edit: Callable[[dict[str, str]], dict[str, str]]) -> bool:
    """Edit the file; False when nothing has changed."""
    try:
        with locked_file.locked(path, _WHAT):
            now = _whole(path)
            then = edit(now)
            if then == now:
                return False
            locked_file.save(path, then, _WHAT)
            return True
    except StateError as error:
        raise QuarantineError(str(error)) from error


def _whole(path: Path) -> dict[str, str]:
    """Everything in the file; refuses to go on with one that would lose entries."""
    quarantine = read(path)
    # One that was read from its copy is complete, and is repaired by the change.
    if quarantine.lost or any("PCI address" in problem for problem in quarantine.problems):
        raise QuarantineError(f"{quarantine.problems[0]}; repair or remove it first")
    return dict(quarantine.reasons)
