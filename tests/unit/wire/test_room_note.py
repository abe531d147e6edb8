# SPDX-License-Identifier: Apache-2.0
"""The note about room in a flavor's description."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.wire.room_note import (
    NOW,
    UNKNOWN,
    RoomNote,
    read_room_note,
    replace_room_note,
)

TAKEN = "2026-12-01T11:00Z"
LATER = "2026-12-04T08:00Z"
NOTE = RoomNote(TAKEN, {1: NOW, 4: LATER, 8: UNKNOWN})
TIMES = st.sampled_from((NOW, UNKNOWN, LATER, "2027-01-01T00:00Z"))


@given(
    st.text(st.characters(exclude_characters="[]")),
    st.dictionaries(st.integers(1, 9_999_999), TIMES, min_size=1, max_size=9),
)
def test_description_keeps_its_text_and_has_one_note(text, times):
    note = RoomNote(TAKEN, times)
    once = replace_room_note(text, NOTE)
    again = replace_room_note(once, note)

    assert read_room_note(again) == note
    assert again.startswith(text.strip())
    assert again.removesuffix(note.text).strip() == text.strip()
    assert replace_room_note(again, note) == again


def test_time_of_a_number_between_is_that_of_the_larger_one():
    assert [NOTE.find_time(members) for members in (1, 2, 4, 5, 8, 9)] == [
        *(NOW, LATER, LATER),
        *(UNKNOWN, UNKNOWN, UNKNOWN),
    ]


@pytest.mark.parametrize(
    "description",
    [
        None,
        "",
        "a GPU node with room",
        f"[room {TAKEN}]",
        f"[room {TAKEN}: ]",
        f"[room {TAKEN}: 0 now]",
        f"[room {TAKEN}: 4 soon]",
        f"[room {TAKEN}: 4 now, 4 unknown]",
        f"[room {TAKEN}: 4 2026-02-30T08:00Z]",
        "[room 2026-13-01T11:00Z: 4 now]",
        f"[room {TAKEN}: \N{ARABIC-INDIC DIGIT FOUR} now]",
        f"{NOTE.text} {NOTE.text}",
    ],
)
def test_damaged_notes_are_unknown(description):
    assert read_room_note(description) is None
    assert read_room_note(replace_room_note(description, NOTE)) == NOTE
