# SPDX-License-Identifier: Apache-2.0
"""A ``ClusterWish`` in terms of Nova and Neutron: names, tags, and the bodies of requests."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster.user_data import (
    MOST,
    SPARE,
    MemberKeys,
    UserDataError,
    encoded_size_of,
    make_member_keys,
    merge_user_data,
)
from nova_hpc_common.wire import cluster_wish, numbers
from nova_hpc_common.wire.cluster_wish import NAME, ClusterWish, Nic
from nova_hpc_common.wire.mounts import MountError, check_mounts
from nova_hpc_common.wire.version import WireError
from nova_hpc_guest import host_list
from nova_hpc_guest.host_list import HostList, ListedHost, WrongHostListError

#: Microversion of Nova's API for every request. 2.52: tags when a server is created; 2.64: rules
#: of server groups; 2.71: server records contain their groups. Nova 32, 33 and 34 have it.
MICROVERSION: Final = "2.71"
#: Prefix of a member's tag and of a port's description; the id of the server group follows.
MARK: Final = "hpc-cluster="
#: The same for members of adopted clusters, and for ports that the client makes for them.
ADOPTED_MARK: Final = "hpc-adopted="
#: The scheduler hint with the number of members that the cluster will have.
HINT: Final = "hpc_members"
#: Policies of Nova's server groups; one is required.
POLICIES: Final = ("soft-anti-affinity", "soft-affinity", "anti-affinity", "affinity")
#: Neutron's types of ports.
VNICS: Final = (
    *("normal", "direct", "direct-physical", "macvtap", "baremetal"),
    *("virtio-forwarder", "vdpa", "remote-managed", "smart-nic", "accelerator-direct"),
    "accelerator-direct-physical",
)
#: An address of the greatest length that IPv4 has.
_LONG_ADDRESS: Final = "255.255.255.255"


class WishError(ValueError):
    """The ``ClusterWish`` describes no valid cluster; the text has the reason and the cure."""


@attrs.frozen
class Secrets:
    """Options that Nova's API does not return, so users give them again to finish a cluster.

    :ivar user_data: the user's own user data, before keys and mounts are added.
    :ivar volumes: ids of volumes that exist, in the order of the members' numbers.
    :ivar no_user_data: the user states that members have none; needed if no record shows it.
    :ivar keys: keys of the members that this command makes. Each command makes new ones, and no
        record needs to return them: the other members get the public keys.
    """

    user_data: bytes = b""
    volumes: tuple[str, ...] = ()
    no_user_data: bool = False
    keys: MemberKeys = attrs.field(factory=make_member_keys, eq=False)

    @property
    def digests(self) -> Mapping[str, str]:
        """Field of :class:`ClusterWish` -> digest of its secret; empty if there is none."""
        return {
            "user_data": cluster_wish.short_digest_of(self.user_data) if self.user_data else "",
            "volumes": cluster_wish.short_digest_of("\n".join(self.volumes).encode())
            if self.volumes
            else "",
        }


def check_cluster_wish(wish: ClusterWish, secrets: Secrets, spare: int = SPARE) -> None:
    """Refuse requests that Nova would refuse half-way, and those that no client could finish.

    :param spare: bytes of the user data in base64 that are left for keys of later members.
    :raises WishError: the request is invalid; the text contains the cure.
    """
    if not NAME.fullmatch(wish.name):
        raise WishError(
            f"{wish.name!r} cannot name a cluster: members are hosts, so take 1 to 40 letters, "
            "digits and hyphens, a letter first, no hyphen last"
        )
    if not wish.members:
        raise WishError("a cluster has at least one member; to end it, delete it")
    if ":" in wish.zone:
        raise WishError(
            f"--availability-zone {wish.zone}: a host in the zone makes Nova skip its filters; "
            f"say {wish.zone.partition(':')[0]} alone"
        )
    if wish.boot_gib and secrets.volumes:
        raise WishError("--boot-from-volume and --volume exclude each other")
    if wish.boot_gib and not wish.image:
        raise WishError("--boot-from-volume needs the --image that the volumes are made from")
    if not wish.image and not secrets.volumes:
        raise WishError("say what members boot from: --image, or one --volume for each member")
    if secrets.volumes and len(secrets.volumes) != len(wish.members):
        raise WishError(
            f"{len(secrets.volumes)} volumes for {len(wish.members)} members: "
            "give --volume once for each member"
        )
    if len(set(secrets.volumes)) != len(secrets.volumes):
        raise WishError("a volume is named twice; each member needs its own")
    for nic in wish.nics:
        if nic.vnic and nic.vnic not in VNICS:
            raise WishError(f"vnic-type={nic.vnic} is unknown; one of {', '.join(VNICS)}")
    try:
        check_mounts(wish.mounts)
        build_user_data(wish, secrets, spare)
        cluster_wish.to_metadata(wish, "")
        if wish.hosts:
            numbered = [*wish.members, *([host_list.HEAD] if wish.head else [])]
            hosts = (ListedHost(at, _LONG_ADDRESS, secrets.keys.public) for at in numbered)
            host_list.write_host_list(HostList(wish.name, tuple(hosts)))
    except (WireError, UserDataError, MountError) as error:
        raise WishError(str(error)) from error
    except WrongHostListError as error:
        raise WishError(f"{error}; --no-hosts leaves it out") from error


def build_user_data(wish: ClusterWish, secrets: Secrets, spare: int = 0) -> bytes:
    """Build the user data of each member, before base64.

    :param spare: bytes in base64 that are left for keys of later members.
    :raises UserDataError: the user data is too long, or cloud-init would not read it.
    """
    if wish.hosts or wish.mounts:
        keys = secrets.keys if wish.hosts else None
        return merge_user_data(secrets.user_data, keys, wish.name, wish.mounts, spare)
    size = encoded_size_of(secrets.user_data)
    if size > MOST:
        raise UserDataError(
            f"the user data has {size} bytes in base64, longer than Nova takes: {MOST}"
        )
    return secrets.user_data


def check_wish_secrets(wish: ClusterWish, secrets: Secrets) -> None:
    """Compare *secrets* with the digests in the ``ClusterWish``.

    :raises WishError: they differ, or one is missing; the text names the option to give again.
    """
    options = {"user_data": "--user-data", "volumes": "--volume"}
    if wish.volumes == cluster_wish.UNKNOWN:
        raise WishError(
            "the members boot from volumes, and no record says how those were made: let the tool "
            "that made the members make new ones"
        )
    if wish.user_data == cluster_wish.UNKNOWN:
        if secrets.user_data or secrets.no_user_data:
            return
        raise WishError(
            "Nova does not tell the user data of members that were adopted: give --user-data FILE, "
            "or --no-user-data if they have none"
        )
    for field, digest in secrets.digests.items():
        if getattr(wish, field) and not digest:
            raise WishError(
                f"the members have what no record gives back: give {options[field]} again"
            )
        if getattr(wish, field) != digest:
            raise WishError(f"{options[field]} is not what this cluster was created with")


def is_single(wish: ClusterWish) -> bool:
    """Whether members have to be created one by one.

    Nova refuses existing ports and volumes in a request for several servers, and uses one image
    for all of them.
    """
    own = bool(wish.volumes or snapshots.snapshot_of_image(wish.image))
    return wish.single or own or any(nic.vnic for nic in wish.nics)


def member_tag_of(group: str, adopted: bool = False) -> str:
    """Return the tag of each member of a group, at most 48 characters; Nova allows 60."""
    return f"{ADOPTED_MARK if adopted else MARK}{group}"


def member_name(wish: ClusterWish, number: int) -> str:
    """Return the name of a member; Nova makes the same names in a request for several servers."""
    return f"{wish.name}-{number}"


def head_name(cluster: str) -> str:
    """Return the name of a cluster's head."""
    return f"{cluster}-head"


