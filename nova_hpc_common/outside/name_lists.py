# SPDX-License-Identifier: Apache-2.0
"""Many names or lines for people: the first of them, and the number of the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def join_first(
    texts: Collection[str], limit: int, joint: str = ", ", before_rest: str = " and "
) -> str:
    """Join the first *limit* texts in one line, in their order, and the number of the others.

    >>> join_first(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(texts) - limit
    first = joint.join(itertools.islice(texts, limit))
    return f"{first}{before_rest}{rest} more" if rest > 0 else first


def cut_after(
    items: Sequence[_Item], limit: int, describe_rest: Callable[[int], _Item]
) -> list[_Item]:
    """Return the first *limit* items; if there are more, also an item with the others' number.

    :param describe_rest: makes that item from the number of omitted items.
    """
    rest = len(items) - limit
    return [*items[:limit], *([describe_rest(rest)] if rest > 0 else [])]
