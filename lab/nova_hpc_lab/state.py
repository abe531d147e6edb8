# SPDX-License-Identifier: Apache-2.0
"""A lab's state between commands: folders, settings, the lock.

Folders are below the XDG base directories. Files are written so that a crash leaves no partial one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import atomic_files
from nova_hpc_lab.errors import LabError

# A unix socket's path has at most 107 bytes; the longest one of the lab below its state directory
# has about 20.
_LONGEST_STATE: Final = 84

VERSION: Final = 1
DEFAULT_BASE_PORT: Final = 18700
#: Name of a port -> its offset from the lab's base port.
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
_CURE: Final = "remove this lab with: nova-hpc lab down --purge"


@attrs.frozen
class Paths:
    """The folders of one lab.

    Two labs with different state directories and different ports do not affect each other; all of
    them may share the cache.
    """

    #: The folder of all files of this lab; mode 0700.
    state: Path
    #: Images and downloads that all labs can use again.
    cache: Path
    #: The Python environment with the OpenStack services.
    venv: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Paths:
        """Return the folders according to the XDG base directory specification.

        :raises LabError: a variable contains a relative path, or the path of the state directory is
            too long for unix sockets below it.
        """
        environ = os.environ if environ is None else environ
        state = _base(environ, "XDG_STATE_HOME", ".local/state") / "nova-hpc" / "lab"
        cache = _base(environ, "XDG_CACHE_HOME", ".cache") / "nova-hpc"
        if len(os.fsencode(state)) > _LONGEST_STATE:
            raise LabError(
                f"the state directory {state} is too deep for unix sockets (more than"
                f" {_LONGEST_STATE} bytes); set XDG_STATE_HOME to a shorter path"
            )
        return cls(state=state, cache=cache, venv=Path(sys.prefix))

    @property
    def config(self) -> Path:
        """Configuration of the services, written at each start."""
        return self.state / "etc"

    @property
    def logs(self) -> Path:
        """One log file for each process."""
        return self.state / "log"

    @property
    def run(self) -> Path:
        """Folder of the lab's pid files and sockets."""
        return self.state / "run"

    @property
    def data(self) -> Path:
        """Databases, message queues, images of Glance, keys."""
        return self.state / "data"

    @property
    def settings(self) -> Path:
        """Ports, passwords and number of nodes of this lab; mode 0600."""
        return self.state / "settings.json"

    @property
    def lock(self) -> Path:
        """The lock file of the only command that may change the lab."""
        return self.state / "lock"

    def make(self) -> None:
        """Create the folders; only the owner can read those with secrets."""
        try:
            for folder in (self.state, self.config, self.logs, self.run, self.data):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.state.chmod(0o700)
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise LabError(
                f"cannot create {err.filename}: {err.strerror}; set XDG_STATE_HOME and"
                " XDG_CACHE_HOME to places that you can write to"
            ) from err


def _base(environ: Mapping[str, str], name: str, default: str) -> Path:
    value = environ.get(name)
    if not value:
        home = environ.get("HOME")
        return (Path(home) if home else Path.home()) / default
    path = Path(value)
    if not path.is_absolute():
        raise LabError(f"{name} is {value!r}, which is not an absolute path")
    return path


@attrs.frozen
class Ports:
    """The loopback ports of one lab, counted from its base port."""

    base: int

    def __getitem__(self, name: str) -> int:
        return self.base + _OFFSETS[name]

    def items(self) -> Iterator[tuple[str, int]]:
        """Return name and number of each port."""
        return ((name, self.base + offset) for name, offset in _OFFSETS.items())


@attrs.frozen
class Settings:
    """The options of a lab, and its secret passwords."""

    base_port: int
    nodes: int
    #: A sample's name, or the path of a YAML file.
    shape: str
    passwords: Mapping[str, str] = attrs.field(repr=False)
    #: Whether the adapters that are kept for ports represent ports of a simulated InfiniBand
    #: fabric, whose partitions are Neutron's networks.
    fabric: bool = False

    @property
    def ports(self) -> Ports:
        """Ports of all services of the lab."""
        return Ports(self.base_port)

    @classmethod
    def fresh(cls, base_port: int, nodes: int, shape: str, fabric: bool = False) -> Settings:
        """Return the settings of a new lab, with new random passwords; they are not stored yet."""
        passwords = {name: secrets.token_hex(20) for name in _SECRETS}
        return cls(base_port, nodes, shape, passwords, fabric)

    def save(self, paths: Paths) -> None:
        """Write the settings to a file that only the owner can read."""
        document = {"version": VERSION, **attrs.asdict(self)}
        write(paths.settings, json.dumps(document, indent=1), mode=0o600)

    @classmethod
    def load(cls, paths: Paths) -> Settings | None:
        """Load the settings of the lab in *paths*; None if there is no lab.

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


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace the file *path* in one step: a reader sees the old or the new content.

    The new file has *mode* before it contains any data. A file that already has this content and
    mode is not touched.
    """
    with contextlib.suppress(OSError):
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_files.write_file(path, text.encode(), mode)


@contextlib.contextmanager
def locked(paths: Paths) -> Iterator[None]:
    """Hold the lab's lock, so that two commands never change the lab at the same time.

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
