"""Opening a lab for a command: new, as it was, or with other wishes."""

from __future__ import annotations

from pathlib import Path

import attrs

from nova_hpc_lab import node
from nova_hpc_lab.cloud import Cloud
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.paths import Paths
from nova_hpc_lab.state import DEFAULT_BASE_PORT, Ports, Settings, write

MOST_NODES = 99


@attrs.frozen
class Wishes:
    """What the user asked for; None where nothing was said."""

    nodes: int | None = None
    shape: str | None = None
    base_port: int | None = None


def existing(paths: Paths) -> Cloud:
    """The lab that is there.

    :raises LabError: there is none.
    """
    settings = Settings.load(paths)
    if settings is None:
        raise LabError(f"there is no lab in {paths.state}; make one with: nova-hpc lab up")
    return Cloud(paths, settings)


def prepared(paths: Paths, wishes: Wishes) -> Cloud:
    """The lab as it is to be; its settings are stored.

    :raises LabError: a wish makes no sense, or cannot be met while the lab runs.
    """
    found = Settings.load(paths)
    if wishes.base_port is not None:
        _check_base_port(wishes.base_port)
    shape = _stored_shape(paths, wishes.shape)
    if found is None:
        settings = Settings.fresh(
            base_port=wishes.base_port or DEFAULT_BASE_PORT,
            nodes=1 if wishes.nodes is None else wishes.nodes,
            shape=shape or node.sample_names()[0],
        )
    else:
        settings = _changed(Cloud(paths, found), wishes, shape)
    # A shape that cannot be read is told before anything starts.
    node.Shape.load(settings.shape)
    settings.save(paths)
    return Cloud(paths, settings)


def _changed(cloud: Cloud, wishes: Wishes, shape: str | None) -> Settings:
    old = cloud.settings
    new = attrs.evolve(
        old,
        base_port=old.base_port if wishes.base_port is None else wishes.base_port,
        nodes=old.nodes if wishes.nodes is None else wishes.nodes,
        shape=shape or old.shape,
    )
    if new.base_port != old.base_port and any(
        service.process.pid() for service in cloud.services().values()
    ):
        raise LabError(
            f"the lab runs with base port {old.base_port}; before it can have another, stop it"
            " with: nova-hpc lab down"
        )
    running = [one for one in cloud.nodes() if one.status().supervisor_pid is not None]
    if new.shape != old.shape and running:
        raise LabError(
            f"node {running[0].name} runs with the shape {Path(old.shape).stem}; before it can"
            " have another, stop the lab with: nova-hpc lab down"
        )
    for machine in running:
        if machine.index > new.nodes:
            machine.stop()
    return new


def _check_base_port(base: int) -> None:
    highest = max(number for _, number in Ports(base).items())
    if base < 1024 or highest > 65535:
        raise LabError(
            f"base port {base} makes no sense: the lab uses {base} to {highest}, which has to be"
            " within 1024 to 65535"
        )


def _stored_shape(paths: Paths, shape: str | None) -> str | None:
    """The name of a sample, or the path of the lab's own copy of a file."""
    if shape is None or shape in node.sample_names():
        return shape
    # Read before it is kept, so the error names the user's own file.
    loaded = node.Shape.load(Path(shape))
    copy = paths.state / "shapes" / f"{Path(shape).stem}.yaml"
    write(copy, loaded.text)
    return str(copy)
