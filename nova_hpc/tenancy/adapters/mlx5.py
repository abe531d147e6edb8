# SPDX-License-Identifier: Apache-2.0
"""InfiniBand virtual functions of mlx5 adapters, through sysfs.

The files are provided by NVIDIA's own driver (MLNX_OFED, DOCA-OFED)::

   /sys/class/infiniband/<device>/device/sriov/<number>/{node,port,policy}

``node`` and ``port`` accept and show a GUID as eight bytes with colons, and
``policy`` one of ``Follow``, ``Up``, ``Down``. The kernel's own driver has no
such directory; its functions are set through rtnetlink. This contract comes from the
driver's documentation; it is untested on real hardware.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.adapters.function_changes import NoBackendError
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    AdapterFunction,
    AdapterSetting,
    LinkState,
)
from nova_hpc.topology import handles
from nova_hpc.topology.files import FileError, FileTree

_POLICY: Final = {LinkState.AUTO: "Follow", LinkState.UP: "Up", LinkState.DOWN: "Down"}
_STATES: Final = {word: state for state, word in _POLICY.items()}
_FILES: Final = {"node_guid": "node", "port_guid": "port", "link_state": "policy"}
_GUID: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){7}", re.ASCII)


class Mlx5Backend:
    """Adapter backend for InfiniBand functions of mlx5 through sysfs; needs the right to write."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, function: AdapterFunction, setting: AdapterSetting) -> None:
        """Write one setting of a virtual function (GUID or link state) to its file in sysfs."""
        if setting.name == "link_state":
            text = _POLICY[setting.value]
        else:
            text = ":".join(f"{byte:02x}" for byte in int(setting.value).to_bytes(8, "big"))
        tree = FileTree(self._root)
        path = f"{self.folder(tree, function)}/{_FILES[setting.name]}"
        try:
            with handles.kernel_file(self._root, path) as file:
                # Never create the file: if the driver lacks it, there is no such setting.
                if file is None:
                    raise AdapterError(f"{function.address}: there is no {path}")
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_TRUNC
                handle = os.open(handles.path_of_handle(file), flags)
                try:
                    os.write(handle, f"{text}\n".encode())
                finally:
                    os.close(handle)
        except (FileError, OSError) as error:
            raise AdapterError(f"{function.address}: {setting.name}: {error}") from error

    def read(self, function: AdapterFunction) -> Mapping[str, Any]:
        """Read the three settings of a virtual function from sysfs: name -> value."""
        tree = FileTree(self._root)
        folder = self.folder(tree, function)
        values: dict[str, Any] = {}
        try:
            for name, file in _FILES.items():
                text = tree.text(f"{folder}/{file}") or ""
                if name == "link_state":
                    if text in _STATES:
                        values[name] = _STATES[text]
                elif _GUID.fullmatch(text.lower()):
                    values[name] = int(text.replace(":", ""), 16)
        except FileError as error:
            raise AdapterError(f"{function.address}: {error}") from error
        return values

    @staticmethod
    def has(tree: FileTree, function: AdapterFunction) -> bool:
        """Whether the driver of the function's adapter has these files."""
        return function.rdma is not None and tree.exists(_sriov_folder_of(function))

    @staticmethod
    def folder(tree: FileTree, function: AdapterFunction) -> str:
        """Return the directory of the function.

        :raises NoBackendError: its adapter's driver has none.
        """
        if not Mlx5Backend.has(tree, function):
            raise NoBackendError(
                f"{function.address}: the driver of its adapter has no directory "
                f"{_sriov_folder_of(function)}"
            )
        return f"{_sriov_folder_of(function)}/{function.index}"


def _sriov_folder_of(function: AdapterFunction) -> str:
    return f"/sys/class/infiniband/{function.rdma}/device/sriov"
