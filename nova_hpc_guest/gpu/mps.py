# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS, which enforces the limits of memory that engines have.

Its directory of pipes is outside ``/tmp``, because each slot has a ``/tmp`` of its own. Only the
user of the engines can enter it. Slots with a limit need the unit of MPS, so they end with it. MPS
limits each process of a slot by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..files import Root
from .engines import Engine

UNIT: Final = "nova-hpc-gpu-mps.service"
PROGRAM: Final = "/usr/bin/nvidia-cuda-mps-control"
#: Below /run; systemd makes it for the unit, and only the unit's user can enter it.
_NAME: Final = "nova-hpc-gpu-mps"
PIPES: Final = f"/run/{_NAME}"
#: The variables of slots and of the unit.
ENVIRONMENT: Final[Mapping[str, str]] = {"CUDA_MPS_PIPE_DIRECTORY": PIPES}
_PREFIX: Final = "CUDA_MPS_"


def needs_mps(engine: Engine) -> bool:
    """Whether MPS enforces the engine's limits of memory."""
    return any(variable.startswith(_PREFIX) for variable in engine.memory_environment)


def explain_no_limit(root: Root, engine: Engine) -> str | None:
    """Explain why no slot can have a limit of memory here; None if each can."""
    if not engine.memory_environment:
        return f"the engine {engine.name} has no [memory environment], so it limits no memory"
    if needs_mps(engine) and not root.exists(PROGRAM):
        return f"a limit of memory needs NVIDIA's MPS, and {PROGRAM} is missing in this image"
    return None


def format_mps_unit(engine: Engine) -> str:
    """Format the systemd unit of NVIDIA's MPS, which runs as the user of the engines."""
    lines = [
        "# Written by nova-hpc-guest gpu serve.",
        "[Unit]",
        "Description=NVIDIA MPS, which limits the memory of slots on this shared GPU",
        "[Service]",
        "Type=exec",
        f"User={engine.user}",
        f"RuntimeDirectory={_NAME}",
        "RuntimeDirectoryMode=0700",
        f"Environment=CUDA_MPS_PIPE_DIRECTORY={PIPES}",
        f"Environment=CUDA_MPS_LOG_DIRECTORY={PIPES}",
        f"ExecStart={PROGRAM} -f",
        "KillMode=control-group",
        "IPAddressDeny=any",
        "PrivateTmp=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "DevicePolicy=closed",
        *(f"DeviceAllow={device} rw" for device in engine.devices),
    ]
    return "".join(f"{line}\n" for line in lines)
