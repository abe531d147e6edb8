# SPDX-License-Identifier: Apache-2.0
"""The picture of the architecture, made from the code's imports."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
from lxml import etree

from tests.unit.pictures.faults import list_faults

TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def architecture():
    spec = importlib.util.spec_from_file_location("architecture", TOP / "docs" / "architecture.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up.
    sys.modules["architecture"] = module
    spec.loader.exec_module(module)
    # Each reading parses all of the code.
    module.read_rooms = functools.cache(module.read_rooms)
    yield module
    del sys.modules["architecture"]


def test_rooms_stand_on_floors_without_a_circle(architecture):
    rooms = architecture.read_rooms()
    floors = architecture.stack_floors(rooms)
    height = {room.name: number for number, floor in enumerate(floors) for room in floor}
    assert set(height) == set(rooms)
    for room in rooms.values():
        for use in room.uses & rooms.keys():
            assert height[use] < height[room.name], f"{room.name} uses {use} above it"


def test_rooms_of_a_floor_lie_side_by_side(architecture):
    for floor in architecture.stack_floors(architecture.read_rooms()):
        assert len(floor) * architecture._BOX < architecture._WIDTH


def test_the_ground_and_the_roof_are_what_the_design_says(architecture):
    rooms = architecture.read_rooms()
    assert rooms["nova_hpc.placement"].uses <= {"nova_hpc.topology", "nova_hpc_common"}
    assert rooms["nova_hpc_guest"].uses == frozenset()
    outside = {"neutron_drivers", "scheduler_filters", "nova_hpc_lab"}
    for name, room in rooms.items():
        if not name.startswith(("virt_driver_patches", *outside)):
            assert not room.uses & outside


def test_every_room_says_what_it_is(architecture):
    assert [name for name, room in architecture.read_rooms().items() if len(room.says) < 15] == []


def test_arrows_lead_to_all_uses_on_the_shortest_list(architecture):
    rooms = architecture.read_rooms()
    direct = architecture.find_direct_uses(rooms)

    def reach(name, *, without=None):
        found, left = set(), [use for use in direct[name] if use != without]
        while left:
            use = left.pop()
            found.add(use)
            left += direct[use]
        return found

    for name, room in rooms.items():
        assert room.uses & rooms.keys() <= reach(name)
        assert direct[name] <= room.uses
        assert [use for use in direct[name] if use in reach(name, without=use)] == []


def test_a_circle_is_named(architecture):
    def room(name, *uses):
        return architecture.Room(name, "A room.", 1, 10, frozenset(uses))

    with pytest.raises(ValueError, match="a, b"):
        architecture.stack_floors({"a": room("a", "b"), "b": room("b", "a"), "c": room("c")})


def test_the_picture_has_every_room_and_is_well_formed(architecture, tmp_path):
    architecture.write_files(tmp_path)
    picture = etree.parse(tmp_path / "architecture.svg")
    texts = {node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")}
    for name in architecture.read_rooms():
        assert name.removeprefix("nova_hpc.") in texts
        assert f"``{name}``" in (tmp_path / "architecture.txt").read_text()
    assert list_faults((tmp_path / "architecture.svg").read_text()) == []
    fills = {node.get("fill") for node in picture.iter("{http://www.w3.org/2000/svg}rect")}
    assert fills == {"#ffffff", *architecture._LEGEND}
    assert set(architecture._LEGEND.values()) <= texts
