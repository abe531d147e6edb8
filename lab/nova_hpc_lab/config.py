# SPDX-License-Identifier: Apache-2.0
"""Configuration files of the lab's services: the options, and the text that oslo.config reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nova_hpc_lab.node import qemu
from nova_hpc_lab.state import Paths, Settings, write
from nova_hpc_tools.site import settings as plugin

#: The value of an option, or several values of an option that may be repeated.
Value = str | int | bool | Path | Sequence[str]
Sections = Mapping[str, Mapping[str, Value]]

LOOPBACK: Final = "127.0.0.1"
REGION: Final = "RegionOne"
#: Seconds to wait for the answer to an RPC call in Nova.
_ANSWER_LIMIT: Final = 60
#: Databases, by the service that owns them.
DATABASES: Final[Mapping[str, tuple[str, ...]]] = {
    "keystone": ("keystone",),
    "placement": ("placement",),
    "glance": ("glance",),
    "nova": ("nova_api", "nova", "nova_cell0"),
    "neutron": ("neutron",),
}


def render(sections: Sections) -> str:
    """Format the text of an oslo.config file.

    A sequence becomes one line for each value, as oslo.config's MultiStrOpt reads them. ``$``
    begins a substitution in oslo.config, so it is escaped.
    """
    lines = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            values = value if isinstance(value, list | tuple) else [value]
            lines += [f"{name} = {_text(one)}" for one in values]
        lines.append("")
    return "\n".join(lines)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).replace("$", "$$")
    if "\n" in text:
        raise ValueError(f"an option cannot hold a line break: {text!r}")
    return text


def _alias(role: str, ids: tuple[str, str], kind: str) -> dict[str, str]:
    return {"name": role, "vendor_id": ids[0], "product_id": ids[1], "device_type": kind}


def _role(role: str, ids: tuple[str, str]) -> dict[str, str]:
    return {"role": role, "vendor_id": ids[0], "product_id": ids[1]}


#: Aliases for the devices of a virtual node; flavors request these.
ALIASES: Final = (
    _alias("gpu", qemu.GPU_IDS, "type-PCI"),
    _alias("vf", qemu.VF_IDS, "type-VF"),
    _alias("wide", qemu.WIDE_GPU_IDS, "type-PCI"),
    _alias("nvme", qemu.NVME_IDS, "type-PCI"),
)
DEVICE_ROLES: Final = (
    _role("gpu", qemu.GPU_IDS),
    _role("vf", qemu.VF_IDS),
    _role("pf", qemu.PF_IDS),
    _role("wide", qemu.WIDE_GPU_IDS),
    _role("nvme", qemu.NVME_IDS),
)


def database_url(settings: Settings, database: str) -> str:
    """Return the URL of *database* for SQLAlchemy."""
    password = settings.passwords["database"]
    port = settings.ports["database"]
    return f"mysql+pymysql://lab:{password}@{LOOPBACK}:{port}/{database}?charset=utf8"


def transport_url(settings: Settings, address: str = LOOPBACK) -> str:
    """Return the URL of RabbitMQ for oslo.messaging."""
    password = settings.passwords["messages"]
    return f"rabbit://lab:{password}@{address}:{settings.ports['messages']}/"


def endpoint(settings: Settings, service: str, address: str = LOOPBACK) -> str:
    """Return the URL of a service, by the name of its port."""
    path = {"identity": "/v3", "compute": "/v2.1"}.get(service, "")
    return f"http://{address}:{settings.ports[service]}{path}"


def _client(settings: Settings, address: str = LOOPBACK) -> dict[str, Value]:
    """Return credentials of the only service user, in keystoneauth's options."""
    return {
        "auth_type": "password",
        "auth_url": endpoint(settings, "identity", address),
        "username": "lab-service",
        "password": settings.passwords["service"],
        "project_name": "service",
        "user_domain_id": "default",
        "project_domain_id": "default",
        "region_name": REGION,
    }


def _authtoken(settings: Settings) -> dict[str, Value]:
    return _client(settings) | {
        "www_authenticate_uri": endpoint(settings, "identity"),
        "interface": "public",
        "service_token_roles": "service",
        "service_token_roles_required": True,
    }


def keystone(paths: Paths, settings: Settings) -> Sections:
    """Return the sections and options of ``keystone.conf``."""
    return {
        "database": {"connection": database_url(settings, "keystone")},
        "fernet_tokens": {"key_repository": paths.data / "keystone" / "fernet"},
        "credential": {"key_repository": paths.data / "keystone" / "credential"},
        # A virtual node is slow: an operation may last longer than an hour.
        "token": {"provider": "fernet", "expiration": 86400},
        # All passwords are random and long, so a costly hash would protect nothing.
        "identity": {"password_hash_rounds": 4},
    }


