# SPDX-License-Identifier: Apache-2.0
"""NVIDIA Fabric Manager in its shared NVSwitch mode (``FABRIC_MODE=1``).

:mod:`nova_hpc.tenancy.nvlink.fabric_manager_call` calls the library, in a separate process
for each call. The contract is described in NVIDIA's "Fabric Manager User
Guide"; it is recorded here and in the tests, and was not tested with the real
product.
"""

from __future__ import annotations

import ipaddress
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.nvlink import fabric_manager_call
from nova_hpc.tenancy.nvlink.backend import (
    BackendError,
    NotSharedError,
    NvlinkBackend,
    NvlinkSettings,
    Run,
    WaitsError,
)
from nova_hpc.tenancy.nvlink.partitions import NvlinkFabricError, NvlinkPartition
from nova_hpc.topology.model import AddressError, normalise_address

_CALL: Final = str(Path(fabric_manager_call.__file__))

#: ``fmReturn_t``.
_CODES: Final[Mapping[int, str]] = {
    -1: "bad parameter",
    -2: "unspecified error; see its log",
    -3: "not supported",
    -4: "not initialised",
    -5: "timeout",
    -6: "version mismatch: the library and this project, or the manager, do not fit",
    -7: "the partition is active already, or another active one has its GPUs",
    -8: "not configured yet",
    -9: "it cannot be reached",
    -10: "NVLink error",
    -22: "not ready",
}
_NOT_SUPPORTED: Final = -3
_UNINITIALIZED: Final = -4
_WAITING: Final = (-8, -22)

#: ``host:port`` or ``host``; the library takes IPv4 only.
_INET: Final = re.compile(r"([0-9.]+)(?::([0-9]{1,5}))?", re.ASCII)
_LONGEST: Final = 255

#: Seconds that the process itself needs to start and to end.
_MARGIN: Final = 2.0


