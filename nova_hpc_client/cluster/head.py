# SPDX-License-Identifier: Apache-2.0
"""The head of a cluster: an additional server without devices, for logins and a job scheduler.

It is not in Nova's server group. The head needs no place close to the members, and the places of
a domain are kept for members only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.addresses import ORDINARY
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import NONE, ClusterWish, Nic

#: Extra specs that request devices; one that ends with a colon is a prefix.
_DEVICES: Final = ("pci_passthrough:alias", "hpc:", "accel:device_profile", "resources:VGPU")


def head_nics(wish: ClusterWish) -> tuple[Nic, ...]:
    """Return the networks of the head: the members' networks in which a port needs no device.

    Nova makes the head's ports.
    """
    return tuple(Nic(nic.network) for nic in wish.nics if nic.vnic in ORDINARY)


def check_head(wish: ClusterWish, flavor: Mapping[str, Any]) -> None:
    """Refuse a head that would have a device, no network or no disk.

    :param flavor: the head's flavor, a record of Nova's API.
    :raises WishError: the head is invalid; the text contains the cure.
    """
    specs = flavor.get("extra_specs") or {}
    wrong = next((spec for spec in specs if _asks_for_device(spec)), None)
    if wrong is not None:
        raise WishError(
            f"--head {flavor['name']}: the flavor has {wrong}, and a head has no devices; take a "
            "flavor without pci_passthrough:alias and hpc: keys"
        )
    if not wish.head_image:
        raise WishError("say what the head boots from: --head-image")
    if wish.networks == NONE or (wish.nics and not head_nics(wish)):
        raise WishError(
            "the head would have no network: ports of the members' networks need a device; add "
            "--network NETWORK with an ordinary one"
        )


def _asks_for_device(spec: str) -> bool:
    return any(spec.startswith(word) if word.endswith(":") else spec == word for word in _DEVICES)


def head_body(wish: ClusterWish, group: str, secrets: Secrets, hosts: str = "") -> dict[str, Any]:
    """Build the body of ``POST /servers`` for the head.

    :param group: id of the cluster's server group.
    :param hosts: text of the host list as far as it is available; empty if it is not.
    """
    own = attrs.evolve(
        wish, flavor=wish.head, image=wish.head_image, nics=head_nics(wish), volumes=""
    )
    without_volumes = attrs.evolve(secrets, volumes=())
    server = wishes.server_body(own, group, (1,), without_volumes, {}, hosts)["server"]
    kept = {
        key: value
        for key, value in server["metadata"].items()
        if not key.startswith(cluster_wish.KEY)
    }
    server["metadata"] = {
        **kept,
        **cluster_wish.to_metadata(wish, group),
        cluster_wish.ROLE_KEY: cluster_wish.HEAD_ROLE,
    }
    return {"server": {**server, "name": wishes.head_name(wish.name)}}
