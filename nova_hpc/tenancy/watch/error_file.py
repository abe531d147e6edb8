# SPDX-License-Identifier: Apache-2.0
"""Errors that drivers report, from a file in the format of node_exporter's textfile collector.

A driver of the host (of GPUs that are given as virtual functions, for example) writes its errors
to the kernel's log, and an operator's exporter counts them::

    gpu_driver_errors_total{pci="0000:41:00.0",kind="xid79"} 2

A metric counts if its name matches ``[hpc]watch_error_metric``. Any label whose value is a PCI
address names the device. A file that is missing, too long or unreadable is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.topology.model import try_normalise_address

_LONGEST: Final = 1 << 20
_LINE: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\}[ \t]+([0-9.eE+]{1,32})(?:[ \t]+-?\d{1,20})?[ \t]*",
    re.ASCII,
)
_LABEL: Final = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]*)"', re.ASCII)
#: NVIDIA's tools write eight digits for the domain.
_WIDE: Final = re.compile(r"0000([0-9a-fA-F]{4}:.*)", re.ASCII)


def read_error_counts(text: str, metric: re.Pattern[str]) -> dict[str, int]:
    """Sum the matching metrics by device; other lines, and broken ones, are left out.

    :returns: normalised PCI address -> errors.
    """
    counts: dict[str, int] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or metric.fullmatch(match[1]) is None:
            continue
        address = _address_of_labels(match[2])
        try:
            number = int(float(match[3]))
        except (ValueError, OverflowError):
            continue
        if address is not None:
            counts[address] = counts.get(address, 0) + number
    return counts


def _address_of_labels(labels: str) -> str | None:
    for value in _LABEL.findall(labels):
        wide = _WIDE.fullmatch(value)
        address = try_normalise_address(wide[1] if wide else value)
        if address is not None:
            return address
    return None


@attrs.define
class ErrorFile:
    """The file of one node; parsed again only after it has changed."""

    path: str
    metric: re.Pattern[str]
    _stamp: tuple[int, ...] = ()
    _counts: Mapping[str, int] = attrs.field(factory=dict)

    def read(self) -> Mapping[str, int]:
        """Return address -> errors; a missing address is unknown. Never raises."""
        try:
            status = os.stat(self.path)  # noqa: PTH116
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                # An exporter replaces the file; a half-written one would show fewer errors.
                with open(self.path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    text = file.read(_LONGEST + 1)
                counts = read_error_counts(text, self.metric) if len(text) <= _LONGEST else {}
                self._stamp, self._counts = stamp, counts
        except (OSError, ValueError):
            self._stamp, self._counts = (), {}
        return self._counts
