# SPDX-License-Identifier: Apache-2.0
"""Values of metrics, with a limited number of labels. Pure.

A label's value becomes a series of its own in Prometheus, which keeps each of them. Its text is
shown in dashboards and alerts. Names of roles, flavors and hosts are texts of others, so they are
made printable and cut. If there are too many, the rest shares one label.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.metrics.catalogue import MetricKind

#: Characters of the longest value of a label.
LONGEST: Final = 64
#: Different roles that have a label of their own.
MOST_ROLES: Final = 32
#: The label of the others.
OTHER: Final = "other"
#: Hex digits that distinguish texts that would look alike.
_DIGITS: Final = 8
_MARKED: Final = re.compile(r"~[0-9a-f]{8}$")


def bound_label(text: str) -> str:
    """Make *text* a value of a label: printable, short, and different from every other text's.

    A changed text ends with a part of its hash; so does a text that looks like a changed one.
    """
    shown = printable_text(text)
    if shown == text and len(text) <= LONGEST and not _MARKED.search(text):
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{shown[: LONGEST - _DIGITS - 1]}~{mark}"


def _bound_all_labels(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(bound_label, labels))


@attrs.frozen
class MetricSample:
    """One value of a metric, with its labels."""

    kind: MetricKind
    value: float = attrs.field(converter=float)
    #: In the order of :attr:`MetricKind.labels`.
    labels: tuple[str, ...] = attrs.field(default=(), converter=_bound_all_labels)

    @labels.validator
    def _check_number(self, _: object, labels: tuple[str, ...]) -> None:
        if len(labels) != len(self.kind.labels):
            raise ValueError(f"{self.kind.name} has the labels {self.kind.labels}, not {labels}")


def label_roles(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return role -> label value. The most frequent roles keep their names, all others share one.

    :param amounts: role -> devices.
    """
    ordered = sorted(amounts, key=lambda role: (-amounts[role], role))
    return {role: role if number < MOST_ROLES else OTHER for number, role in enumerate(ordered)}


def list_count_samples(
    kind: MetricKind, counts: Mapping[tuple[str, ...], int]
) -> tuple[MetricSample, ...]:
    """Return a sample for each combination of labels, in their order."""
    return tuple(MetricSample(kind, counts[labels], labels) for labels in sorted(counts))
