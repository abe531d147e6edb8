# SPDX-License-Identifier: Apache-2.0
"""The pictures in the documentation are what the code draws.

``python -m tests.unit.pictures.test_pages_pictures`` draws them anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nova_hpc.fabric.model import FabricLevel
from nova_hpc.topology import sysfs
from nova_hpc_tools.cloud.capacity_command import read_synced_map
from nova_hpc_tools.cloud.room.earliest import find_earliest_time
from nova_hpc_tools.cloud.room.end_times import read_end_times, read_time_of_snapshot
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.cloud.room.time_view import view_time
from nova_hpc_tools.inventory import picture_view, standing
from nova_hpc_tools.pictures import page, snapshot_view
from nova_hpc_tools.pictures.model import GroupNote
from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.unit.pictures.fleet import ending_cloud, fleet

FOLDER = Path(__file__).resolve().parents[3] / "docs/source/admin/pictures"


def _draw_inventory() -> str:
    with tempfile.TemporaryDirectory() as folder:
        node = sysfs.read_sysfs_node(write(NODES["hgx-h100"], Path(folder)))
    settings = standing.make_default_settings(node)
    judged = standing.judge_functions(node, settings)
    return page.draw_node_svg(picture_view.view_inventory_node(node, judged, settings.spec))


def _draw_node() -> str:
    cloud = fleet(40)
    return page.draw_node_svg(snapshot_view.view_snapshot_node(cloud, cloud.hosts[22]))


def _draw_cloud() -> str:
    cloud = fleet(40)
    group = GroupNote("7c3e5a90-0d1f-4b6e-9a53-52e1c0b7d6a4", "leaf", "leaf1", 8, 16)
    fabric, _ = read_synced_map(cloud)
    return page.draw_cloud_svg(snapshot_view.view_cloud(cloud, fabric, (group,)))


def _draw_small_cloud() -> str:
    """A cloud of one leaf."""
    cloud = fleet(12)
    fabric, _ = read_synced_map(cloud)
    return page.draw_cloud_svg(snapshot_view.view_cloud(cloud, fabric, ()))


def _draw_when() -> str:
    cloud = ending_cloud()
    fabric, _ = read_synced_map(cloud)
    question = RoomQuestion.of(cloud, "hpc.gpu8", fabric, 4, FabricLevel.LEAF)
    times = read_end_times(cloud)
    found = find_earliest_time(cloud, question, times.ends)
    taken = read_time_of_snapshot(cloud)
    return page.draw_times_svg(view_time(cloud, question, found, times, taken))


PICTURES: Mapping[str, Callable[[], str]] = {
    "cloud.svg": _draw_cloud,
    "cloud-small.svg": _draw_small_cloud,
    "inventory.svg": _draw_inventory,
    "node.svg": _draw_node,
    "when.svg": _draw_when,
}


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_is_what_the_code_draws(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PICTURES[name]()


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
