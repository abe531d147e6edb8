# SPDX-License-Identifier: Apache-2.0
"""Many names or lines where people read: the first of them, and how many more there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def join_first(
    texts: Collection[str], limit: int, joint: str = ", ", before_rest: str = " and "
) -> str:
    """The first *limit* texts in one line, in their order, and how many more there are.

    >>> join_first(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(texts) - limit
    first = joint.join(itertools.islice(texts, limit))
    return f"{first}{before_rest}{rest} more" if rest > 0 else first


def cut_after(
    items: Sequence[_Item], limit: int, describe_rest: Callable[[int], _Item]
) -> list[_Item]:
    """The first *limit* items, and where there are more, one that says how many.

    :param describe_rest: makes that last one of the number of those that are left out.
    """
    rest = len(items) - limit
    return [*items[:limit], *([describe_rest(rest)] if rest > 0 else [])]
