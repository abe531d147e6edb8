"""The root disk of the virtual node, built once and cached."""

from __future__ import annotations

from pathlib import Path

from nova_hpc.lab.node.contract import NodePaths, Progress


class ImageError(RuntimeError):
    """The image cannot be built; the text names the step and the cure."""


def prepare_image(paths: NodePaths, progress: Progress | None = None) -> Path:
    """Make sure that the node's root disk is in the cache.

    Needs root and ``mmdebstrap``. May be interrupted at any point and called
    again; what is complete is kept and checked against its checksum.

    :param progress: called at each step.
    :returns: the disk image (qcow2), to be used read-only as a backing file.
    :raises ImageError: a step failed.
    """
    raise NotImplementedError
