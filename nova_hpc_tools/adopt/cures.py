# SPDX-License-Identifier: Apache-2.0
"""What makes a finding right: words for people, and as data what each layout says otherwise. Pure.

A service to restart, an option with its file and a command have other names with Kolla-Ansible and
OpenStack-Ansible than on a host whose services read ``/etc/nova``. A cure has them as parts between
its words; :mod:`nova_hpc_tools.adopt.layout_cures` alone writes them.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import attrs

from nova_hpc_tools.adopt import settings


class CuredService(enum.Enum):
    """The services that cures restart, as a person calls them."""

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
    """The commands that cures name, and that a layout says otherwise."""

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
    """Services that are restarted, with new settings or as they are."""

    services: tuple[CuredService, ...]
    #: Where; None: on the machine that was looked at.
    hosts: tuple[str, ...] | None = None
    #: Their settings have changed, so a deployment tool has to bring them first.
    reads_settings: bool = True
    #: What a plain host's administrator is told instead of the names.
    called: str = ""


@attrs.frozen
class CommandRun:
    """A command."""

    command: CuredCommand
    #: Options behind it.
    words: str = ""
    #: What a plain host's administrator is told instead.
    called: str = ""


@attrs.frozen
class CuredOption:
    """An option, with the value that it should have, or an example of one."""

    section: str
    name: str
    value: str | None = None
    example: str | None = None

    @property
    def title(self) -> str:
        """The option alone."""
        return f"[{self.section}]{self.name}"

    @property
    def text(self) -> str:
        """The option with its value."""
        if self.example is not None:
            return f"{self.title} like {self.example}"
        return self.title if self.value is None else f"{self.title} = {self.value}"


@attrs.frozen
class OptionPlace:
    """Options, and the file that has them: a layout has one of its own."""

    options: tuple[CuredOption, ...]
    #: Who reads it.
    services: tuple[CuredService, ...] = (CuredService.COMPUTE,)
    #: The compute node; None: the one that was looked at.
    host: str | None = None
    #: What a plain host's administrator is told instead.
    called: str = ""


@attrs.frozen
class DeclarationFile:
    """The declaration of the node that was looked at."""


class AliasSource(enum.Enum):
    """The way of an alias from nodes that have it to those that lack it."""

    #: All nodes get those of one.
    ONE_NODE = enum.auto()
    #: Some nodes get one line of others.
    OTHER_NODES = enum.auto()
    #: Controllers get the line of a node that offers the devices.
    OFFERING_NODE = enum.auto()


@attrs.frozen
class AliasCopy:
    """Aliases that are brought to where they are lacking."""

    source: AliasSource
    #: The nodes that have the line, where they are known; for people.
    nodes: str = ""
    #: Of a check in general, not of what was seen.
    general: bool = False


CurePart: TypeAlias = (
    "str | ServiceRestart | CommandRun | OptionPlace | DeclarationFile | AliasCopy"
)


@attrs.frozen
class DoctorCure:
    """Words, and between them the data of which each layout makes its own words."""

    parts: tuple[CurePart, ...]

    @classmethod
    def of(cls, *parts: CurePart | DoctorCure) -> DoctorCure:
        """One of all *parts*, those of other cures among them."""
        flat: list[CurePart] = []
        for part in parts:
            flat += part.parts if isinstance(part, DoctorCure) else (part,)
        return cls(tuple(flat))


def read_cure(words: str | DoctorCure) -> DoctorCure:
    """A cure; words alone are the same in each layout."""
    return words if isinstance(words, DoctorCure) else DoctorCure((words,))


def place_option(
    section: str,
    name: str,
    value: str | None = None,
    *services: CuredService,
    called: str = "",
    host: str | None = None,
) -> OptionPlace:
    """One option where *services* read it; none are named: nova-compute."""
    readers = services or (CuredService.COMPUTE,)
    return OptionPlace((CuredOption(section, name, value),), readers, host, called)


#: nova-compute of the node that was looked at, with new settings and as it is.
RESTART_COMPUTE: Final = ServiceRestart((CuredService.COMPUTE,))
RESTART_ALONE: Final = ServiceRestart((CuredService.COMPUTE,), reads_settings=False)
RESTART_SCHEDULER: Final = ServiceRestart((CuredService.SCHEDULER,))
RESTART_PLACEMENT: Final = ServiceRestart((CuredService.PLACEMENT,))
#: What brings a node's decisions to its services.
WRITE: Final = CommandRun(CuredCommand.CONFIGURE_NODE)
WRITE_CONTROLLER: Final = CommandRun(CuredCommand.CONFIGURE_CONTROLLER)
WRITE_PLACEMENT: Final = CommandRun(CuredCommand.CONFIGURE_PLACEMENT)
PREPARE: Final = CommandRun(CuredCommand.PREPARE, "--write /")
DECLARATION: Final = DeclarationFile()
#: An entry of others that hides ours: the command finds its line, and what to declare first.
ENTRY_REMOVAL: Final = DoctorCure.of(
    "Run ",
    CommandRun(CuredCommand.CONFIGURE_NODE, "--dry-run"),
    ": it names the line, and how to remove it.",
)
