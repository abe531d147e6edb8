# SPDX-License-Identifier: Apache-2.0
"""One call of NVIDIA Fabric Manager's library, in a process of its own.

A library that waits for a hanging manager cannot be interrupted. So the
service never loads it: it runs this file, which needs only the standard
library, and ends it when its time is up.

Layouts and codes come from NVIDIA's "Fabric Manager User Guide", chapter
"Fabric Manager SDK", and from the headers that its package installs. They are recorded,
and not tested with the real product.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from typing import Any, ClassVar

MARK = "nova-hpc-nvlink "

SUCCESS = 0
VERSION_MISMATCH = -6

_MOST_PARTITIONS = 64
_MOST_GPUS = 16
_ADDRESS = 256
_INET, _UNIX = 1, 2


class ConnectV1(ctypes.Structure):
    """The C structure ``fmConnectParams_v1``: up to Fabric Manager of driver branch 5xx."""

    _fields_: ClassVar[list[Any]] = [
        ("version", ctypes.c_uint),
        ("address", ctypes.c_char * _ADDRESS),
        ("timeout_ms", ctypes.c_uint),
        ("is_unix", ctypes.c_uint),
    ]


class ConnectV2(ctypes.Structure):
    """The C structure ``fmConnectParams_v2`` of newer branches, which ignore ``is_unix``."""

    _fields_: ClassVar[list[Any]] = [*ConnectV1._fields_, ("kind", ctypes.c_int)]


class PartitionGpuStruct(ctypes.Structure):
    """The C structure ``fmFabricPartitionGpuInfo_t``: one GPU of a partition."""

    _fields_: ClassVar[list[Any]] = [
        ("physical_id", ctypes.c_uint),
        ("uuid", ctypes.c_char * 80),
        ("bus_id", ctypes.c_char * 32),
        ("links_available", ctypes.c_uint),
        ("most_links", ctypes.c_uint),
        ("line_rate", ctypes.c_uint),
    ]


class PartitionStruct(ctypes.Structure):
    """The C structure ``fmFabricPartitionInfo_t``: one partition with its GPUs."""

    _fields_: ClassVar[list[Any]] = [
        ("id", ctypes.c_uint),
        ("is_active", ctypes.c_uint),
        ("number", ctypes.c_uint),
        ("gpus", PartitionGpuStruct * _MOST_GPUS),
    ]


class PartitionListStruct(ctypes.Structure):
    """The C structure ``fmFabricPartitionList_v2``, whose version number is 1."""

    _fields_: ClassVar[list[Any]] = [
        ("version", ctypes.c_uint),
        ("number", ctypes.c_uint),
        ("most", ctypes.c_uint),
        ("partitions", PartitionStruct * _MOST_PARTITIONS),
    ]


class ActivePartitionsStruct(ctypes.Structure):
    """The C structure ``fmActivatedFabricPartitionList_v1``: numbers of active partitions."""

    _fields_: ClassVar[list[Any]] = [
        ("version", ctypes.c_uint),
        ("number", ctypes.c_uint),
        ("ids", ctypes.c_uint * _MOST_PARTITIONS),
    ]


def version_of(structure: type[ctypes.Structure], number: int) -> int:
    """Return the version that identifies a layout for the library: size, and a number above it."""
    return ctypes.sizeof(structure) | number << 24


class CallError(Exception):
    """A function of Fabric Manager's library has not returned success."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {code}")
        self.function = function
        self.code = code


def _check_return_code(function: str, code: int) -> None:
    if code != SUCCESS:
        raise CallError(function, code)


def _connect_manager(library: Any, address: str, timeout_ms: int) -> ctypes.c_void_p:
    """Connect with the newest layout that the library accepts.

    :raises CallError: it accepts none, or the manager cannot be reached.
    """
    handle = ctypes.c_void_p()
    is_unix = address.startswith("/")
    code = VERSION_MISMATCH
    for layout, number in ((ConnectV2, 2), (ConnectV1, 1)):
        wanted: Any = layout()
        wanted.version = version_of(layout, number)
        wanted.address = address.encode()
        wanted.timeout_ms = timeout_ms
        wanted.is_unix = is_unix
        if layout is ConnectV2:
            wanted.kind = _UNIX if is_unix else _INET
        code = library.fmConnect(ctypes.byref(wanted), ctypes.byref(handle))
        if code != VERSION_MISMATCH:
            break
    _check_return_code("fmConnect", code)
    return handle


def _list_partition_rows(library: Any, handle: ctypes.c_void_p) -> list[dict[str, Any]]:
    table: Any = PartitionListStruct()
    table.version = version_of(PartitionListStruct, 1)
    _check_return_code(
        "fmGetSupportedFabricPartitions",
        library.fmGetSupportedFabricPartitions(handle, ctypes.byref(table)),
    )
    return [
        {
            "id": partition.id,
            "active": bool(partition.is_active),
            "gpus": [
                {
                    "physical_id": gpu.physical_id,
                    "bus_id": gpu.bus_id.decode("ascii", "replace"),
                    "links": gpu.links_available,
                }
                for gpu in partition.gpus[: min(partition.number, _MOST_GPUS)]
            ],
        }
        for partition in table.partitions[: min(table.number, _MOST_PARTITIONS)]
    ]


def _set_active(library: Any, handle: ctypes.c_void_p, ids: list[int]) -> None:
    table: Any = ActivePartitionsStruct()
    table.version = version_of(ActivePartitionsStruct, 1)
    table.number = len(ids)
    table.ids[: len(ids)] = ids
    _check_return_code(
        "fmSetActivatedFabricPartitions",
        library.fmSetActivatedFabricPartitions(handle, ctypes.byref(table)),
    )


def carry_out_order(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Carry out one order.

    :raises CallError: a function has failed.
    :raises OSError: the library cannot be loaded.
    :raises AttributeError: the file is another library.
    """
    library: Any = ctypes.CDLL(order["library"])
    for name in ("fmActivateFabricPartition", "fmDeactivateFabricPartition"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_uint]
    _check_return_code("fmLibInit", library.fmLibInit())
    try:
        handle = _connect_manager(library, order["address"], order["timeout_ms"])
        try:
            return _do_connected_order(library, handle, order)
        finally:
            library.fmDisconnect(handle)
    finally:
        library.fmLibShutdown()


def _do_connected_order(
    library: Any, handle: ctypes.c_void_p, order: dict[str, Any]
) -> list[dict[str, Any]]:
    what, ids = order["do"], order["ids"]
    if what == "list":
        return _list_partition_rows(library, handle)
    if what == "set":
        _set_active(library, handle, ids)
        return []
    names = {"activate": "fmActivateFabricPartition", "deactivate": "fmDeactivateFabricPartition"}
    for partition_id in ids:
        _check_return_code(names[what], getattr(library, names[what])(handle, partition_id))
    return []


def main() -> None:
    """Carry out the JSON order in the first argument; print the JSON answer on one marked line.

    The answer has the partitions, or the failed function and its code, or the problem as text.
    """
    answer: dict[str, Any] = {}
    try:
        answer["partitions"] = carry_out_order(json.loads(sys.argv[1]))
    except CallError as error:
        answer.update(function=error.function, code=error.code)
    except (OSError, AttributeError) as error:
        answer["problem"] = str(error)
    # The library's own output may precede the answer on the line.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
