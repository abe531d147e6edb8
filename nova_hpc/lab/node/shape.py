"""The shape of a virtual node: sockets, NUMA nodes, PCIe trees and devices, from YAML."""

from __future__ import annotations

from pathlib import Path


class ShapeError(ValueError):
    """A shape that makes no sense; the text names the file, the line and the key."""


class Shape:
    """A virtual node as described by a YAML file."""

    @classmethod
    def load(cls, source: str | Path) -> Shape:
        """Read a sample by its name (``two-socket``) or a YAML file by its path."""
        raise NotImplementedError


def sample_names() -> tuple[str, ...]:
    """The names of the shapes that come with the package, the default first."""
    raise NotImplementedError
