"""The values of the options of ``nova-hpc configure``, checked."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from nova_hpc.offer import declaration
from nova_hpc.topology.model import AddressError, normalise_address

MOST: Final = 1_000_000


class UsageError(Exception):
    """An option makes no sense; the text is for the user."""


def whole(values: Iterable[str]) -> Iterable[str]:
    """Addresses of --whole-pf, normalised; or ``all``."""
    for value in values:
        try:
            yield value if value == declaration.EVERY else normalise_address(value)
        except AddressError as error:
            raise UsageError(f"--whole-pf: {error}") from error


def addresses(option: str, values: Iterable[str]) -> frozenset[str]:
    """PCI addresses, normalised."""
    try:
        return frozenset(map(normalise_address, values))
    except AddressError as error:
        raise UsageError(f"{option}: {error}") from error


def _pairs(option: str, values: Iterable[str]) -> Iterable[tuple[str, str]]:
    for value in values:
        role, equals, name = value.partition("=")
        if not (role and equals and name):
            raise UsageError(f"{option}: {value!r} is not ROLE=NAME")
        yield role, name


def resource_classes(values: Sequence[str]) -> dict[str, str]:
    """Role -> resource class, of --resource-class."""
    found: dict[str, str] = {}
    for role, name in _pairs("--resource-class", values):
        if found.setdefault(role, declaration.check_resource_class(name)) != name:
            raise UsageError(f"--resource-class: role {role!r} has two: {found[role]} and {name}")
    return found


def traits(values: Sequence[str]) -> dict[str, frozenset[str]]:
    """Role -> traits, of --trait."""
    found: dict[str, frozenset[str]] = {}
    for role, name in _pairs("--trait", values):
        found[role] = found.get(role, frozenset()) | {declaration.check_trait(name)}
    return found


def filters(text: str | None) -> Sequence[str] | None:
    """Names of --enabled-filters; None without it."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(name.isidentifier() for name in names):
        raise UsageError("--enabled-filters: write names of filters, separated by commas")
    return names


@attrs.frozen
class Count:
    """An argparse type: a whole number of at least *least*."""

    least: int

    def __call__(self, text: str) -> int:
        """Read the number."""
        try:
            value = int(text)
        except ValueError:
            value = self.least - 1
        if not self.least <= value <= MOST:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self.least} to {MOST}"
            )
        return value
