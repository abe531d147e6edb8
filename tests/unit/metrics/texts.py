# SPDX-License-Identifier: Apache-2.0
"""The text of a scrape, as Prometheus's own parser reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

#: (name, labels in their order) -> value.
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Every series; two that are equal are a mistake."""
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in series, key
            series[key] = sample.value
    return series


def values(text: str, name: str, *labels: str) -> dict[str | tuple[str, ...], float]:
    """The series of one metric, by the values of these labels."""
    found: dict[str | tuple[str, ...], float] = {}
    for (series, pairs), value in parse(text).items():
        if series == name:
            key = tuple(dict(pairs)[label] for label in labels)
            found[key[0] if len(key) == 1 else key] = value
    return found


def value(text: str, name: str) -> float | None:
    """The one series of a metric without labels; None: it is not given."""
    return parse(text).get((name, ()))
