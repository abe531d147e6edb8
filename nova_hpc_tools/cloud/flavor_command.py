# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc flavor create``: a family of flavors that fits a kind of node."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs

from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand
from nova_hpc_tools.cloud import family, node_kinds
from nova_hpc_tools.cloud.explain import find_nodes
from nova_hpc_tools.cloud.family import FamilyFlavor
from nova_hpc_tools.fabric import nova_aggregates
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.snapshot import Flavor, Snapshot, SnapshotError, SnapshotNode, cloud_readers

_COLUMNS: Final = ("Flavor", "VCPUs", "RAM", "Properties", "Fit", "State")
_NAME: Final = re.compile(r"[\w][\w.-]{0,200}", re.ASCII)
_NONE: Final = "none"
#: GB of the root disk: members get 403 with 0 (os_compute_api:servers:create:zero_disk_flavor).
_DISK: Final = 20
#: From here on Nova checks the keys (nova/api/openstack/compute/flavors_extraspecs.py).
_CHECKED: Final = "2.86"


class NoDevicesError(CommandError):
    """No host of the cloud offers a device, so no node can be the model of flavors."""

    status = 3


class CreateFlavors(ListCommand):
    """Make flavors for 1, 2, 4, ... and all GPUs of a kind of node.

    Each gets its share of the node's dedicated CPUs and hugepages, so that the last GPU does not
    strand, and the tightest hpc:affinity at which the node still holds as many of them. Shows the
    flavors, and creates them only with --yes. An existing flavor with the same settings stays. If
    one has other settings, it is named, and no flavor is created. The exit status is 0, or 1 if
    they are not created yet, 2 if it cannot be done, and 3 if no host offers a device.
    """

    acts_with = ("yes",)
    errors = (SnapshotError, FabricMapError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--family",
            default="hpc",
            metavar="NAME",
            help="prefix of the names: hpc makes hpc.gpu1 (default: hpc)",
        )
        parser.add_argument(
            "--host",
            metavar="HOST",
            help="a host of the kind that they are for (default: the only kind that the cloud has)",
        )
        parser.add_argument(
            "--gpu", default="gpu", metavar="ALIAS", help="alias of the GPUs (default: gpu)"
        )
        parser.add_argument(
            "--beside",
            metavar="ALIAS|none",
            help="alias of which each GPU gets one, as near as there are (default: vf, where the "
            "node has as many of it as GPUs; none: where adapters come by Neutron's ports)",
        )
        parser.add_argument(
            "--disk",
            type=Count(0),
            default=_DISK,
            metavar="GB",
            help=f"size of the root disk (default: {_DISK}; with 0, that of the image, Nova "
            "lets only administrators start servers from images)",
        )
        parser.add_argument("--yes", action="store_true", help="create the shown flavors")
        parser.add_argument(
            "--os-cloud",
            metavar="NAME",
            help="name in clouds.yaml of the cloud in which they are made (default: OS_CLOUD)",
        )
        cloud_readers.add_snapshot_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Show the family of flavors with their states, and with --yes create the new ones."""
        args = parsed_args
        if not _NAME.fullmatch(args.family):
            raise CommandError(f"--family: {args.family!r} is no name of a flavor")
        cloud = cloud_readers.obtain_snapshot(args.snapshot, args.config)
        node = _choose_flavor_node(cloud, args.host)
        empty = attrs.evolve(cloud, servers=())
        members = family.build_flavor_family(
            empty, node, args.family, args.gpu, _choose_adapter_alias(args, empty, node)
        )
        states = [_flavor_state_of(cloud, member.flavor) for member in members]
        if args.yes:
            states = _make_missing_flavors(
                nova_aggregates.connect_compute_proxy(args), members, args.disk
            )
        rows = [
            (
                member.flavor.name,
                member.flavor.vcpus,
                member.flavor.memory_mb,
                json.dumps(dict(member.flavor.extra_specs)),
                member.fit,
                state,
            )
            for member, state in zip(members, states, strict=True)
        ]
        missing = "new" in states
        return CommandAnswer(
            _COLUMNS,
            rows,
            status=int(missing),
            show=lambda: _print_flavor_family(node, members, states, args.disk),
        )


def _choose_flavor_node(cloud: Snapshot, host: str | None) -> SnapshotNode:
    """Choose a node of the requested kind, empty and with the devices that it withholds.

    :param host: a host of the kind; None for the only kind of the cloud.
    :raises CommandError: no host offers a device, or there are several kinds.
    """
    named = [node for node in find_nodes(cloud, host) if node.devices or node.withheld]
    kinds = node_kinds.find_node_kinds(
        family.release_all_servers(cloud, node)
        for node in cloud.hosts
        if node.devices or node.withheld
    )
    hosts = {node.host for node in named}
    kinds = [kind for kind in kinds if hosts & {*kind.hosts} and kind.model.devices]
    if not kinds:
        raise NoDevicesError("no host of the cloud offers a device")
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.model.host for kind in kinds))
        raise CommandError(f"the cloud has several kinds of nodes: name one with --host ({names})")
    (kind,) = kinds
    for address in kind.unplaced:
        print(
            f"{kind.model.host} withholds {address} ({kind.model.withheld[address]}), and no other "
            "host shows where it sits: no flavor counts it.",
            file=sys.stderr,
        )
    return kind.model


def _choose_adapter_alias(
    args: argparse.Namespace, cloud: Snapshot, node: SnapshotNode
) -> str | None:
    if args.beside is not None:
        return None if args.beside == _NONE else str(args.beside)
    bare = family.release_all_servers(cloud, node)
    count = {
        alias: sum(device.free for device in bare.devices if alias in device.aliases)
        for alias in (args.gpu, "vf")
    }
    return "vf" if count["vf"] >= count[args.gpu] else None


def _flavor_state_of(cloud: Snapshot, flavor: Flavor) -> str:
    """Return ``is there``, ``differs`` or ``new`` for a flavor of that name in the snapshot.

    The snapshot does not contain a flavor's disk.
    """
    for known_flavor in cloud.flavors:
        if known_flavor.name == flavor.name and known_flavor.image is None:
            same = (known_flavor.vcpus, known_flavor.memory_mb, dict(known_flavor.extra_specs)) == (
                flavor.vcpus,
                flavor.memory_mb,
                dict(flavor.extra_specs),
            )
            return "is there" if same else "differs"
    return "new"


# --- the cloud ----------------------------------------------------------------------------


def _make_missing_flavors(compute: Any, members: Sequence[FamilyFlavor], disk: int) -> list[str]:
    """Make the missing flavors; all are compared before the first is made.

    :raises CommandError: an existing one differs, or Nova refuses.
    """
    try:
        existing = {flavor.name: flavor for flavor in compute.flavors(get_extra_specs=True)}
        wrong = [
            member.flavor.name
            for member in members
            if member.flavor.name in existing
            and not _is_same_flavor(existing[member.flavor.name], member.flavor, disk)
        ]
        if wrong:
            raise CommandError(
                f"{', '.join(wrong)}: a flavor of that name has other settings; delete it, or "
                "name another --family"
            )
        return [
            "is there"
            if member.flavor.name in existing
            else _make_flavor(compute, member.flavor, disk)
            for member in members
        ]
    except CommandError:
        raise
    except Exception as error:  # openstacksdk and keystoneauth have no common one
        raise CommandError(f"Nova refuses: {' '.join(str(error).split())}") from error


def _is_same_flavor(existing: Any, flavor: Flavor, disk: int) -> bool:
    return (existing.vcpus, existing.ram, existing.disk, dict(existing.extra_specs or {})) == (
        flavor.vcpus,
        flavor.memory_mb,
        disk,
        dict(flavor.extra_specs),
    )


def _make_flavor(compute: Any, flavor: Flavor, disk: int) -> str:
    made = compute.create_flavor(
        name=flavor.name, vcpus=flavor.vcpus, ram=flavor.memory_mb, disk=disk
    )
    try:
        answer = compute.post(
            f"/flavors/{made.id}/os-extra_specs",
            json={"extra_specs": dict(flavor.extra_specs)},
            microversion=_CHECKED,
        )
        if answer.status_code >= 400:
            raise CommandError(f"Nova refuses the properties of {flavor.name}: {answer.text}")
    except Exception:
        # Without its properties it is a flavor that gives no devices.
        compute.delete_flavor(made.id)
        raise
    return "made"


# --- for people ---------------------------------------------------------------------------


def _print_flavor_family(
    node: SnapshotNode, members: Sequence[FamilyFlavor], states: Sequence[str], disk: int
) -> None:
    for member, state in zip(members, states, strict=True):
        flavor = member.flavor
        servers = f"{member.fit} on an empty host like {node.host}"
        print(f"# {flavor.name}: {servers}, devices at {member.level}; {state}")
        words = [
            *("openstack", "--os-compute-api-version", _CHECKED, "flavor", "create", flavor.name),
            *("--vcpus", str(flavor.vcpus), "--ram", str(flavor.memory_mb), "--disk", str(disk)),
        ]
        for key, value in flavor.extra_specs.items():
            words += ["--property", f"{key}={value}"]
        print(shlex.join(words))
    if "new" in states:
        print("# Nothing was made: --yes makes them.")
