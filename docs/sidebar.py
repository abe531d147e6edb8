# SPDX-License-Identifier: Apache-2.0
"""The side bar of tenants' pages, without the pages of operators and contributors."""

from typing import Any

from bs4 import BeautifulSoup

#: Captions of the start page's lists that tenants read.
TENANTS = ("What it is", "Try it", "Use it")
#: Pages of tenants outside of the folder user.
_COMMANDS = ("cli/cluster", "cli/gpu")


def is_for_tenants(page: str) -> bool:
    """Whether tenants, and not operators, read a page; the lab is for operators, too."""
    return page in _COMMANDS or (page.startswith("user/") and not page.startswith("user/lab"))


def drop_others(tree: str) -> str:
    """The HTML of a side bar, with the lists of ``TENANTS`` alone."""
    soup = BeautifulSoup(tree, "html.parser")
    for caption in soup.find_all("p", class_="caption"):
        if caption.get_text(strip=True) not in TENANTS:
            caption.find_next_sibling("ul").decompose()
            caption.decompose()
    return str(soup)


def keep_tenants_pages(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Drop the others' lists from the side bar of a tenants' page that Sphinx writes."""
    if is_for_tenants(page) and "furo_navigation_tree" in context:
        context["furo_navigation_tree"] = drop_others(context["furo_navigation_tree"])
