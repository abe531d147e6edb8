"""Flavors and aliases as Nova understands them, for snapshots."""

from __future__ import annotations

import json
from typing import Any

import attrs
import nova.conf
from nova import exception, objects
from nova.pci import request as pci_request
from nova.virt import hardware

from nova_hpc.cloud.snapshot import Alias, Flavor, FlavorWant, SnapshotError, printable
from nova_hpc.from_nova import images
from nova_hpc.from_nova import request as requests
from nova_hpc.placement.model import Want

CONF = nova.conf.CONF

_ALIAS = "pci_passthrough:alias"


def aliases() -> tuple[tuple[Alias, ...], requests.Task]:
    """All aliases of the configuration, and one task that wants one of each.

    The keys of the task's wants are the names of the aliases.
    """
    found: list[Alias] = []
    devices: list[requests.Device] = []
    for name in _names():
        try:
            task = read_task(_probe(name), objects.ImageMeta.from_dict({}))
        except (exception.NovaException, requests.RequestError, ValueError) as error:
            found.append(Alias(name=name, problem=_first_line(error)))
            continue
        for device in task.devices:
            found.append(
                Alias(
                    name=name,
                    resource_class=device.kind.resource_class,
                    traits=device.kind.traits,
                )
            )
            devices.append(attrs.evolve(device, want=Want(key=name, name=name, count=1)))
    return tuple(found), requests.Task(extra_specs={}, devices=tuple(devices), cells=())


def flavors(context: Any, image: str | None) -> tuple[Flavor, ...]:
    """Every flavor, and with *image* every flavor once more.

    :raises SnapshotError: there is no such image.
    """
    found = []
    properties: list[tuple[str | None, objects.ImageMeta]] = [
        (None, objects.ImageMeta.from_dict({}))
    ]
    if image is not None:
        properties.append((image, images.find(image)))
    for flavor in objects.FlavorList.get_all(context):
        for name, meta in properties:
            found.append(_flavor(flavor, name, meta))
    return tuple(sorted(found, key=lambda each: (each.name, each.image or "")))


def read_task(flavor: objects.Flavor, image: objects.ImageMeta) -> requests.Task:
    """What Nova's API makes of a flavor and an image, without a server.

    :raises nova.exception.NovaException: Nova refuses the two.
    :raises ValueError: likewise.
    """
    policy = hardware.get_pci_numa_policy_constraint(flavor, image)
    spec = objects.RequestSpec(
        flavor=flavor,
        image=image,
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy),
        requested_resources=[],
    )
    spec.generate_request_groups_from_pci_requests()
    return requests.read_task(spec)


def _flavor(flavor: objects.Flavor, image: str | None, meta: objects.ImageMeta) -> Flavor:
    task, problem = None, None
    try:
        task = read_task(flavor, meta)
    except (exception.NovaException, requests.RequestError, ValueError) as error:
        problem = _first_line(error)
    return Flavor(
        name=printable(flavor.name),
        id=flavor.flavorid,
        image=image,
        extra_specs=dict(flavor.extra_specs or {}),
        wants=()
        if task is None
        else tuple(FlavorWant(want.name, want.count) for want in task.wants),
        cells=() if task is None else task.cells,
        numa_policy=None if task is None else task.numa_policy,
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        problem=problem,
    )


def _names() -> list[str]:
    """Names of all aliases, in their order.

    :raises SnapshotError: one of them is not JSON.
    """
    names = []
    for text in CONF.pci.alias:
        try:
            names.append(str(json.loads(text)["name"]).strip())
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(
                f"[pci]alias {text!r} is no JSON object with a name; correct it in nova.conf"
            ) from error
    return list(dict.fromkeys(names))


def _probe(alias: str) -> objects.Flavor:
    """A flavor that asks for one device of *alias*, and is never stored."""
    return objects.Flavor(
        name=f"one {alias}",
        flavorid=f"one {alias}",
        vcpus=1,
        memory_mb=1,
        extra_specs={_ALIAS: f"{alias}:1"},
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return printable(text.splitlines()[0][:300])
