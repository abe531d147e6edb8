# SPDX-License-Identifier: Apache-2.0
"""Reads ports and P_Key tables of a fabric, by a process of its own.

That process is :mod:`nova_hpc.fabric.partitions.port_reader_call`. If it dies or does not answer in
time, the next call starts another one, and the caller gets an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import attrs

from nova_hpc.fabric.partitions import port_reader_call
from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.fabric.partitions.port_tables import EndPort, FabricPorts, PortTables

#: Seconds for a request; the process returns the ports left after that as unread.
_SECONDS: Final = 20.0
#: Further seconds for the process itself.
_MARGIN: Final = 10.0
_PATIENCE: Final = 2.0
_CALL: Final = str(Path(port_reader_call.__file__))
#: Path of ibsim's library in the library folders of distributions.
_SIMULATOR: Final = "umad2sim/libumad2sim.so"
_LIBRARY_FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


class PortReaderError(SubnetManagerError):
    """The ports of the fabric cannot be read. The text gives the reason."""


def find_simulator_library() -> Path | None:
    """Find the path of ibsim's library, which simulates a fabric for a program; else None."""
    for folder in map(Path, _LIBRARY_FOLDERS):
        for path in (folder / _SIMULATOR, *sorted(folder.glob(f"*-linux-gnu/{_SIMULATOR}"))):
            if path.is_file():
                return path
    return None


def simulated_environment(host: str) -> dict[str, str]:
    """Return the environment variables for a program that runs as *host* of the simulated fabric.

    :raises PortReaderError: ibsim is not installed.
    """
    library = find_simulator_library()
    if library is None:
        raise PortReaderError(
            "[hpc_fabric_agent]simulated_host is set, and ibsim's libumad2sim.so is not "
            "installed: install ibsim (ibsim-utils), or unset the option"
        )
    return {**os.environ, "LD_PRELOAD": str(library), "SIM_HOST": host}


def find_local_port(guid: int, folder: Path = Path("/sys/class/infiniband")) -> tuple[str, int]:
    """Find the port with *guid* on this host; return its RDMA device and its port number.

    :raises PortReaderError: this host has none.
    """
    for gid in sorted(folder.glob("*/ports/*/gids/0")):
        with contextlib.suppress(OSError, ValueError):
            if int(gid.read_text().replace(":", "")[16:], 16) == guid:
                return gid.parents[3].name, int(gid.parents[1].name)
    raise PortReaderError(
        f"no local port has the GUID {guid:#018x}, which opensm's option guid names"
    )


@attrs.frozen
class ReaderSettings:
    """The local port, and the keys, with which the fabric is read.

    :ivar guid: of the local port, as opensm's option ``guid``; 0 for the first that is up.
    :ivar m_key: the key for protected ports, which do not answer without it.
    :ivar simulated_host: see ``[hpc_fabric_agent]simulated_host``.
    """

    guid: int = 0
    m_key: int = attrs.field(default=0, repr=False)
    simulated_host: str | None = None


