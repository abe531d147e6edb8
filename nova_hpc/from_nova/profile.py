# SPDX-License-Identifier: Apache-2.0
"""The cloud's own flavors as the profile for measuring damage.

Of two device sets that serve a server equally well, the better one leaves more
room for this cloud's flavors. Each flavor with devices is a shape. Its weight is in
``[hpc]flavor_weights`` or, if that option is not set, comes from its number of running
servers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import sqlalchemy
from nova import context as nova_context
from nova import exception, objects
from nova.db.main import api as main_db
from nova.db.main import models
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.from_nova import cache, server
from nova_hpc.from_nova.cache import Once
from nova_hpc.from_nova.pools import SAMPLES, Samples
from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.placement import profile as profiles
from nova_hpc.placement import shape_mix
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc_common.level import Level

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

_ONCE: Final = Once()

#: Seconds between two readings of the flavors.
_KEEP: Final = 300.0


@attrs.frozen(eq=False)
class CloudProfile:
    """The mix of flavors of the cloud, and a number that stands for it in keys of caches."""

    profile: Profile
    number: int = attrs.field(factory=cache.next_unique_number)


@attrs.frozen
class _Sold:
    """One flavor of the cloud that requests devices, with its parsed requirements."""

    #: In Nova's databases.
    id: int
    name: str
    task: server.ServerTask


class CloudProfiles:
    """Reader and cache of the mix of flavors of the cloud; thread-safe."""

    def __init__(self, samples: Samples = SAMPLES) -> None:
        self._samples = samples
        self._lock = threading.Lock()
        self._made = CloudProfile(profiles.DEFAULT)
        self._made_of: object = None
        self._sold: tuple[_Sold, ...] | None = None
        self._weights: Mapping[str, int] = {}
        self._until = 0.0
        self._reading = False

    def current(self) -> CloudProfile:
        """Return the profile of the cloud's flavors; read them again after five minutes."""
        with self._lock:
            reader = not self._reading and time.monotonic() >= self._until
            self._reading = self._reading or reader
        if reader:
            # The others use the previous profile while one thread reads.
            sold = _read_sold_flavors()
            learned = _learn_flavor_weights(sold) if sold and _learns_weights() else None
            with self._lock:
                self._reading = False
                self._until = time.monotonic() + _KEEP
                self._sold = self._sold if sold is None else sold
                self._weights = self._weights if learned is None else learned
        with self._lock:
            weights: Mapping[str, int] = (
                self._weights if _learns_weights() else CONF.hpc.flavor_weights
            )
            made_of = (self._sold, self._samples.version, tuple(sorted(weights.items())))
            if made_of != self._made_of:
                profile = _build_profile_or_default(self._sold or (), weights, self._samples)
                if profile != self._made.profile:
                    self._made = CloudProfile(profile)
                self._made_of = made_of
            return self._made


def _read_sold_flavors() -> tuple[_Sold, ...] | None:
    """Read the flavors with devices from the API database; None if they are unreadable."""
    try:
        flavors = objects.FlavorList.get_all(nova_context.get_admin_context())
    except Exception as error:
        # Any error is acceptable: the choice of devices only loses its last criterion.
        if _ONCE.first(("flavors", type(error).__name__)):
            LOG.warning(
                "The flavors cannot be read (%s: %s); until they can, the damage of a placement "
                "is measured by GPUs in powers of two, or by the flavors read before",
                type(error).__name__,
                error,
            )
        return None
    sold = []
    for flavor in flavors:
        if "pci_passthrough:alias" not in (flavor.extra_specs or {}):
            continue
        try:
            sold.append(_Sold(flavor.id, flavor.name, server.read_flavor_task(flavor)))
        except (exception.NovaException, server.RequestError, ValueError) as error:
            # A server cannot be built with it either.
            LOG.debug("Flavor %s is no part of the profile: %s", flavor.name, error)
    return tuple(sold)


def _learns_weights() -> bool:
    """Whether the weights come from the running servers."""
    return bool(CONF.hpc.learn_flavor_weights) and not CONF.hpc.flavor_weights