def port_name(wish: ClusterWish, number: int, nic: int) -> str:
    """Return the name of a member's port in the network at index *nic* of its networks."""
    return f"{wish.name}-{number}.{nic}"


def member_number_of(wish_name: str, name: str, adopted: bool = False) -> int | None:
    """Return the number in a member's name; None if the name has none.

    :param adopted: accept 0, because Heat counts from 0.
    """
    match = re.fullmatch(rf"{re.escape(wish_name)}-(0|[1-9][0-9]{{0,5}})", name)
    return int(match[1]) if match and int(not adopted) <= int(match[1]) <= numbers.MOST else None


def port_place_of(wish_name: str, name: str) -> tuple[int, int] | None:
    """Return member's number and index of its network in a port's name; None for other names."""
    match = re.fullmatch(rf"{re.escape(wish_name)}-(0|[1-9][0-9]{{0,5}})\.([0-9]{{1,2}})", name)
    return (int(match[1]), int(match[2])) if match else None


def nics_with_ports(wish: ClusterWish) -> list[tuple[int, Nic]]:
    """Return index and network of the ports that the client makes before the server."""
    return [(place, nic) for place, nic in enumerate(wish.nics) if nic.vnic]


def group_body(
    wish: ClusterWish, attempt: str, policy: str, max_per_host: int | None
) -> dict[str, Any]:
    """Build the body of ``POST /os-server-groups``.

    :param attempt: random text that makes the name unique.
    """
    body: dict[str, Any] = {"name": cluster_wish.to_group_name(wish, attempt), "policy": policy}
    if max_per_host is not None:
        body["rules"] = {"max_server_per_host": max_per_host}
    return {"server_group": body}