class PortReader:
    """Reads the ports of a fabric and their P_Key tables, in a process of its own.

    :ivar tables_read: number of tables requested, for measurements.
    """

    def __init__(self, settings: ReaderSettings) -> None:
        self.settings = settings
        self.tables_read = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self._errors: IO[bytes] | None = None

    def use_settings(self, settings: ReaderSettings) -> None:
        """Use *settings* from now on. If they differ, the reading process is ended."""
        if settings != self.settings:
            self.close()
            self.settings = settings

    def read_ports(self) -> FabricPorts:
        """Walk over the fabric and find all its ports.

        :raises PortReaderError: they cannot be read whole.
        """
        answer = self._ask({"do": "walk"})
        if not answer["whole"]:
            raise PortReaderError(
                f"the fabric could not be read whole in {_SECONDS:.0f} seconds; "
                f"{answer['silent']} ports are up and do not answer (with M_Keys: is m_key in "
                "opensm's options the one that is in force?)"
            )
        ports: dict[int, EndPort] = {}
        places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for guid, kind, lid, number, switch, switch_port, path in answer["ports"]:
            facing = None if switch is None else (switch, switch_port)
            places[guid].append(facing or (lid, number))
            ports[guid] = EndPort(guid, kind, lid, number, facing, tuple(path))
        masters = [port.guid for port in ports.values() if port.lid == answer["manager_lid"] != 0]
        return FabricPorts(
            ports,
            masters[0] if len(masters) == 1 else None,
            {guid: tuple(several) for guid, several in places.items() if len(several) > 1},
            answer["silent"],
            frozenset((lid, port) for lid, port in answer["silent_places"]),
            dict(answer["managers"]),
        )

    def read_tables(
        self, ports: Sequence[EndPort], silent: frozenset[int] = frozenset()
    ) -> Mapping[int, PortTables]:
        """Read the tables of ports, and of the switch ports facing them.

        :param silent: GUIDs of ports for which only the switch port's table is read, because they
            would not answer before the timeout.
        :raises PortReaderError: the process does not answer; a port that does not answer has
            tables of None.
        """
        if not ports:
            return {}
        answer = self._ask(
            {
                "do": "tables",
                "ports": [
                    [
                        *(port.guid, port.kind, port.lid, port.number),
                        *(port.facing or (None, None)),
                        port.path,
                        port.guid not in silent,
                    ]
                    for port in ports
                ],
            }
        )
        self.tables_read += sum(2 if port.facing else 1 for port in ports)
        return {
            port.guid: PortTables(_freeze(own), _freeze(facing), coming_up)
            for port, (own, facing, coming_up) in zip(ports, answer["tables"], strict=True)
        }

    def close(self) -> None:
        """End the reading process; idempotent. Its input ends first: ibsim loses a slot
        otherwise.
        """
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
            for end in (lambda: None, process.terminate, process.kill):
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE)
                    break
            if process.stdout is not None:
                process.stdout.close()
        self._stack.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the process.

        :raises PortReaderError: it does not answer, or reports why it cannot read.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()
        process = self._process or self._start()
        device, port = None, 0
        if self.settings.guid and self.settings.simulated_host is None:
            device, port = find_local_port(self.settings.guid)
        line = {
            **request,
            "seconds": _SECONDS,
            "device": device,
            "port": port,
            "m_key": self.settings.m_key,
        }
        end = time.monotonic() + _SECONDS + _MARGIN
        try:
            _send_line(process, json.dumps(line).encode() + b"\n", end)
            answer = json.loads(_read_line(process, end))
        except (OSError, ValueError) as error:
            said = self._said()
            self.close()
            raise PortReaderError(f"the reader of the fabric failed: {error}{said}") from error
        if "error" in answer:
            said = self._said()
            self.close()
            raise PortReaderError(f"the fabric cannot be read: {answer['error']}{said}")
        return dict(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        host = self.settings.simulated_host
        environment = dict(os.environ) if host is None else simulated_environment(host)
        # The simulator's library leaves folders in its working directory.
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="nova-hpc-reader-"))
        errors = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._errors = self._stack.enter_context(errors)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", _CALL],
                env=environment,
                cwd=folder,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._stack.close()
            raise PortReaderError(f"the reader of the fabric cannot be started: {error}") from error
        return self._process

    def _said(self) -> str:
        """Return the last 300 characters of the process's standard error, in (); "" if empty."""
        if self._errors is None or self._errors.closed:
            return ""
        with contextlib.suppress(OSError):
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-300:]
            return f" ({said})" if said else ""
        return ""


def _freeze(keys: Sequence[int] | None) -> frozenset[int] | None:
    return None if keys is None else frozenset(keys)


def _send_line(process: subprocess.Popen[bytes], line: bytes, end: float) -> None:
    """Send a line; a process that hangs stops reading, and the pipe fills up.

    :raises OSError: it was not taken in time, or the process has ended.
    """
    assert process.stdin is not None
    handle = process.stdin.fileno()
    os.set_blocking(handle, False)
    rest = memoryview(line)
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_WRITE)
        while rest:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise OSError(f"it takes no question in {_SECONDS + _MARGIN:.0f} seconds")
            rest = rest[os.write(handle, rest) :]


def _read_line(process: subprocess.Popen[bytes], end: float) -> bytes:
    """Read an answer.

    :raises OSError: there is none in time, or the process has ended.
    """
    assert process.stdout is not None
    parts = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not parts.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                raise OSError(f"no answer in {_SECONDS + _MARGIN:.0f} seconds")
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part:
                raise OSError(f"the process ended with {process.wait(_PATIENCE)}")
            parts += part
    return parts
