# SPDX-License-Identifier: Apache-2.0
"""The input of a step: its options, and the cloud with the rights of the caller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import attrs
from keystoneauth1 import exceptions as keystone
from openstack import exceptions as sdk
from openstack import utils as sdk_utils

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.rest import GoneError, RestClient
from nova_hpc_common.outside.text import printable_text
from nova_hpc_requirements.judging_servers import RUNNING, STOPPED
from nova_hpc_requirements.verdicts import EvidenceError
from nova_hpc_tools.fabric.nova_aggregates import FabricCloud
from nova_hpc_tools.fabric.problems import FabricMapError

#: Beginning of the name of everything that steps make.
NAME: Final = "nova-hpc-requirements"
PLATFORM: Final = "vm"
#: IDs in os-release that the requirement itself has as examples.
SYSTEMS: Final = ("ubuntu", "dgx")
_STATES: Final = {
    "ACTIVE": RUNNING,
    "BUILD": "pending",
    "SHUTOFF": STOPPED,
    "DELETED": "terminated",
    "SOFT_DELETED": "terminated",
}
_PAUSE: Final = 3.0
#: Words of Nova, Neutron and Keystone if rights are missing; a quota also leads to status 403.
_FORBIDDEN: Final = ("Policy doesn't allow", "disallowed by policy", "not authorized")


@attrs.frozen(kw_only=True)
class StepOptions:
    """The user's values for validation steps; an option that is not given has its default."""

    os_cloud: str | None = None
    server: str = ""
    cluster: str = ""
    flavor: str = ""
    image: str = ""
    network: str = ""
    ssh_user: str = ""
    key_file: str = ""
    key_name: str = ""
    security_group: str = ""
    node: str = ""
    #: The physical networks that are InfiniBand.
    physical_networks: tuple[str, ...] = ()
    #: Seconds.
    timeout: float = 900.0
    ssh_timeout: float = 300.0
    accept_os: tuple[str, ...] = SYSTEMS
    #: As ``add_config_options`` leaves them.
    config: Sequence[str] = ()


@attrs.define(slots=False)
class StepContext:
    """The options and the cloud connection that steps share.

    :ivar connect: opens the cloud.
    """

    options: StepOptions
    connect: Callable[[], Any]

    @cached_property
    def connection(self) -> Any:
        """The connection of openstacksdk to the cloud.

        :raises EvidenceError: the cloud cannot be used.
        """
        return self.connect()

    @cached_property
    def rest(self) -> RestClient:
        """A client for plain REST requests to the cloud."""
        return RestClient(self.connection)

    @cached_property
    def cloud(self) -> SdkCloud:
        """Access to clusters and servers by name."""
        return SdkCloud(self.rest)

    @cached_property
    def fabric(self) -> FabricCloud:
        """Access to host aggregates and compute services."""
        return FabricCloud(self.connection.compute)

    @cached_property
    def server_id(self) -> str:
        """Id of the server in the options.

        :raises EvidenceError: they name none.
        """
        if not self.options.server:
            raise EvidenceError("no server is named: --server SERVER")
        return self.cloud.server(self.options.server).id

    def read_server(self) -> dict[str, Any]:
        """Read Nova's record of the server."""
        server = self.server_id
        return dict(self.rest.nova("GET", f"/servers/{server}")["server"])

    def wait_for(self, *wanted: str) -> dict[str, Any]:
        """Wait until the server has one of these states of Nova's, and no task.

        :raises EvidenceError: it is in error, or it takes too long.
        """
        record: dict[str, Any] = {}
        waiting = f"the server is not {' or '.join(wanted)} after {self.options.timeout:g} s"
        for _ in sdk_utils.iterate_timeout(self.options.timeout, waiting, _PAUSE):
            record = self.read_server()
            status = record.get("status")
            if status in wanted and not record.get("OS-EXT-STS:task_state"):
                return record
            if status == "ERROR" and "ERROR" not in wanted:
                fault = (record.get("fault") or {}).get("message") or "Nova gives no reason"
                raise EvidenceError(f"the server is in error: {printable_text(str(fault))}")
        raise EvidenceError(waiting)

    def wait_until_gone(self, server: str) -> None:
        """Wait until the server no longer exists."""
        waiting = f"server {server} is still there after {self.options.timeout:g} s"
        for _ in sdk_utils.iterate_timeout(self.options.timeout, waiting, _PAUSE):
            try:
                self.rest.nova("GET", f"/servers/{server}")
            except GoneError:
                return

    def read_console(self) -> str:
        """Read the text of the server's console, as far as Nova keeps it.

        :raises ClusterCloudError: Nova refuses.
        """
        path = f"/servers/{self.server_id}/action"
        answer = self.rest.nova("POST", path, {"os-getConsoleOutput": {}})
        return str(answer.get("output") or "")


def describe_server(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields about a server that the output of every step contains."""
    addresses = list(_list_addresses(record))
    fixed = next((text for text, kind in addresses if kind != "floating"), "")
    floating = next((text for text, kind in addresses if kind == "floating"), "")
    output = {
        "platform": PLATFORM,
        "instance_id": str(record["id"]),
        "instance_type": str((record.get("flavor") or {}).get("original_name") or ""),
        "private_ip": fixed,
        "public_ip": floating or fixed,
        "key_name": str(record.get("key_name") or ""),
    }
    state = _STATES.get(str(record.get("status")))
    return output if state is None else {**output, "state": state}


def _list_addresses(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for rows in (record.get("addresses") or {}).values():
        for row in rows:
            if row.get("version") == 4:
                yield str(row.get("addr")), str(row.get("OS-EXT-IPS:type"))


def open_cloud(name: str | None) -> Any:
    """Connect to a cloud, and log in.

    :param name: in clouds.yaml; None for the environment's.
    :raises EvidenceError: it cannot be done; the text names the cure.
    """
    import openstack

    try:
        connection = openstack.connect(cloud=name)
        connection.authorize()
    except Exception as error:  # configuration and catalog have errors of several libraries
        which = f"the cloud {name!r} cannot" if name else "no cloud can"
        cure = "name one of clouds.yaml with --os-cloud, or set OS_CLOUD or OS_AUTH_URL"
        raise EvidenceError(f"{which} be used: {_one_line(error)}; {cure}") from error
    return connection


@contextlib.contextmanager
def explain_step_errors() -> Iterator[None]:
    """Turn errors of libraries into one line with the cure.

    :raises EvidenceError: for any such error.
    """
    try:
        yield
    except (ClusterError, ClusterCloudError, FabricMapError) as error:
        raise EvidenceError(_with_cure(_one_line(error))) from error
    except (keystone.ClientException, sdk.SDKException, OSError) as error:
        raise EvidenceError(_with_cure(_one_line(error))) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # A service's answer that lacks a part of its API.
        text = f"{type(error).__name__}: {_one_line(error)}"
        raise EvidenceError(f"an answer that makes no sense: {text}") from error


def _with_cure(text: str) -> str:
    if any(word in text for word in _FORBIDDEN):
        return f"{text}: it takes the admin role"
    return text


def _one_line(error: Exception) -> str:
    return printable_text(" ".join(str(error).split()))[:300] or type(error).__name__
