# SPDX-License-Identifier: Apache-2.0
"""All pictures are drawn on one canvas, which makes the texts of others harmless."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from nova_hpc_common.output import canvas
from tests.unit import hostile
from tests.unit.pictures.faults import list_faults
from tools.wheels import TOP, list_production_folders

#: The guest's wheel imports no other wheel.
WRITERS = {"nova_hpc_common/output/canvas.py", "nova_hpc_guest/accept/picture.py"}


def test_no_other_module_writes_svg() -> None:
    folders = [TOP / folder for folder in list_production_folders()]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    writers = {
        str(path.relative_to(TOP))
        for path in modules
        if "http://www.w3.org/2000/svg" in path.read_text() or "<svg" in path.read_text()
    }
    assert len(modules) > 400
    assert writers == WRITERS


@pytest.mark.parametrize("name", hostile.TEXTS)
def test_texts_of_others_are_texts(name: str) -> None:
    text = f"</text>&\"'<b x='\ud800{hostile.TEXTS[name]}"
    root = canvas.make_plain_root(100, 50, text)
    group = canvas.add_element(root, "g", id=text)
    canvas.add_text(group, text, 1.25, 10, room=30)
    canvas.add_tooltip(canvas.add_element(group, "text", text), [text, "second line"])
    drawn = canvas.format_svg(root)
    assert hostile.obeyed(drawn) == []
    tags = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()]
    assert tags == ["svg", "title", "style", "rect", "g", "text", "title", "text", "title"]
    # The whole text stands in the five places that show it, and only its ends in the room of 30.
    assert drawn.count("&lt;b x=") == 5


def test_a_picture_without_a_title_keeps_its_texts_for_screen_readers() -> None:
    assert canvas.make_svg_root(10, 20).attrib == {
        "xmlns": "http://www.w3.org/2000/svg",
        "width": "10",
        "height": "20",
        "viewBox": "0 0 10 20",
    }
    titled = canvas.make_svg_root(10, 20, "cloud")
    assert (titled.get("role"), titled.findtext("title")) == ("img", "cloud")


def test_a_tooltip_comes_before_the_text_of_its_element() -> None:
    root = canvas.make_svg_root(10, 20)
    canvas.add_tooltip(canvas.add_element(root, "text", "short"), ["the whole", "in two lines"])
    assert canvas.format_svg(root).endswith(
        "<text><title>the whole\nin two lines</title>short</text></svg>\n"
    )


def test_colours_of_a_plain_picture_have_dark_forms() -> None:
    root = canvas.make_plain_root(200, 40, "cloud")
    canvas.add_element(root, "rect", width=90, height=30, fill="#f2b8b5", stroke="#7f8c8d")
    canvas.add_text(root, "slow", 8, 20)
    assert list_faults(canvas.format_svg(root)) == []


@pytest.mark.parametrize(
    ("light", "dark"),
    [
        ("#ffffff", "#171717"),
        ("#000000", "#f2f2f2"),
        ("#d62728", "#dd2e2f"),
        ("#555555", "#a9a9a9"),
    ],
)
def test_the_dark_form_of_a_colour_has_its_hue(light: str, dark: str) -> None:
    assert canvas.reverse_lightness(light) == dark