def placement(paths: Paths, settings: Settings) -> Sections:
    """Return the sections and options of ``placement.conf``."""
    return {
        "api": {"auth_strategy": "keystone"},
        "placement_database": {"connection": database_url(settings, "placement")},
        "placement": {
            "allocation_candidates_generation_strategy": "breadth-first",
            "max_allocation_candidates": plugin.FEWEST_CANDIDATES,
            "allocation_conflict_retry_count": 1,
        },
        "workarounds": {"optimize_for_wide_provider_trees": True},
        "keystone_authtoken": _authtoken(settings),
    }


def glance(paths: Paths, settings: Settings) -> Sections:
    """Return the sections and options of ``glance-api.conf``."""
    data = paths.data / "glance"
    return {
        "DEFAULT": {
            "enabled_backends": "file:file",
            "worker_self_reference_url": endpoint(settings, "image"),
            "transport_url": transport_url(settings),
        },
        "database": {"connection": database_url(settings, "glance")},
        "glance_store": {"default_backend": "file"},
        "file": {"filesystem_store_datadir": data / "store"},
        "os_glance_staging_store": {"filesystem_store_datadir": data / "staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": data / "tasks"},
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": paths.venv / "etc" / "glance" / "glance-api-paste.ini",
        },
        "oslo_concurrency": {"lock_path": paths.run / "lock"},
        "keystone_authtoken": _authtoken(settings),
    }


def _nova(settings: Settings, address: str = LOOPBACK) -> dict[str, dict[str, Value]]:
    """Return the options that the controllers and the computes of Nova have in common."""
    client = _client(settings, address)

    def user(service: str) -> dict[str, Value]:
        # The catalog names the loopback, which is another machine if a node uses it.
        return client | {"endpoint_override": endpoint(settings, service, address)}

    return {
        "DEFAULT": {
            "transport_url": transport_url(settings, address),
            "periodic_fuzzy_delay": 0,
            # A lab may have only one node.
            "allow_resize_to_same_host": True,
            # A report whose answer is lost with RabbitMQ blocks the next ones until it times
            # out. The node works during this time, and must not count as down.
            "rpc_response_timeout": _ANSWER_LIMIT,
            "service_down_time": 2 * _ANSWER_LIMIT,
        },
        "placement": user("placement"),
        "glance": user("image"),
        "neutron": user("network"),
        "service_user": client | {"send_service_user_token": True},
        "vnc": {"enabled": False},
        "spice": {"enabled": False},
        "pci": {"alias": [json.dumps(alias) for alias in ALIASES]},
        "hpc": {
            "device_role": [json.dumps(role) for role in DEVICE_ROLES],
            # The lab's user is its operator, so refusals may show capacity.
            "disclose_capacity": "True",
        },
    }


def nova(paths: Paths, settings: Settings) -> Sections:
    """Return the sections of ``nova.conf`` for the API, the conductor and the scheduler."""
    sections = _nova(settings)
    sections["DEFAULT"] |= {"my_ip": LOOPBACK, "state_path": paths.data / "nova"}
    return sections | {
        "api_database": {"connection": database_url(settings, "nova_api")},
        "database": {"connection": database_url(settings, "nova")},
        "wsgi": {"api_paste_config": paths.venv / "etc" / "nova" / "api-paste.ini"},
        "conductor": {"workers": 1},
        "scheduler": {
            "workers": 1,
            "discover_hosts_in_cells_interval": 5,
            "max_placement_results": plugin.FEWEST_CANDIDATES,
        },
        "filter_scheduler": {
            "available_filters": [
                "nova.scheduler.filters.all_filters",
                *plugin.FILTER_CLASSES,
            ],
            "enabled_filters": ",".join(plugin.place_own_filters(plugin.NOVA_FILTERS)),
            "weight_classes": ",".join((plugin.ALL_WEIGHERS, *plugin.WEIGHER_CLASSES)),
            "pci_in_placement": True,
        },
        "workarounds": {"disable_fallback_pcpu_query": True},
        "quota": {"instances": -1, "cores": -1, "ram": -1},
        "oslo_concurrency": {"lock_path": paths.run / "lock"},
        "keystone_authtoken": _authtoken(settings),
    }


