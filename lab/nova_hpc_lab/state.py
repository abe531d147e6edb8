"""What a lab remembers between commands, written so that a crash leaves no half file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.paths import Paths

VERSION: Final = 1
DEFAULT_BASE_PORT: Final = 18700

#: Offsets from the lab's base port, and what listens there.
_OFFSETS: Final = {
    "identity": 0,
    "placement": 1,
    "image": 2,
    "compute": 3,
    "network": 4,
    "database": 5,
    "messages": 6,
    "distribution": 7,
    "epmd": 8,
}

_SECRETS: Final = ("admin", "service", "database", "messages", "cookie")


@attrs.frozen
class Ports:
    """The loopback ports of one lab, counted from its base port."""

    base: int

    def __getitem__(self, name: str) -> int:
        return self.base + _OFFSETS[name]

    def items(self) -> Iterator[tuple[str, int]]:
        """Name and number of each port."""
        return ((name, self.base + offset) for name, offset in _OFFSETS.items())


@attrs.frozen
class Settings:
    """The lab as it was asked for, and its secrets."""

    base_port: int
    nodes: int
    #: A sample's name, or the path of a YAML file.
    shape: str
    passwords: Mapping[str, str] = attrs.field(repr=False)

    @property
    def ports(self) -> Ports:
        """The ports of all services."""
        return Ports(self.base_port)

    @classmethod
    def fresh(cls, base_port: int, nodes: int, shape: str) -> Settings:
        """Settings of a new lab, with passwords that were never used before."""
        passwords = {name: secrets.token_hex(20) for name in _SECRETS}
        return cls(base_port=base_port, nodes=nodes, shape=shape, passwords=passwords)

    def save(self, paths: Paths) -> None:
        """Write the settings, readable for the owner only."""
        document = {"version": VERSION, **attrs.asdict(self)}
        write(paths.settings, json.dumps(document, indent=1), mode=0o600)

    @classmethod
    def load(cls, paths: Paths) -> Settings | None:
        """The settings of the lab in *paths*; None where there is no lab.

        :raises LabError: the file is damaged or comes from another release.
        """
        try:
            document = json.loads(paths.settings.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as err:
            raise LabError(f"{paths.settings} cannot be read ({err}); {_CURE}") from err
        try:
            if document.pop("version") != VERSION:
                raise LabError(f"{paths.settings} was written by another release; {_CURE}")
            settings = cls(**document)
            missing = set(_SECRETS) - set(settings.passwords)
        except (AttributeError, KeyError, TypeError) as err:
            raise LabError(f"{paths.settings} is damaged ({err}); {_CURE}") from err
        if missing:
            raise LabError(f"{paths.settings} lacks the password of {min(missing)}; {_CURE}")
        return settings


_CURE: Final = "remove this lab with: nova-hpc lab down --purge"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace *path* by *text* in one step: a reader sees the old or the new file.

    The new file has *mode* before it holds anything. A file that already has
    this content is left alone.
    """
    with contextlib.suppress(OSError):
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    beside = Path(name)
    try:
        with os.fdopen(handle, "w") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(paths: Paths) -> Iterator[None]:
    """Hold the lab's lock, so that two commands never change it at once.

    :raises LabError: another command holds it.
    """
    paths.make()
    with paths.lock.open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise LabError(
                f"another command (process {holder}) is changing the lab in {paths.state};"
                " wait for it, or end it"
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
