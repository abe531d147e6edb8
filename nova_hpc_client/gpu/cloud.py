# SPDX-License-Identifier: Apache-2.0
"""The requests to a cloud that the steps of a share need, with the user's own token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import attrs

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, LostError, Pace
from nova_hpc_client.gpu.model import GpuGroup, GpuPort, GpuServer, SharedGpu
from nova_hpc_client.gpu.refusals import ShareError

#: Attempts of a request whose answers are lost, and seconds between them. Every step may be
#: repeated.
_TRIES, _PAUSE = 5, 1.0

_Answer = TypeVar("_Answer")
_Words = ParamSpec("_Words")


@attrs.frozen
class ProjectView:
    """All shares of a project, with the records that they consist of, from one reading."""

    shares: tuple[SharedGpu, ...]
    servers: Mapping[str, GpuServer]
    ports: tuple[GpuPort, ...]
    groups: tuple[GpuGroup, ...]

    def ports_of(self, server: str) -> list[GpuPort]:
        """Return the ports of the server with this id."""
        return [port for port in self.ports if port.server == server]


class ShareCloud(Protocol):
    """Interface to Nova and Neutron with the rights of one user, for GPU shares."""

    @property
    def project(self) -> str:
        """Id of the user's project."""

    def look(self) -> ProjectView:
        """Read all shares of the project, with their servers, ports and security groups."""

    def gpu_server(self, name: str) -> GpuServer:
        """Find the server with this name or id.

        :raises ShareError: there is none, or more than one.
        """

    def is_gone(self, server: str) -> bool:
        """Whether the server does not exist (any more)."""

    def subnets(self) -> Mapping[str, str]:
        """Return id of each subnet -> its CIDR as Neutron writes it."""

    def console(self, server: str) -> str:
        """Return the last lines of a server's console; "" if there is none."""

    def make_server(self, body: Mapping[str, Any]) -> str:
        """Request a server, and return its id."""

    def delete_server(self, server: str) -> None:
        """Request the deletion of a server; ignore one that is gone."""

    def make_security_group(self, name: str, description: str) -> str:
        """Make a security group, and return its id."""

    def make_rule(self, body: Mapping[str, Any]) -> None:
        """Make a rule of a security group; ignore one that exists already."""

    def delete_security_group(self, group: str) -> None:
        """Delete a security group; ignore one that is gone."""

    def set_port_groups(self, port: GpuPort, groups: Sequence[str]) -> bool:
        """Give a port these security groups; False if it has changed since it was read."""

    def set_item(self, server: str, key: str, text: str) -> None:
        """Write one item of a server's metadata."""

    def delete_item(self, server: str, key: str) -> None:
        """Delete one item of a server's metadata; ignore an item or server that is gone."""


def ask_again(
    pace: Pace, ask: Callable[_Words, _Answer], *words: _Words.args, **keywords: _Words.kwargs
) -> _Answer:
    """Repeat a request until there is an answer; only for requests that may take effect twice.

    :param ask: sends the request.
    :raises ShareError: the cloud refuses the request, or does not answer.
    """
    for left in reversed(range(_TRIES)):
        try:
            return ask(*words, **keywords)
        except LostError as error:
            if not left:
                raise ShareError(f"the cloud does not answer: {error}") from error
            pace.sleep(_PAUSE)
        except ClusterCloudError as error:
            raise ShareError(str(error)) from error
    raise AssertionError("the last try returns or raises")