class FabricManager(NvlinkBackend):
    """Backend for NVIDIA Fabric Manager in its shared NVSwitch mode."""

    def __init__(self, settings: NvlinkSettings, run: Run) -> None:
        """See :class:`~nova_hpc.tenancy.nvlink.backend.NvlinkBackend`.

        :raises BackendError: the settings cannot be used.
        """
        super().__init__(settings, run)
        if not _is_local(settings.address) and not settings.gpus:
            raise BackendError(
                f"[hpc]nvlink_address is {settings.address!r}: a Fabric Manager in a machine of "
                "its own does not know the PCI addresses of this node; name them in "
                "[hpc]nvlink_gpus"
            )

    def partitions(self) -> tuple[NvlinkPartition, ...]:
        """List the partitions of the NVLink fabric, see :meth:`NvlinkBackend.partitions`."""
        partitions = [self._partition(row) for row in self._call("list")]
        return tuple(sorted(partitions, key=lambda partition: partition.id))

    def activate(self, partition: int) -> None:
        """Activate one partition; see :meth:`NvlinkBackend.activate`."""
        self._call("activate", [partition])

    def deactivate(self, partition: int) -> None:
        """Deactivate one partition; see :meth:`NvlinkBackend.deactivate`."""
        # With this code the library reports that the partition is not active.
        self._call("deactivate", [partition], fine=("fmDeactivateFabricPartition", _UNINITIALIZED))

    def set_active(self, partitions: Sequence[int]) -> None:
        """Send a restarted manager the servers' partitions."""
        self._call("set", sorted(partitions))

    def _call(
        self, what: str, ids: Sequence[int] = (), fine: tuple[str, int] | None = None
    ) -> list[Mapping[str, Any]]:
        """Run one call of the library in a process of its own.

        :param fine: a function and its error code that count as success.
        :returns: the rows of the table; [] for all calls but ``list``.
        :raises NvlinkFabricError: the call failed; the text names the function and the code.
        """
        order = {
            "library": self.settings.library,
            "address": self.settings.address,
            "timeout_ms": int(self.settings.timeout * 1000),
            "do": what,
            "ids": list(ids),
        }
        argv = [sys.executable, "-I", "-S", _CALL, json.dumps(order)]
        status, output = self.run(argv, self.settings.timeout + _MARGIN)
        answer = _parse_call_answer(output)
        if answer is None:
            tail = " ".join(output.split())[-200:]
            raise NvlinkFabricError(f"Fabric Manager's library ended with status {status}: {tail}")
        if "problem" in answer:
            raise NvlinkFabricError(
                f"Fabric Manager's library {self.settings.library} cannot be used: "
                f"{answer['problem']}; install nvidia-fabricmanager-devel of the manager's version"
            )
        if "code" not in answer:
            partitions: list[Mapping[str, Any]] = answer["partitions"]
            return partitions
        function, code = answer["function"], answer["code"]
        if (function, code) == fine:
            return []
        raise self._error(function, code, ids)

    def _error(self, function: str, code: int, ids: Sequence[int]) -> NvlinkFabricError:
        which = f"({', '.join(map(str, ids))})" if ids else ""
        text = (
            f"Fabric Manager at {self.settings.address}: {function}{which} failed: "
            f"{_CODES.get(code, 'unknown error')} ({code})"
        )
        if code == _NOT_SUPPORTED and function == "fmGetSupportedFabricPartitions":
            return NotSharedError(
                f"{text}; it is not in the shared NVSwitch mode: set FABRIC_MODE=1 in its "
                "fabricmanager.cfg and restart it"
            )
        return WaitsError(text) if code in _WAITING else NvlinkFabricError(text)

    def _partition(self, row: Mapping[str, Any]) -> NvlinkPartition:
        addresses = [self._address_of(gpu) for gpu in row["gpus"]]
        gpus = frozenset(addresses)
        if len(gpus) != len(addresses):
            raise NvlinkFabricError(f"NVLink partition {row['id']} has one GPU twice")
        return NvlinkPartition(
            id=row["id"],
            gpus=gpus,
            active=row["active"],
            links=min((gpu["links"] for gpu in row["gpus"]), default=0),
        )

    def _address_of(self, gpu: Mapping[str, Any]) -> str:
        number, bus = gpu["physical_id"], gpu["bus_id"]
        if self.settings.gpus:
            # The operator's list wins: a manager in a service VM reports the addresses
            # of that machine.
            if number not in self.settings.gpus:
                raise NvlinkFabricError(
                    f"Fabric Manager knows a GPU with the physical id {number}, which "
                    "[hpc]nvlink_gpus does not name"
                )
            return self.settings.gpus[number]
        try:
            address = normalise_address(bus)
        except AddressError:
            address = _NOWHERE
        if address == _NOWHERE:
            raise NvlinkFabricError(
                f"Fabric Manager does not say the PCI address of the GPU with the physical id "
                f"{number}; name all of them in [hpc]nvlink_gpus"
            )
        return address


#: Address that a manager reports for a GPU that it does not see.
_NOWHERE: Final = "0000:00:00.0"


def _parse_call_answer(output: str) -> dict[str, Any] | None:
    for line in reversed(output.splitlines()):
        if line.startswith(fabric_manager_call.MARK):
            try:
                answer = json.loads(line.removeprefix(fabric_manager_call.MARK))
            except ValueError:
                return None
            return answer if isinstance(answer, dict) else None
    return None


def _is_local(address: str) -> bool:
    """Whether the manager runs in this machine.

    :raises BackendError: *address* is not an address.
    """
    if len(address) <= _LONGEST:
        if address.startswith("/"):
            return True
        match = _INET.fullmatch(address)
        if match is not None and int(match[2] or 1) in range(1, 1 << 16):
            try:
                return ipaddress.IPv4Address(match[1]).is_loopback
            except ValueError:
                pass
    raise BackendError(
        f"[hpc]nvlink_address is {address[:60]!r}, not an IPv4 address with a port like "
        "127.0.0.1:6666, nor the path of a Unix socket"
    )
