"""Parse an XML file that may come from anywhere.

No entity is expanded, nothing is fetched, and libxml2's limits on depth and
size stay on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lxml import etree

from nova_hpc.topology.files import show
from nova_hpc.topology.model import InventoryError

#: Bytes; the XML of the largest machines is a few MiB.
LARGEST: Final = 1 << 25


def parse(path: Path) -> etree._Element:
    """The root element of a topology that lstopo wrote.

    :raises InventoryError: no such file, not XML, or no topology in it.
    """
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        if not path.is_file():
            raise InventoryError(f"{show(path)}: no such file; give a file that lstopo wrote")
        if path.stat().st_size > LARGEST:
            raise InventoryError(
                f"{show(path)}: larger than {LARGEST >> 20} MiB, so not lstopo's XML"
            )
        root = etree.fromstring(path.read_bytes(), parser)
    except OSError as error:
        raise InventoryError(f"{show(path)}: cannot be read: {error.strerror}") from error
    except (etree.LxmlError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise InventoryError(
            f"{show(path)}: not well-formed XML ({detail}); write it again with: lstopo --of xml"
        ) from error
    dtd: Any = root.getroottree().docinfo.internalDTD
    if dtd is not None and next(dtd.iterentities(), None) is not None:
        raise InventoryError(
            f"{show(path)}: declares XML entities, which lstopo never does; not read"
        )
    if root.tag not in ("topology", "root") or root.find("object") is None:
        raise InventoryError(
            f"{show(path)}: no hwloc topology in it; write it with: lstopo --of xml"
        )
    return root
