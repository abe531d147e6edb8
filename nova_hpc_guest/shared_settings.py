# SPDX-License-Identifier: Apache-2.0
"""The variables that make an unmodified MPI over UCX use the shared memory.

UCX assumes that only processes of one kernel share memory. The library ``nova-hpc-shm`` makes UCX
use it between servers; these settings exclude transports that would then fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

PRELOAD: Final = "LD_PRELOAD"
#: From this version on, large messages use the shared memory by default.
SENDS_LARGE: Final = (1, 22)
#: MiB of its part that each process takes at most, with UCX's own sizes: an Open MPI rank with a
#: window 8.2, all others about 4.2 (tests/shm/test_mpi.py). And sizes with which they need less.
RANK_MIB: Final = 9
DIRECTORY_MIB: Final = 1
SMALL_RANKS: Final = ("UCX_POSIX_SEG_SIZE=4k", "UCX_POSIX_RX_BUFS_GROW=64")


class NetworkDevices(NamedTuple):
    """The devices of this machine that UCX can use beside the shared memory."""

    #: Names of network interfaces without ``lo``.
    interfaces: tuple[str, ...] = ()
    #: Ports of RDMA devices, as ``mlx5_0:1``.
    rdma_ports: tuple[str, ...] = ()
    #: Drivers that copy between processes of one kernel: ``xpmem``, ``knem``.
    copiers: tuple[str, ...] = ()


def build_shared_settings(
    library: str, folder: str, ucx: tuple[int, int] | None, devices: NetworkDevices
) -> tuple[tuple[str, str], ...]:
    """Build names and values of the variables that make MPI over UCX use the shared memory.

    :param library: path of ``libnova-hpc-shm.so``.
    :param folder: directory of the files that UCX opens.
    :param ucx: major and minor version of the machine's UCX; None if unknown, which gives the
        settings that are right for all versions.
    """
    settings = [
        (PRELOAD, library),
        ("UCX_POSIX_DIR", folder),
        # /proc/PID/fd of another server's process does not exist here, or is another process's.
        ("UCX_POSIX_USE_PROC_LINK", "n"),
        # Otherwise a first message in one direction waits for an idle transport, for ever.
        ("UCX_ADAPTIVE_PROGRESS", "n"),
        # These look up a process of another kernel in this kernel.
        ("UCX_TLS", "^" + ",".join(("cma", "sysv", *devices.copiers))),
        # At its end MPICH flushes each transport. TCP's put waits for an answer of the peer. The
        # peer already waits for its launcher, because the shared memory was done before.
        ("UCX_TCP_PUT_ENABLE", "n"),
    ]
    reachable = (*devices.interfaces, *devices.rdma_ports)
    if reachable:
        # Once two servers look like one machine, UCX would connect them over lo.
        settings.append(("UCX_NET_DEVICES", ",".join(reachable)))
    if not devices.rdma_ports and (ucx is None or ucx < SENDS_LARGE):
        # Before, messages from 16 KiB on take the network. An RDMA device takes them well.
        settings.append(("UCX_RNDV_THRESH", "inf"))
    names = ",".join(name for name, _ in settings)
    return (
        *settings,
        ("OMPI_MCA_pml", "ucx"),
        ("OMPI_MCA_osc", "ucx"),
        ("OMPI_MCA_pml_ucx_tls", "any"),
        ("OMPI_MCA_pml_ucx_devices", "any"),
        # Open MPI passes its own variables to other servers, and the listed ones.
        ("OMPI_MCA_mca_base_env_list", names),
        ("OMPI_MCA_mca_base_env_list_delimiter", ","),
    )


def describe_small_part(part_bytes: int, cpus: int) -> str | None:
    """Return advice for a part with too little room for a process on each CPU; None if it has room.

    :param part_bytes: size of the part.
    :param cpus: of this machine.
    """
    room = max((part_bytes >> 20) - DIRECTORY_MIB, 0) // RANK_MIB
    if room >= cpus:
        return None
    return (
        f"The part of {part_bytes >> 20} MiB has room for {room} of {cpus} MPI processes: each "
        f"takes up to {RANK_MIB} MiB. {' and '.join(SMALL_RANKS)} let each do with 1.2."
    )


def format_version(ucx: tuple[int, int]) -> str:
    """Format a version of UCX in its usual form, such as ``1.17``."""
    return f"{ucx[0]}.{ucx[1]}"


def format_environment(
    settings: Sequence[tuple[str, str]], ucx: tuple[int, int] | None, hint: str | None = None
) -> str:
    """Format a file for shells, systemd and Docker: no value needs quotes, which Docker would keep.

    :param hint: one line for its reader.
    """
    lines = [
        "# Written by nova-hpc-guest install --shared-memory.",
        "# For any UCX." if ucx is None else f"# For UCX {format_version(ucx)}.",
        *([] if hint is None else [f"# {hint}"]),
    ]
    return "\n".join((*lines, *(f"{name}={value}" for name, value in settings), ""))


def format_shell_environment(settings: Sequence[tuple[str, str]]) -> str:
    """Format a file for shells to read: the user's own libraries stay, behind this project's.

    The library has to come first: another one with an ``mmap()`` would take UCX's calls.
    """
    lines = ["# Written by nova-hpc-guest install --shared-memory, for shells."]
    for name, value in settings:
        kept = f"${{{name}:+:${name}}}" if name == PRELOAD else ""
        lines.append(f'export {name}="{value}{kept}"')
    return "\n".join((*lines, ""))
