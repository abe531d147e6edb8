# SPDX-License-Identifier: Apache-2.0
"""Cures of findings: words for people, and data for the parts that depend on the layout. Pure.

Services, commands and files of options have other names with Kolla-Ansible and OpenStack-Ansible
than on a host whose services read ``/etc/nova``. A cure has them as parts between its words. Only
:mod:`nova_hpc_tools.site.layout_cures` turns them into text.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import attrs

from nova_hpc_tools.site import settings


class CuredService(enum.Enum):
    """A service that a cure restarts. The values are the names for people."""

    API = "nova-api"
    CONDUCTOR = "nova-conductor"
    SCHEDULER = "nova-scheduler"
    COMPUTE = "nova-compute"
    PLACEMENT = "the Placement API"
    LIBVIRT = "libvirtd"
    NEUTRON = "the Neutron agent"


#: In the order in which cures name them.
CONTROLLERS: Final = (CuredService.API, CuredService.CONDUCTOR, CuredService.SCHEDULER)
NOVA: Final = (*CONTROLLERS, CuredService.COMPUTE)


class CuredCommand(enum.Enum):
    """A command in a cure whose words depend on the deployment tool."""

    CONFIGURE_NODE = settings.COMPUTE
    CONFIGURE_CONTROLLER = settings.CONTROLLER
    CONFIGURE_PLACEMENT = settings.PLACEMENT
    PREPARE = "prepare"
    DOCTOR = "doctor"
    DOCTOR_BESIDE_NOVA = "doctor beside nova-compute"
    DOCTOR_OF_CLOUD = "doctor --part cloud"
    CHECK_SHIM = "install-shim --check"
    NOVA_MANAGE = "nova-manage"


@attrs.frozen
class ServiceRestart:
    """A part of a cure: services to restart, with new settings or with the present ones."""

    services: tuple[CuredService, ...]
    #: Their hosts; None for the examined machine.
    hosts: tuple[str, ...] | None = None
    #: Their settings have changed, so a deployment tool has to deploy the settings first.
    reads_settings: bool = True
    #: The text for a plain host, in place of the names.
    called: str = ""


@attrs.frozen
class CommandRun:
    """A part of a cure: a command to run."""

    command: CuredCommand
    #: Options after the command.
    words: str = ""
    #: The text for a plain host, in place of the command.
    called: str = ""


@attrs.frozen
class CuredOption:
    """An option in a cure, with the value that it should have, or an example of one."""

    section: str
    name: str
    value: str | None = None
    example: str | None = None

    @property
    def title(self) -> str:
        """The option as ``[section]name``."""
        return f"[{self.section}]{self.name}"

    @property
    def text(self) -> str:
        """The option as ``[section]name = value``."""
        if self.example is not None:
            return f"{self.title} like {self.example}"
        return self.title if self.value is None else f"{self.title} = {self.value}"


@attrs.frozen
class OptionPlace:
    """A part of a cure: options, and the file for them, which depends on the deployment tool."""

    options: tuple[CuredOption, ...]
    #: The services that read the file.
    services: tuple[CuredService, ...] = (CuredService.COMPUTE,)
    #: The compute node; None for the examined one.
    host: str | None = None
    #: The text for a plain host, in place of the options and the file.
    called: str = ""


@attrs.frozen
class DeclarationFile:
    """A part of a cure: the declaration file of the examined node."""


class AliasSource(enum.Enum):
    """The node from which a cure takes an alias for nodes that lack it."""

    #: All nodes get the aliases of one node.
    ONE_NODE = enum.auto()
    #: Some nodes get one line of other nodes.
    OTHER_NODES = enum.auto()
    #: Controllers get the line of a node that offers the devices.
    OFFERING_NODE = enum.auto()


@attrs.frozen
class AliasCopy:
    """A part of a cure: aliases to copy to the nodes that lack them."""

    source: AliasSource
    #: The nodes that have the line, if they are known; for people.
    nodes: str = ""
    #: The cure of a check in general, not of one finding.
    general: bool = False


CurePart: TypeAlias = (
    "str | ServiceRestart | CommandRun | OptionPlace | DeclarationFile | AliasCopy"
)


@attrs.frozen
class DoctorCure:
    """A cure: words, and parts that each deployment tool renders in its own words."""

    parts: tuple[CurePart, ...]

    @classmethod
    def of(cls, *parts: CurePart | DoctorCure) -> DoctorCure:
        """Join *parts* into one cure; the parts of a cure among them are added one by one."""
        flat: list[CurePart] = []
        for part in parts:
            flat += part.parts if isinstance(part, DoctorCure) else (part,)
        return cls(tuple(flat))


def read_cure(words: str | DoctorCure) -> DoctorCure:
    """Convert words into a cure that is the same for each deployment tool."""
    return words if isinstance(words, DoctorCure) else DoctorCure((words,))


def place_option(
    section: str,
    name: str,
    value: str | None = None,
    *services: CuredService,
    called: str = "",
    host: str | None = None,
) -> OptionPlace:
    """Build the part of a cure that sets one option in the file that *services* read.

    By default it is nova-compute's file.
    """
    readers = services or (CuredService.COMPUTE,)
    return OptionPlace((CuredOption(section, name, value),), readers, host, called)


#: nova-compute of the examined node, with new settings and with the present ones.
RESTART_COMPUTE: Final = ServiceRestart((CuredService.COMPUTE,))
RESTART_ALONE: Final = ServiceRestart((CuredService.COMPUTE,), reads_settings=False)
RESTART_SCHEDULER: Final = ServiceRestart((CuredService.SCHEDULER,))
RESTART_PLACEMENT: Final = ServiceRestart((CuredService.PLACEMENT,))
#: The command that turns a node's declaration into settings of its services.
WRITE: Final = CommandRun(CuredCommand.CONFIGURE_NODE)
WRITE_CONTROLLER: Final = CommandRun(CuredCommand.CONFIGURE_CONTROLLER)
WRITE_PLACEMENT: Final = CommandRun(CuredCommand.CONFIGURE_PLACEMENT)
PREPARE: Final = CommandRun(CuredCommand.PREPARE, "--write /")
DECLARATION: Final = DeclarationFile()
#: For an entry of others that hides ours: the command finds its line, and the keys to declare.
ENTRY_REMOVAL: Final = DoctorCure.of(
    "Run ",
    CommandRun(CuredCommand.CONFIGURE_NODE, "--dry-run"),
    ": it names the line, and how to remove it.",
)
