# SPDX-License-Identifier: Apache-2.0
"""The planner: places for the members of a gang. Pure.

:func:`nova_hpc.cluster.plan.search.plan_gang` makes the plan; the page *The gang planner* of the
contributors' documentation defines the result, in words that a test can follow.
"""

from nova_hpc.cluster.plan.model import (
    ANYWHERE,
    HOST,
    Gang,
    GangMiss,
    GangOrder,
    GangPlan,
    GangPolicy,
    GangRefusal,
)
from nova_hpc.cluster.plan.search import plan_gang

__all__ = [
    "ANYWHERE",
    "HOST",
    "Gang",
    "GangMiss",
    "GangOrder",
    "GangPlan",
    "GangPolicy",
    "GangRefusal",
    "plan_gang",
]
