# SPDX-License-Identifier: Apache-2.0
"""Links between the pages, as far as the sources show them, and the clicks from the start page.

A toctree counts if it is shown: those of the start page are hidden, because the side bar has them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Set

from docutils import nodes

START = "index"


def list_labels(documents: Mapping[str, nodes.document]) -> dict[str, str]:
    """The page of each label."""
    return {
        name: page
        for page, document in documents.items()
        for name, explicit in document.nametypes.items()
        if explicit
    }


def list_links(page: str, document: nodes.document, labels: Mapping[str, str]) -> Iterator[str]:
    """The pages to which a page leads, by links in its text and by shown toctrees."""
    folder = posixpath.dirname(page)
    for node in document.findall():
        if not isinstance(node, nodes.Element):
            continue
        if node.get("role") == "ref":
            yield labels.get(node["target"].lower(), page)
        for target in (
            *node.get("toctree", ()),
            *([node["target"]] if node.get("role") == "doc" else ()),
        ):
            yield posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")


def count_clicks(links: Mapping[str, Set[str]]) -> dict[str, int]:
    """The least number of clicks from the start page to each page that can be reached."""
    clicks = {START: 0}
    found = [START]
    for page in found:
        for target in sorted(links.get(page, ())):
            if target in links and target not in clicks:
                clicks[target] = clicks[page] + 1
                found.append(target)
    return clicks
