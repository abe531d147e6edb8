"""Where the lab keeps its files: below the XDG base directories."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.errors import LabError

# A unix socket's path has at most 107 bytes; the longest one that the lab has
# below its state directory is about 20.
_LONGEST_STATE: Final = 84


@attrs.frozen
class Paths:
    """The folders of one lab.

    Two labs with other state directories (and other ports) do not touch each
    other; the cache may be shared by all of them.
    """

    #: Everything that belongs to this lab; mode 0700.
    state: Path
    #: Images and downloads that any lab can use again.
    cache: Path
    #: The Python environment that holds the OpenStack services.
    venv: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Paths:
        """The folders as the XDG base directory specification places them.

        :raises LabError: a variable holds a relative path, or the state
            directory is so deep that unix sockets cannot be made below it.
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
        """Configuration of the services, written anew at each start."""
        return self.state / "etc"

    @property
    def logs(self) -> Path:
        """One log file a process."""
        return self.state / "log"

    @property
    def run(self) -> Path:
        """Pid files and sockets."""
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
        """Held by the one command that changes the lab."""
        return self.state / "lock"

    def make(self) -> None:
        """Create the folders; those with secrets are for the owner only."""
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
