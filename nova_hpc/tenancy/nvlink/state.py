"""The file in which a node keeps which server has which NVLink partition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.tenancy import locked_file
from nova_hpc.tenancy.nvlink.partitions import Tenancies, Tenancy
from nova_hpc.topology.model import AddressError, address_key, normalise_address

#: What the file is called in a problem.
WHAT: Final = "NVLink file"


@attrs.frozen
class State:
    """What the file says."""

    tenancies: Tenancies = attrs.field(factory=dict, hash=False)
    #: Every GPU that the manager has ever shown.
    known: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    #: Neither the file nor its copy can be read.
    lost: bool = False


def read(path: Path) -> State:
    """Read the file; never raises for what is there."""
    loaded = locked_file.load(path, WHAT)
    try:
        return State(
            {int(key): _tenancy(one) for key, one in loaded.body.get("partitions", {}).items()},
            frozenset(normalise_address(each) for each in loaded.body.get("known", ())),
            loaded.problems,
            loaded.lost,
        )
    except (AddressError, AttributeError, KeyError, TypeError, ValueError) as error:
        return State(problems=(f"the {WHAT} {path} cannot be used: {error}",), lost=True)


def _tenancy(body: Mapping[str, Any]) -> Tenancy:
    return Tenancy(str(body["server"]), frozenset(map(normalise_address, body["gpus"])))


def save(path: Path, state: State) -> None:
    """Replace the file.

    :raises nova_hpc.tenancy.locked_file.StateError: it cannot be written.
    """
    body = {
        "known": sorted(state.known, key=address_key),
        "partitions": {
            str(key): {"server": one.server, "gpus": sorted(one.gpus, key=address_key)}
            for key, one in state.tenancies.items()
        },
    }
    locked_file.save(path, body, WHAT)