def port_body(wish: ClusterWish, group: str, number: int, place: int, groups: Sequence[str]) -> Any:
    """Build the body of ``POST /ports`` for a member's port.

    :param number: number of the member.
    :param place: index of the port's network among the member's networks.
    :param groups: ids of Neutron's security groups; Neutron uses its default if there are none.
    """
    nic = wish.nics[place]
    port: dict[str, Any] = {
        "name": port_name(wish, number, place),
        "description": member_tag_of(group, wish.adopted),
        "network_id": nic.network,
        "binding:vnic_type": nic.vnic,
    }
    if groups:
        port["security_groups"] = list(groups)
    return {"port": port}


def server_body(
    wish: ClusterWish,
    group: str,
    several: Sequence[int],
    secrets: Secrets,
    ports: Mapping[int, str],
    hosts: str = "",
    image: str = "",
) -> dict[str, Any]:
    """Build the body of ``POST /servers`` for one member, or for several at once.

    :param several: numbers of the members; more than one is a request for several
        servers, which Nova names by itself, from 1 on.
    :param ports: index of the network -> id of the port that was made for it.
    :param hosts: text of the host list as far as it is available; empty if it is not.
    :param image: id of the image of these members; empty for *wish*'s own.
    """
    server: dict[str, Any] = {
        "name": wish.name if len(several) > 1 else member_name(wish, several[0]),
        "flavorRef": wish.flavor,
        "metadata": cluster_wish.to_metadata(wish, group),
        "tags": [member_tag_of(group, wish.adopted)],
        "networks": _server_networks_of(wish, ports),
    }
    if len(several) > 1:
        server |= {"min_count": len(several), "max_count": len(several)}
    texts = {"key_name": wish.key, "availability_zone": wish.zone}
    server |= {key: value for key, value in texts.items() if value}
    if wish.security_groups:
        server["security_groups"] = [{"name": name} for name in wish.security_groups]
    user_data = build_user_data(wish, secrets)
    if user_data:
        server["user_data"] = base64.b64encode(user_data).decode("ascii")
    if wish.hosts:
        server["metadata"][host_list.KEYS_KEY] = " ".join(secrets.keys.public)
        server["metadata"] |= host_list.to_items(hosts) if hosts else {}
    if wish.config_drive:
        server["config_drive"] = True
    server |= _boots_from(wish, several[0], secrets, image or wish.image)
    return {"server": server, "os:scheduler_hints": {"group": group, HINT: str(len(wish.members))}}


def _server_networks_of(wish: ClusterWish, ports: Mapping[int, str]) -> Any:
    if not wish.nics:
        return wish.networks
    return [
        {"port": ports[place]} if place in ports else {"uuid": nic.network}
        for place, nic in enumerate(wish.nics)
    ]


def _boots_from(wish: ClusterWish, number: int, secrets: Secrets, image: str) -> dict[str, Any]:
    disk: dict[str, Any] = {"boot_index": 0, "destination_type": "volume"}
    if secrets.volumes:
        volume = secrets.volumes[sorted(wish.members).index(number)]
        disk |= {"source_type": "volume", "uuid": volume, "delete_on_termination": False}
    elif wish.boot_gib:
        disk |= {"source_type": "image", "uuid": image, "volume_size": wish.boot_gib}
        disk["delete_on_termination"] = True
    else:
        return {"imageRef": image}
    return {"block_device_mapping_v2": [disk]}