def _learn_flavor_weights(sold: Iterable[_Sold]) -> dict[str, int] | None:
    """Compute flavor name -> weight from the running servers of all cells.

    None if a cell did not answer, and then the previous weights stay.
    """
    names = {flavor.id: flavor.name for flavor in sold}
    running = dict.fromkeys(names.values(), 0)
    try:
        cells = nova_context.scatter_gather_skip_cell0(
            nova_context.get_admin_context(), _count_running_servers, tuple(names)
        )
    except Exception as error:
        cells = {"": error}
    for cell, cell_counts in cells.items():
        if nova_context.is_cell_failure_sentinel(cell_counts):
            # The weights of half a cloud would be wrong for the other half.
            if _ONCE.first(("running", cell)):
                LOG.warning(
                    "The servers of cell %s cannot be counted (%s); until they can, flavors keep "
                    "the weights that they have for the damage of a placement",
                    cell,
                    cell_counts,
                )
            return None
        for flavor, count in cell_counts:
            running[names[flavor]] += count
    return shape_mix.learn_weights(running)


@main_db.pick_context_manager_reader
def _count_running_servers(
    context: nova_context.RequestContext, flavors: Sequence[int]
) -> list[tuple[int, int]]:
    """Return pairs of flavor id and its servers in one cell that are not deleted.

    Nova's objects would load each server itself.
    """
    flavor = models.Instance.instance_type_id
    query = context.session.query(flavor, sqlalchemy.func.count())
    query = query.filter(models.Instance.deleted == 0, flavor.in_(flavors)).group_by(flavor)
    return [(int(flavor_id), int(count)) for flavor_id, count in query.all()]


def _build_profile_or_default(
    sold: Iterable[_Sold], weights: Mapping[str, int], samples: Samples
) -> Profile:
    try:
        return build_cloud_profile(sold, weights, samples)
    except Exception as error:
        # Never a reason to refuse a server.
        if _ONCE.first(("profile", str(error))):
            LOG.exception("The flavors are no measure of the damage of a placement")
        return profiles.DEFAULT


def build_cloud_profile(
    sold: Iterable[_Sold], weights: Mapping[str, int], samples: Samples
) -> Profile:
    """Build the profile of these flavors; the engine's default profile if there are none.

    :param weights: flavor name -> weight; 1 if it is missing.
    :param samples: example pools, which give the roles of aliases.
    """
    shapes, names = [], set()
    for sold_flavor in sold:
        names.add(sold_flavor.name)
        weight = weights.get(sold_flavor.name, 1)
        shape = _shape_of_task(sold_flavor.task, weight, samples) if weight > 0 else None
        if shape is not None:
            shapes.append(shape)
    for name in sorted(set(weights) - names):
        if names and _ONCE.first(("no flavor", name)):
            LOG.warning("[hpc]flavor_weights names %s, which is no flavor with devices", name)
    different = len(shape_mix.merge_shapes(shapes, max(len(shapes), 1)))
    if different > shape_mix.MOST and _ONCE.first(("shapes", different)):
        LOG.info(
            "%d flavors request different devices, CPUs or memory; those that differ least "
            "count as one for the damage of a placement, which leaves %d",
            different,
            shape_mix.MOST,
        )
    return shape_mix.build_mixed_profile(shapes)


def _shape_of_task(task: server.ServerTask, weight: int, samples: Samples) -> FlavorShape | None:
    """Convert one flavor to a shape of later requests; None if it is broken."""
    roles = {
        device.want.key: samples.role_of(device) or device.want.name for device in task.devices
    }
    level, groups, asked = Level.HOST, 1, task.server
    counts = {want.key: want.count for want in asked.wants}
    if hpc_flavor.has_hpc_keys(asked.extra_specs):
        try:
            request = asked.request(roles)
        except FlavorError:
            return None
        level, groups, counts = request.level, len(request.groups), dict(request.groups[0].counts)
    per_role: dict[str, int] = {}
    for key, count in counts.items():
        per_role[roles[key]] = per_role.get(roles[key], 0) + count
    sizes = {cell.page_kib for cell in asked.cells}
    page = next(iter(sizes)) if len(sizes) == 1 else None
    return FlavorShape(
        counts=per_role,
        groups=groups,
        level=level,
        weight=weight,
        cpus=sum(cell.dedicated_cpus for cell in asked.cells),
        memory_kib=sum(cell.memory_kib for cell in asked.cells) if page else 0,
        page_kib=page,
    )


#: The profile of this process's cloud.
CLOUD_PROFILES: Final = CloudProfiles()
