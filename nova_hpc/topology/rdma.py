"""RDMA devices of a PCI function: node GUID, ports, port GUIDs."""

from __future__ import annotations

import re
from typing import Final

from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import RdmaDevice, RdmaPort

_GUID: Final = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}", re.ASCII)
_GID: Final = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}", re.ASCII)
_NO_GUID: Final = "0000:0000:0000:0000"


def read(tree: Tree, folder: str) -> tuple[RdmaDevice, ...]:
    """The devices below the ``infiniband`` directory *folder* of a function.

    :raises FileError: a file is there but unreadable or nonsense.
    """
    found = []
    for name in tree.names(folder):
        ports = tuple(
            _port(tree, f"{folder}/{name}/ports/{port}", int(port))
            for port in tree.names(f"{folder}/{name}/ports")
            if re.fullmatch(r"\d{1,3}", port, re.ASCII)
        )
        guid = tree.text(f"{folder}/{name}/node_guid")
        found.append(RdmaDevice(name=name, node_guid=_guid(guid, name), ports=ports))
    return tuple(found)


def _port(tree: Tree, folder: str, number: int) -> RdmaPort:
    layer = tree.text(f"{folder}/link_layer")
    state = tree.text(f"{folder}/state")  # "4: ACTIVE"
    gid = tree.text(f"{folder}/gids/0")
    guid = None
    # The first GID of an InfiniBand port is its subnet prefix and port GUID;
    # on Ethernet it is made from a MAC or IP address and is no GUID.
    if gid is not None and layer != "Ethernet":
        if _GID.fullmatch(gid) is None:
            raise FileError(f"{folder}/gids/0: {gid[:50]!r} is no GID")
        guid = _guid(gid[20:], folder)
    return RdmaPort(
        number=number,
        guid=guid,
        link_layer=layer,
        state=state.rpartition(": ")[2] if state else None,
        rate=tree.text(f"{folder}/rate"),
    )


def _guid(text: str | None, of: str) -> str | None:
    if text is None or text == _NO_GUID:
        return None
    if _GUID.fullmatch(text) is None:
        raise FileError(f"{of}: {text[:30]!r} is no GUID")
    return text
