# SPDX-License-Identifier: Apache-2.0
"""Whether a function of Nova is the one that was read."""

from __future__ import annotations

import ast

import pytest

from nova_hpc.from_nova import nova_sources

FIT = "nova.virt.hardware:Fitter.fit"
PLAIN = '''
class Fitter:
    @staticmethod
    def fit(host, guest=None, *, limits=()):
        """What it does."""
        for cell in host:
            if cell.id in guest:  # as ever
                return [f"{cell.id}: {limits}", 'one', None]
        return None

    def other(self):
        return 1
'''


def digest(text: str, target: str = FIT) -> str | None:
    return nova_sources.digest_function(ast.parse(text), target)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # as ever", "  # NOTE(somebody): a word of a distribution"),
        ('"""What it does."""', '"""What it does, at length."""'),
        ('        """What it does."""\n', ""),
        ("for cell in host:", "for cell in (host):\n"),
        ("'one'", 'u"one"'),
        ("return 1", "return 2"),
        ("class Fitter", "import this_or_that\n\n\nclass Fitter"),
    ],
)
def test_what_makes_no_difference(old, new):
    assert PLAIN.count(old) == 1
    assert digest(PLAIN.replace(old, new)) == digest(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if cell.id in guest:", "if cell.id not in guest:"),
        ("'one', None", "'one'"),
        ("{cell.id}: {limits}", "{cell.id}: {limits!r}"),
        ("limits=()", "limits=(0,)"),
        ("@staticmethod", "@classmethod"),
        ("        return None", "        return 0"),
        ("def fit", "async def fit"),
    ],
)
def test_what_does(old, new):
    assert PLAIN.count(old) == 1
    assert digest(PLAIN.replace(old, new)) != digest(PLAIN)


def test_the_digest_is_the_same_on_every_python() -> None:
    """Read on 3.10 to 3.13."""
    assert digest(PLAIN) == "369e1210a7ac48860fb2ab9b1081c349d157bfdc5796beddbe484f2068663f00"


def test_a_function_that_is_not_there() -> None:
    assert digest(PLAIN, "nova.virt.hardware:Fitter.fits") is None
    assert digest(PLAIN, "nova.virt.hardware:Other.fit") is None
    assert digest(PLAIN, "nova.virt.hardware:fit") is None
    assert digest("if True:\n    def fit(): pass\n", "nova.virt.hardware:fit")


def test_what_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "nova"
    file = folder / "virt/hardware.py"
    file.parent.mkdir(parents=True)
    file.write_text(PLAIN)
    other = FIT.replace(".fit", ".other")
    table = {FIT: {34: digest(PLAIN)}, other: {34: digest(PLAIN, other)}}
    monkeypatch.setattr(nova_sources, "DIGESTS", table)
    assert nova_sources.find_changed_functions(folder, 34, table) == ()
    file.write_text(PLAIN.replace(" in guest", " not in guest"))
    (change,) = nova_sources.find_changed_functions(folder, 34, table)
    assert str(change) == "Fitter.fit in nova/virt/hardware.py is not that of Nova 34.0.0"
    assert (change.target, change.file, change.read) == (FIT, "nova/virt/hardware.py", "34.0.0")
    file.write_text(PLAIN.replace("def other", "def another"))
    (change,) = nova_sources.find_changed_functions(folder, 34, table)
    assert str(change).endswith("is not there, as it is in Nova 34.0.0")
    # Nobody has read it there, so nobody knows.
    assert len(nova_sources.find_changed_functions(folder, 33, table)) == 2
    file.write_text("def (")
    found = nova_sources.find_changed_functions(folder, 34, table)
    assert ["cannot be compared" in str(each) for each in found] == [True, True]
    file.unlink()
    found = nova_sources.find_changed_functions(folder, 34, table)
    assert all("No such file" in str(each) for each in found)


def test_the_table_is_whole() -> None:
    for target, row in nova_sources.DIGESTS.items():
        assert row.keys() == nova_sources.READ.keys(), target
        assert all(len(each) == 64 for each in row.values()), target
