# SPDX-License-Identifier: Apache-2.0
"""Values of JSON by their exact type: True is not a number here, and nothing is converted.

For readers that skip a damaged entry; :mod:`nova_hpc.wire.strict` reports the faults.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

#: Characters of a reason that are kept.
_LONGEST_REASON: Final = 1000

_T = TypeVar("_T")


def require_type(value: Any, kind: type[_T]) -> _T:
    """Return *value* if its type is exactly *kind*.

    :raises TypeError: it is not of exactly this type (subclasses are refused).
    """
    if type(value) is not kind:
        raise TypeError(kind.__name__)
    return value


def require_type_or_none(value: Any, kind: type[_T]) -> _T | None:
    """Return *value* if it is of type *kind* or None, like :func:`require_type`."""
    return None if value is None else require_type(value, kind)


def require_count(value: Any) -> int:
    """Return *value* if it is a whole number from 0 on.

    :raises TypeError: it is another value.
    """
    if require_type(value, int) < 0:
        raise TypeError("negative")
    return int(value)


def require_finite(value: Any) -> float:
    """Return *value* as a float if it is a finite number.

    :raises TypeError: it is another value.
    """
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        # JSON's whole numbers have any number of digits.
        pass
    raise TypeError("not a finite number")


def cut_reason(text: str) -> str:
    """Cut a reason for the ledger to the longest text that the file keeps."""
    return text[:_LONGEST_REASON]
