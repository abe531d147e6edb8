# SPDX-License-Identifier: Apache-2.0
"""The options of a subnet manager: its command line wins over its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.opensm_grammar import read_number

#: Characters that opensm reads of a line at once; the rest counts as the next one.
_ROOM: Final = 1022
#: isspace(3).
_SPACES: Final = " \t\n\v\f\r"


def is_switched_on(options: Mapping[str, str], option: str) -> bool:
    """Whether a switch is on: opensm takes ``TRUE`` for on, and all other words for off.

    ``true``, ``yes`` and ``1`` are off (tried with opensm 3.3.23: it writes them back as FALSE).
    """
    return options.get(option) == "TRUE"


def parse_number(text: str) -> int | None:
    """Parse a number as opensm does (strtoull(3) with base 0); None if it is not a number."""
    number, rest = read_number(text.strip().encode("utf-8", "surrogateescape"))
    return None if rest or not text.strip() else number


def read_manager_options(text: str) -> Mapping[str, str]:
    """Parse a file of options as opensm 3.3.23 does (``osm_subn_parse_conf_file``).

    A line is a name, white space and a value; a comment may follow. The last line counts.

    :returns: option -> value.
    """
    options = {}
    for line in text.split("\n"):
        for start in range(0, len(line), _ROOM):
            plain = line[start : start + _ROOM].partition("#")[0].lstrip(" \t")
            name = plain.replace("\t", " ").partition(" ")[0]
            if name:
                options[name] = _clean_value(plain[len(name) :])
    return options


def _clean_value(text: str) -> str:
    """Remove white space around an option's value, and then one pair of quotes."""
    value = text.strip(_SPACES)
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


@attrs.frozen
class RunningOptions:
    """The options of the running manager that its file of options does not contain.

    :ivar values: options that its command line sets: they win.
    :ivar other_config: the file of options that it reads, if it is not the inspected one.
    :ivar unknown: why its command line is unknown; None if it is known, or no manager runs.
    """

    values: Mapping[str, str] = attrs.field(factory=dict)
    other_config: str | None = None
    unknown: str | None = None

    def overlay_options(self, config_text: str | None) -> Mapping[str, str] | None:
        """Return option -> value in force: the file's, with the command line's on top.

        None without the file.
        """
        if config_text is None:
            return None
        return {**read_manager_options(config_text), **self.values}