def compute(
    settings: Settings,
    host: str,
    address: str,
    networks: Mapping[str, str] | None = None,
    has_disks: bool = False,
) -> Sections:
    """Return the sections of ``nova.conf`` for nova-compute in the node *host*.

    Options that depend on the node's own devices (``[pci]device_spec``,
    ``[compute]cpu_dedicated_set``) are left out: the node writes them itself from its inventory,
    with ``nova-hpc configure``.

    :param address: the address under which the node reaches the services.
    :param networks: interface of each adapter that is kept for the ports of a physical
        network -> that network, which is also the role of its virtual functions.
    :param has_disks: the node erases NVMe disks between servers.
    """
    sections = _nova(settings, address)
    # The first matching entry counts.
    sections["hpc"]["device_role"] = [
        *(
            json.dumps({**_role(network, qemu.VF_IDS), "interface": interface})
            for interface, network in (networks or {}).items()
        ),
        *(json.dumps(role) for role in DEVICE_ROLES),
    ]
    if has_disks:
        sections["hpc"] |= {
            "clean_stage": "nvme:host",
            "clean_checks": "nvme:nvme",
            "clean_drivers": "nvme:nvme",
            "clean_timeout": 900,
        }
    sections["DEFAULT"] |= {
        "host": host,
        "compute_driver": plugin.DRIVER,
        "state_path": "/var/lib/nova",
        "instances_path": "/var/lib/nova/instances",
        # Emulation is slow, and one start at a time is quicker than two.
        "max_concurrent_builds": 2,
    }
    # After a SIGTERM, Nova 34 waits three minutes for running operations and ignores further
    # signals. The node's init starts it again at once.
    sections["DEFAULT"] |= {"graceful_shutdown_timeout": 15, "manager_shutdown_timeout": 10}
    # nova-compute runs as root in the node, so the helper needs no sudo.
    helper = "/usr/bin/env privsep-helper --config-file /etc/nova/nova.conf"
    for context in ("privsep", "nova_sys_admin", "vif_plug_ovs_privileged", "privsep_osbrick"):
        sections[context] = {"helper_command": helper}
    sections["pci"] = dict(sections["pci"]) | {"report_in_placement": True}
    return sections | {
        "libvirt": {
            # The emulated processor has AMD's virtualisation, so this is real KVM.
            "virt_type": "kvm",
            "images_type": "raw",
            # A raw image would contain the whole disk, which is nearly empty; copying it out of an
            # emulated machine takes minutes.
            "snapshot_image_format": "qcow2",
            "inject_partition": -2,
        },
        "oslo_concurrency": {"lock_path": "/var/lib/nova/lock"},
    }


def neutron(paths: Paths, settings: Settings) -> Sections:
    """Return sections of ``neutron.conf``: the real server, no agents, ports bound by the lab."""
    return {
        "DEFAULT": {
            "transport_url": transport_url(settings),
            "core_plugin": "ml2",
            "service_plugins": "",
            "api_paste_config": paths.venv / "etc" / "neutron" / "api-paste.ini",
            "state_path": paths.data / "neutron",
            "auth_strategy": "keystone",
            "dhcp_agent_notification": False,
            "notify_nova_on_port_status_changes": True,
            "notify_nova_on_port_data_changes": True,
        },
        "ml2": {
            "type_drivers": "local,flat,vlan",
            "tenant_network_types": "local",
            "mechanism_drivers": "nova_hpc_lab",
            # Without the second driver, Nova does not see the NUMA policy of a port.
            "extension_drivers": "port_security,port_numa_affinity_policy",
        },
        "ml2_type_flat": {"flat_networks": "*"},
        "ml2_type_vlan": {"network_vlan_ranges": "physnet1:100:199"},
        "database": {"connection": database_url(settings, "neutron")},
        "oslo_concurrency": {"lock_path": paths.run / "lock"},
        "keystone_authtoken": _authtoken(settings),
        "nova": _client(settings)
        | {"endpoint_override": endpoint(settings, "compute"), "endpoint_type": "public"},
        "placement": _client(settings)
        | {"endpoint_override": endpoint(settings, "placement"), "endpoint_type": "public"},
    }


def clouds(settings: Settings) -> str:
    """Format ``clouds.yaml`` for the lab's administrator, as JSON, which is also YAML."""
    cloud = {
        "auth": {
            "auth_url": endpoint(settings, "identity"),
            "username": "admin",
            "password": settings.passwords["admin"],
            "project_name": "admin",
            "user_domain_id": "default",
            "project_domain_id": "default",
        },
        "region_name": REGION,
        "identity_api_version": 3,
    }
    return json.dumps({"clouds": {"nova-hpc-lab": cloud}}, indent=2) + "\n"


def write_all(paths: Paths, settings: Settings) -> None:
    """Write the files of all controllers with mode 0600, because they contain passwords."""
    files = {
        "keystone/keystone.conf": render(keystone(paths, settings)),
        "placement/placement.conf": render(placement(paths, settings)),
        "glance/glance-api.conf": render(glance(paths, settings)),
        "nova/nova.conf": render(nova(paths, settings)),
        "neutron/neutron.conf": render(neutron(paths, settings)),
        "clouds.yaml": clouds(settings),
    }
    for name, text in files.items():
        write(paths.config / name, text, mode=0o600)
    for name in ("nova", "neutron", "glance/store", "glance/staging", "glance/tasks"):
        (paths.data / name).mkdir(mode=0o700, parents=True, exist_ok=True)
