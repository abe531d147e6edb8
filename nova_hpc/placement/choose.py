"""Choose the best device sets of one host for one request.

Pure and deterministic: the same input gives the same answer, in whatever
order the pools come. The contributor documentation ("How devices are chosen")
states the objective in order, and what bounds the search.
"""

from __future__ import annotations

from nova_hpc.placement import alike
from nova_hpc.placement import profile as profiles
from nova_hpc.placement.model import Answer, Host, Request
from nova_hpc.placement.profile import Profile
from nova_hpc.placement.solver import greedy, reasons
from nova_hpc.placement.solver.alternatives import ranked
from nova_hpc.placement.solver.budget import TooMuchError
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import survey
from nova_hpc.placement.solver.nvlink import links
from nova_hpc.placement.solver.problem import Problem
from nova_hpc.placement.solver.solve import Solver


def choose(
    request: Request, host: Host, limit: int = 1, profile: Profile = profiles.DEFAULT
) -> Answer:
    """The best device sets of *host* for *request*, or why there is none.

    :param limit: at most so many sets. Each is on other NUMA nodes or in
        other domains than the ones before: choosing another of two alike
        devices is no alternative (see spread.rotate). Sets on other nodes come
        first, in the order of their scores, and then sets in other domains of
        those nodes.
    :param profile: what later servers look like, the yardstick of damage
    :raises ValueError: the request contradicts itself (see Demand.of), the host
        does (see survey), or the profile does (see Yardstick.of).
    """
    demand = Demand.of(request)
    host = alike.reduced(request, host, profile)
    site = survey(demand, host)
    linked = links(request, demand, site, host)
    problem = Problem.of(request, demand, site, profile)
    solver = Solver(problem, linked)
    try:
        found = ranked(solver, max(limit, 1))
    except TooMuchError:
        solver.truncated, found = True, []
    if solver.truncated:
        found = greedy.merge(found, greedy.solve(solver, max(limit, 1)), max(limit, 1))
    if not found:
        return Answer(miss=reasons.miss(request, demand, site, linked))
    return Answer(sets=tuple(found))
