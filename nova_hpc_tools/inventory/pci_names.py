# SPDX-License-Identifier: Apache-2.0
"""Names of products from the file ``pci.ids``, which distributions install for ``lspci``.

Its form (https://pci-ids.ucw.cz/): a line ``10de  NVIDIA Corporation`` begins a vendor, and
lines of it that begin with one tab are its products: ``2330  GH100 [H100 SXM5 80GB]``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

#: Debian and Ubuntu; Red Hat, SUSE and Arch.
FILES: Final = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))
#: Bytes; the file had 1.5 MB in 2025.
_LARGEST: Final = 1 << 24
_LINE: Final = re.compile(r"(\t?)([0-9a-f]{4})  (\S.*)", re.ASCII)


def read_product_names(
    wanted: Collection[tuple[str, str]], files: Collection[Path] = FILES
) -> Mapping[tuple[str, str], str]:
    """Read the names of products from ``pci.ids``: (vendor id, product id) -> name.

    :param files: the first readable one is used.
    """
    for path in files:
        try:
            with path.open("rb") as file:
                text = file.read(_LARGEST).decode("utf-8", "replace")
        except OSError:
            continue
        return _find_names(text, frozenset(wanted))
    return {}


def _find_names(text: str, wanted: frozenset[tuple[str, str]]) -> dict[tuple[str, str], str]:
    names: dict[tuple[str, str], str] = {}
    vendor = ""
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            # A line "C ..." begins the device classes, whose numbers look like products.
            vendor = "" if line[:2] == "C " else vendor
            continue
        tab, number, name = match.groups()
        if not tab:
            vendor = number
        elif (vendor, number) in wanted:
            names.setdefault((vendor, number), name.strip())
    return names
