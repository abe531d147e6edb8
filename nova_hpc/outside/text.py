# SPDX-License-Identifier: Apache-2.0
"""The one filter for text of others that is printed, put into a command, or into a sheet.

Names of servers and networks, metadata, consoles, maps and error messages of services are
written by people whom the reader need not trust. A terminal obeys control characters
(ECMA-48: C0, C1), and marks of direction (Unicode UAX #9) let a line read as another one;
https://nvd.nist.gov/vuln/detail/CVE-2021-42574 shows what that is good for.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

#: Kept in a text of several lines.
_BETWEEN_LINES: Final = "\n\t"
#: What a spreadsheet takes for the beginning of a formula; the wide forms as well.
#: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: What a shell does not take as it is between double quotes (POSIX.1-2017 XCU 2.2.3).
_IN_QUOTES: Final = re.compile(r'([$`"\\])')


def printable_text(text: str) -> str:
    """The text on one line, as it may be shown on a terminal and in a cell.

    A character that a terminal obeys or does not show is replaced by its number, as JSON
    writes it: controls, line ends, marks of direction, what has no width, half surrogates.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape_character(letter) for letter in text)


def printable_lines(text: str) -> str:
    """As :func:`printable_text`, but line ends and tabs stay: for a text of our own around it."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(
        letter if letter.isprintable() or letter in _BETWEEN_LINES else _escape_character(letter)
        for letter in text
    )


def _escape_character(letter: str) -> str:
    # JSON has numbers of 16 bits; a character beyond them is a pair.
    data = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def shell_command(*words: str) -> str:
    """A command that may be printed, and copied into a shell: it runs these words alone.

    A word with characters that cannot be printed is shown, and then means nothing.
    """
    return shlex.join(printable_text(word) for word in words)


def shell_value(text: str) -> str:
    """The text between double quotes, as a shell reads it without running any of it."""
    return '"' + _IN_QUOTES.sub(r"\\\1", printable_text(text)) + '"'


def sheet_cell(text: str) -> str:
    """The text of a cell of CSV: printable, and no formula.

    Spreadsheets show a text behind an apostrophe as it is. A number stays one.
    """
    shown = printable_text(text)
    if not shown.lstrip().startswith(_FORMULA) or _is_number(shown):
        return shown
    return f"'{shown}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
