# SPDX-License-Identifier: Apache-2.0
"""Faults in the needs of nova-compute: libvirt, the shim, the ledger's folder. Pure."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc_tools.site.cures import RESTART_ALONE, DoctorCure, read_cure
from nova_hpc_tools.site.findings import DoctorFinding

#: Permission bits that a user needs: write and enter, to make files in a folder; read, for a file.
_MAKE: Final = 0o3
_READ: Final = 0o4


@attrs.frozen
class TooOld:
    """A configured feature that needs a newer libvirt than the installed one."""

    #: The servers that are refused without it; a part of a sentence.
    what: str
    needed: str
    here: str
    #: The cure without another libvirt; a sentence without its full stop.
    otherwise: DoctorCure = attrs.field(converter=read_cure)


@attrs.frozen
class Shim:
    """A fault of the shim, the file from which Nova loads the driver."""

    seen: str
    cure: DoctorCure = attrs.field(converter=read_cure)
    #: The file could not be examined.
    unknown: bool = False


@attrs.frozen
class User:
    """The account that a service runs as: name, user id and group ids."""

    name: str
    uid: int
    gids: frozenset[int] = frozenset()


@attrs.frozen
class LedgerPath:
    """The directory or the file of the ledger, with its owner and permissions."""

    path: str
    uid: int
    gid: int
    #: Permission bits.
    mode: int


@attrs.frozen
class ServiceFacts:
    """The conditions that nova-compute needs when it starts."""

    too_old: tuple[TooOld, ...] = ()
    shim: Shim | None = None
    #: The folder of the ledger and the ledger; None if missing or unreadable.
    folder: LedgerPath | None = None
    ledger: LedgerPath | None = None
    #: The user of nova-compute; None if unknown.
    user: User | None = None


def check_service(service: ServiceFacts) -> Iterator[DoctorFinding]:
    """Yield a finding for each condition that nova-compute needs and that is not met."""
    for too_old in service.too_old:
        yield DoctorFinding(
            "libvirt-old",
            f"libvirt is {too_old.here}; {too_old.what} need {too_old.needed}.",
            DoctorCure.of(
                f"Install libvirt {too_old.needed} or newer, or ",
                too_old.otherwise,
                "; then ",
                RESTART_ALONE,
                ".",
            ),
        )
    if service.shim is not None:
        yield shim_finding(service.shim)
    yield from _check_ledger_rights(service)


def shim_finding(shim: Shim) -> DoctorFinding:
    """Build the doctor's finding for a fault of the shim."""
    return DoctorFinding("not-looked" if shim.unknown else "shim", shim.seen, shim.cure)


def _check_ledger_rights(service: ServiceFacts) -> Iterator[DoctorFinding]:
    """Find a ledger that all users may write, or that nova-compute's user cannot use."""
    for place in (service.folder, service.ledger):
        if place is not None and place.mode & stat.S_IWOTH:
            yield DoctorFinding(
                "ledger-open",
                f"{place.path} may be written by every user of the host ({place.mode:04o}).",
                f"chmod o-w {place.path}",
            )
    user = service.user
    if user is None:
        return
    for place, bits, what in (
        (service.folder, _MAKE, "write into"),
        (service.ledger, _READ, "read"),
    ):
        if place is not None and not has_rights(user, place, bits):
            yield DoctorFinding(
                "ledger-closed",
                f"{user.name}, who nova-compute runs as, cannot {what} {place.path}, which is of "
                f"{place.uid}:{place.gid} with {place.mode:04o}.",
                DoctorCure.of(
                    f"chown {user.name} {place.path} && chmod u+rwX {place.path}, and ",
                    RESTART_ALONE,
                    ".",
                ),
            )


def has_rights(user: User, place: LedgerPath, bits: int) -> bool:
    """Whether permission bits give rights to *user*; access lists are not examined.

    :param bits: a sum of 4 (read), 2 (write) and 1 (enter); all of them are needed.
    """
    if user.uid == 0:
        return True
    if user.uid == place.uid:
        granted = place.mode >> 6
    elif place.gid in user.gids:
        granted = place.mode >> 3
    else:
        granted = place.mode
    return granted & bits == bits
