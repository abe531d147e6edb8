# SPDX-License-Identifier: Apache-2.0
"""The choice of the reader for a text: the names of all forms, and how each is recognised."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools.fabric import reader_text
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading, ProblemCollector
from nova_hpc_tools.fabric.reader_text import LineValue
from nova_hpc_tools.fabric.readers import ibnetdiscover, plain, slurm, topograph

#: The forms that are read, with their names on the command line.
FORMS: Final = ("topograph", "slurm", "ibnetdiscover", "plain")
_LONGEST: Final = 256 * 1024 * 1024
_SLURM: Final = re.compile(
    r"^\s*(?:switchname|blockname|blocksizes|aggregatedblock)\s*=", re.I | re.M
)
_IB: Final = re.compile(r'^(?:Switch|Ca)\s+\d+\s+"[SH]-[0-9a-f]+"', re.M)


@attrs.frozen
class ReaderOptions:
    """Options for reading a map that the text itself does not contain."""

    #: Name of the map; None for the name in the text, or "fabric".
    name: str | None = None
    #: One of :data:`FORMS`; None to recognise the form by the text.
    form: str | None = None
    #: Which one of the topologies of Slurm's ``topology.yaml``.
    topology: str | None = None
    #: Level of a block of Slurm.
    block_level: FabricLevel = FabricLevel.BLOCK
    exclusions: Exclusions = NOTHING


def read_fabric_text(text: str, source: str, options: ReaderOptions) -> FabricReading:
    """Read a map from *text* in any of the supported forms.

    :raises FabricMapError: it has none of them; one line.
    """
    if len(text) > _LONGEST:
        raise FabricMapError(f"it is longer than {_LONGEST} characters")
    if "\0" in text:
        raise FabricMapError("it is no text")
    name = options.name or "fabric"
    form = options.form
    if form == "ibnetdiscover" or (form is None and _IB.search(text)):
        return ibnetdiscover.read_ibnetdiscover(text, name, source, options.exclusions)
    if form in (None, "slurm") and _SLURM.search(text):
        return slurm.read_conf(text, name, source, options.block_level, options.exclusions)
    if form == "slurm" and not text.lstrip().startswith("-"):
        raise FabricMapError("it names neither a switch nor a block")
    collector = ProblemCollector()
    document = reader_text.load_with_lines(text, collector)
    reader = _choose_structured_reader(document, collector, source, options)
    if reader is None or (form is not None and reader[0] != form):
        asked = f"not of the form {form}" if form else "of no known form"
        raise FabricMapError(f"it is {asked}; these are read: {', '.join(FORMS)}, and our own JSON")
    return reader[1]()


def _choose_structured_reader(
    document: LineValue, collector: ProblemCollector, source: str, options: ReaderOptions
) -> tuple[str, Callable[[], FabricReading]] | None:
    name, exclusions = options.name or "fabric", options.exclusions
    if isinstance(document.value, list):
        if any(entry.get("topology") for entry in document.each()):
            return "slurm", lambda: slurm.read_yaml(
                document,
                collector,
                name,
                source,
                options.topology,
                options.block_level,
                options.exclusions,
            )
        return None
    if document.get(plain.KEY) is not None:
        return "plain", lambda: plain.read_plain_map(
            document, collector, options.name, source, exclusions
        )
    if document.get("instances") is not None:
        return "topograph", lambda: topograph.read_graph(
            document, collector, name, source, exclusions
        )
    if any(document.get(key) is not None for key in ("switches", "blocks", "capacity_blocks")):
        return "topograph", lambda: topograph.read_model(
            document, collector, name, source, exclusions
        )
    return None
