"""What a node adds to Nova's own record of a PCI device: the device's tags.

Nova's pools hold free devices only, so the place of a device that a server has
would be known nowhere but on its node. The record has room for it: Nova keeps
whatever else a driver says about a device as text in ``extra_info``, and leaves
it as it is while a server has the device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

#: The key in ``extra_info``.
KEY: Final = "hpc"

_PREFIX: Final = "hpc_"
_LONGEST: Final = 4096


def dumps(tags: Mapping[str, str]) -> str:
    """The ``hpc_*`` tags among *tags* as text; one key, so that none outlives its change."""
    own = {key: value for key, value in sorted(tags.items()) if key.startswith(_PREFIX)}
    return json.dumps(own, separators=(",", ":"))


def loads(text: object) -> dict[str, str]:
    """The tags in a record; {} where it has none, or none that can be read.

    Never raises: it is asked about whatever a database holds.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        return {}
    return {key: value for key, value in found.items() if key.startswith(_PREFIX)}
