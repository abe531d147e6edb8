"""The devices that an operator, or a failed reset, has taken out of service.

One JSON object of PCI addresses to reasons, kept by the compute node
(``[hpc]quarantine_file``). A quarantined physical function quarantines its
virtual functions with it. A broken file withholds nothing by itself: that
would take a whole node out of service; it is reported instead.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs

from nova_hpc.topology.model import AddressError, normalise_address


class QuarantineError(Exception):
    """The file cannot be written, or must not be; the text names it and the cure."""


@attrs.frozen
class Quarantine:
    """What the file says."""

    #: Normalised PCI address -> reason.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: What is wrong with the file, for the log and the statistics.
    problems: tuple[str, ...] = ()

    def why(self, *addresses: str | None) -> str | None:
        """The reason why any of *addresses* is quarantined; None: none is."""
        for address in addresses:
            if address is not None and address in self.reasons:
                return self.reasons[address] or "no reason given"
        return None


def read(path: Path) -> Quarantine:
    """Read the file at *path*; one that is not there quarantines nothing.

    Never raises for what the file holds or for how it may be read.
    """
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Quarantine()
    except (OSError, ValueError, RecursionError) as error:
        return Quarantine(problems=(f"the quarantine file {path} cannot be read: {error}",))
    if not isinstance(body, dict):
        return Quarantine(problems=(f"the quarantine file {path} holds no JSON object",))
    reasons: dict[str, str] = {}
    problems: list[str] = []
    for key, reason in body.items():
        try:
            reasons[normalise_address(key)] = str(reason)
        except AddressError as error:
            problems.append(f"the quarantine file {path}: {error}")
    return Quarantine(reasons, tuple(problems))


def put(path: Path, address: str, reason: str) -> None:
    """Add *address* to the file, or give it another reason.

    :raises QuarantineError: the file is broken or cannot be written.
    :raises AddressError: *address* is no PCI address.
    """
    _write(path, {**_whole(path), normalise_address(address): reason})


def release(path: Path, address: str) -> bool:
    """Take *address* out of the file.

    :returns: False when it was not in it.
    :raises QuarantineError: the file is broken or cannot be written.
    :raises AddressError: *address* is no PCI address.
    """
    reasons = _whole(path)
    if reasons.pop(normalise_address(address), None) is None:
        return False
    _write(path, reasons)
    return True


def _whole(path: Path) -> dict[str, str]:
    """Everything in the file; refuses to go on with one that would lose entries."""
    quarantine = read(path)
    if quarantine.problems:
        raise QuarantineError(f"{quarantine.problems[0]}; repair or remove it first")
    return dict(quarantine.reasons)


def _write(path: Path, reasons: Mapping[str, str]) -> None:
    text = json.dumps(dict(sorted(reasons.items())), indent=1) + "\n"
    try:
        # Beside the file, so that the replacement is atomic.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise QuarantineError(f"cannot write the quarantine file {path}: {error}") from error
