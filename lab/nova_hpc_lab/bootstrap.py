# SPDX-License-Identifier: Apache-2.0
"""Prepares the cloud for its first user: catalog, service user, images, a network."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import openstack
from openstack import exceptions

from nova_hpc_lab import config
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.state import Settings

#: Catalog type -> service name and name of its port.
_CATALOG: Final = {
    "identity": ("keystone", "identity"),
    "placement": ("placement", "placement"),
    "image": ("glance", "image"),
    "compute": ("nova", "compute"),
    "network": ("neutron", "network"),
}
#: 2.96 is the highest of 2024.2; hosts and faults are shown in full from 2.89 on.
COMPUTE_MICROVERSION: Final = "2.96"
PLACEMENT_MICROVERSION: Final = "1.39"
NETWORK: Final = "lab"
GUEST_IMAGE: Final = "hpc-guest"


def connect(settings: Settings) -> Any:
    """Connect to the cloud as the lab's administrator, whatever the caller's environment has."""
    bypass_proxies()
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth_url=config.endpoint(settings, "identity"),
        username="admin",
        password=settings.passwords["admin"],
        project_name="admin",
        user_domain_id="default",
        project_domain_id="default",
        region_name=config.REGION,
        # The catalog may still contain the ports of an earlier start.
        identity_endpoint_override=config.endpoint(settings, "identity"),
        compute_default_microversion=COMPUTE_MICROVERSION,
        placement_default_microversion=PLACEMENT_MICROVERSION,
        app_name="nova-hpc-lab",
    )


def bypass_proxies() -> None:
    """Prevent clients, and programs started from here, from using a proxy for the loopback."""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if config.LOOPBACK not in hosts:
            os.environ[name] = ",".join([*hosts, config.LOOPBACK])


def make_catalog(settings: Settings) -> None:
    """Create or update services, endpoints, and the user with which the services authenticate."""
    identity = connect(settings).identity
    services = {service.type: service for service in identity.services()}
    endpoints = {(point.service_id, point.interface): point for point in identity.endpoints()}
    for kind, (name, port) in _CATALOG.items():
        service = services.get(kind) or identity.create_service(type=kind, name=name)
        url = config.endpoint(settings, port)
        for interface in ("public", "internal", "admin"):
            point = endpoints.get((service.id, interface))
            if point is None:
                identity.create_endpoint(
                    service_id=service.id, interface=interface, url=url, region_id=config.REGION
                )
            elif point.url != url:
                identity.update_endpoint(point, url=url)
    project = identity.find_project("service") or identity.create_project(
        name="service", domain_id="default"
    )
    user = identity.find_user("lab-service") or identity.create_user(
        name="lab-service",
        password=settings.passwords["service"],
        domain_id="default",
        default_project_id=project.id,
    )
    for name in ("admin", "service"):
        role = identity.find_role(name) or identity.create_role(name=name)
        identity.assign_project_role_to_user(project, user, role)


def make_network(settings: Settings) -> None:
    """Create a network with a subnet, for servers with a port."""
    network = connect(settings).network
    lab = network.find_network(NETWORK) or network.create_network(name=NETWORK, is_shared=True)
    if network.find_subnet(NETWORK, network_id=lab.id) is None:
        network.create_subnet(
            name=NETWORK,
            network_id=lab.id,
            ip_version=4,
            cidr="192.0.2.0/24",
            is_dhcp_enabled=False,
        )


def upload_guest(
    settings: Settings, kernel: Path, initramfs: Path, properties: Mapping[str, str]
) -> None:
    """Upload the image that servers boot: a kernel, an initramfs, and an empty disk.

    :param properties: image properties of the disk, for example ``os_command_line``.
    """
    image = connect(settings).image
    parts = {}
    for key, path, form in (("kernel_id", kernel, "aki"), ("ramdisk_id", initramfs, "ari")):
        name = f"{GUEST_IMAGE}-{key.removesuffix('_id')}"
        parts[key] = _upload(image, name, path.read_bytes(), form, form, {})
    # Nova needs a disk image even if kernel and initramfs are enough to boot.
    empty = bytes(1024 * 1024)
    _upload(image, GUEST_IMAGE, empty, "raw", "bare", {**properties, **parts})


def _upload(
    image: Any, name: str, data: bytes, disk: str, container: str, properties: Mapping[str, str]
) -> str:
    """Upload *data* as the image *name* unless it is there, and return the image's id."""
    digest = hashlib.sha512(data).hexdigest()
    for found in list(image.images(name=name)):
        if found.status == "active" and found.hash_value == digest:
            wanted = {key: value for key, value in properties.items() if found.get(key) != value}
            if wanted:
                image.update_image(found, **wanted)
            return str(found.id)
        # This is an interrupted upload, or an older build.
        image.delete_image(found)
    made = image.create_image(
        name=name,
        data=data,
        disk_format=disk,
        container_format=container,
        visibility="public",
        **properties,
    )
    return str(made.id)


def explain(err: Exception) -> LabError:
    """Turn an error of the SDK into one of the lab."""
    if isinstance(err, exceptions.HttpException):
        detail = err.details or err.message
        return LabError(f"the cloud answered {err.status_code}: {detail}")
    return LabError(f"the cloud does not answer: {err}")
