# SPDX-License-Identifier: Apache-2.0
"""What the steps of a share ask of a cloud; all of it by the user's own token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import attrs

from nova_hpc_tools.cluster.life_cycle.run import ClusterCloudError, LostError, Pace
from nova_hpc_tools.gpu.model import GpuGroup, GpuPort, GpuServer, SharedGpu
from nova_hpc_tools.gpu.refusals import ShareError

#: Times that a request is sent whose answers are lost, and seconds between them. Every step
#: may be repeated.
_TRIES, _PAUSE = 5, 1.0

_Answer = TypeVar("_Answer")
_Words = ParamSpec("_Words")


@attrs.frozen
class ProjectView:
    """All that concerns shares in a project, as of one look."""

    shares: tuple[SharedGpu, ...]
    servers: Mapping[str, GpuServer]
    ports: tuple[GpuPort, ...]
    groups: tuple[GpuGroup, ...]

    def ports_of(self, server: str) -> list[GpuPort]:
        """The ports of a server."""
        return [port for port in self.ports if port.server == server]


class ShareCloud(Protocol):
    """Nova and Neutron with the rights of one user."""

    @property
    def project(self) -> str:
        """Id of the project that the user works in."""

    def look(self) -> ProjectView:
        """All shares, and what they are made of."""

    def gpu_server(self, name: str) -> GpuServer:
        """The server with this name or id.

        :raises ShareError: there is none, or more than one.
        """

    def is_gone(self, server: str) -> bool:
        """Whether there is no such server (any more)."""

    def subnets(self) -> Mapping[str, str]:
        """Id of each subnet -> as Neutron writes it."""

    def console(self, server: str) -> str:
        """The last lines of a server's console; empty where there is none."""

    def make_server(self, body: Mapping[str, Any]) -> str:
        """Ask for a server; its id."""

    def delete_server(self, server: str) -> None:
        """Ask for the end of a server; one that is gone is no error."""

    def make_security_group(self, name: str, description: str) -> str:
        """Make a security group; its id."""

    def make_rule(self, body: Mapping[str, Any]) -> None:
        """Make a rule of a security group; one that is there already is no error."""

    def delete_security_group(self, group: str) -> None:
        """Delete a security group; one that is gone is no error."""

    def set_port_groups(self, port: GpuPort, groups: Sequence[str]) -> bool:
        """Give a port these groups; False: it has changed since it was looked at."""

    def set_item(self, server: str, key: str, text: str) -> None:
        """Write one item of a server's metadata."""

    def delete_item(self, server: str, key: str) -> None:
        """Delete one item of a server's metadata; if it or the server is gone, it is no error."""


def ask_again(
    pace: Pace, ask: Callable[_Words, _Answer], *words: _Words.args, **keywords: _Words.kwargs
) -> _Answer:
    """Ask until there is an answer; only for what may be done twice.

    :raises ShareError: the cloud refuses, or does not answer.
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
