# SPDX-License-Identifier: Apache-2.0
"""InfiniBand virtual functions of mlx5 adapters, through sysfs.

The files are those of NVIDIA's own driver (MLNX_OFED, DOCA-OFED)::

   /sys/class/infiniband/<device>/device/sriov/<number>/{node,port,policy}

``node`` and ``port`` take and show a GUID as eight bytes with colons, and
``policy`` one of ``Follow``, ``Up``, ``Down``. The kernel's own driver has no
such directory; its functions are set through rtnetlink. This contract is from the
driver's documentation; it has not been tried on real hardware.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.adapters.apply import NoBackendError
from nova_hpc.tenancy.adapters.settings import AdapterError, LinkState, Setting, VirtualFunction
from nova_hpc.topology import handles
from nova_hpc.topology.files import FileError, Tree

_POLICY: Final = {LinkState.AUTO: "Follow", LinkState.UP: "Up", LinkState.DOWN: "Down"}
_STATES: Final = {word: state for state, word in _POLICY.items()}
_FILES: Final = {"node_guid": "node", "port_guid": "port", "link_state": "policy"}
_GUID: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){7}", re.ASCII)


class Mlx5:
    """The backend; needs the right to write to sysfs."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, function: VirtualFunction, setting: Setting) -> None:
        """Make one setting."""
        if setting.name == "link_state":
            text = _POLICY[setting.value]
        else:
            text = ":".join(f"{byte:02x}" for byte in int(setting.value).to_bytes(8, "big"))
        tree = Tree(self._root)
        path = f"{self.folder(tree, function)}/{_FILES[setting.name]}"
        try:
            with handles.kernel_file(self._root, path) as file:
                # Never made: where the driver has no such file, there is no such setting.
                if file is None:
                    raise AdapterError(f"{function.address}: there is no {path}")
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_TRUNC
                handle = os.open(handles.again(file), flags)
                try:
                    os.write(handle, f"{text}\n".encode())
                finally:
                    os.close(handle)
        except (FileError, OSError) as error:
            raise AdapterError(f"{function.address}: {setting.name}: {error}") from error

    def read(self, function: VirtualFunction) -> Mapping[str, Any]:
        """The three settings."""
        tree = Tree(self._root)
        folder = self.folder(tree, function)
        found: dict[str, Any] = {}
        try:
            for name, file in _FILES.items():
                text = tree.text(f"{folder}/{file}") or ""
                if name == "link_state":
                    if text in _STATES:
                        found[name] = _STATES[text]
                elif _GUID.fullmatch(text.lower()):
                    found[name] = int(text.replace(":", ""), 16)
        except FileError as error:
            raise AdapterError(f"{function.address}: {error}") from error
        return found

    @staticmethod
    def has(tree: Tree, function: VirtualFunction) -> bool:
        """Whether the driver of the function's adapter has these files."""
        return function.rdma is not None and tree.exists(_folder(function))

    @staticmethod
    def folder(tree: Tree, function: VirtualFunction) -> str:
        """The directory of the function.

        :raises NoBackendError: its adapter's driver has none.
        """
        if not Mlx5.has(tree, function):
            raise NoBackendError(
                f"{function.address}: the driver of its adapter has no directory "
                f"{_folder(function)}"
            )
        return f"{_folder(function)}/{function.index}"


def _folder(function: VirtualFunction) -> str:
    return f"/sys/class/infiniband/{function.rdma}/device/sriov"
