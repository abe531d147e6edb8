# SPDX-License-Identifier: Apache-2.0
"""The one filter for text from outside that is printed, or put into a command or a sheet.

Names of servers and networks, metadata, consoles, maps and error messages of services come from
people whom the reader need not trust. A terminal obeys control characters (ECMA-48: C0, C1),
and marks of direction (Unicode UAX #9) make a line look like another one;
https://nvd.nist.gov/vuln/detail/CVE-2021-42574 describes an attack with them.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

#: Kept in a text of several lines.
_BETWEEN_LINES: Final = "\n\t"
#: First characters that a spreadsheet takes for a formula; the wide forms as well.
#: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: Characters that a shell interprets between double quotes (POSIX.1-2017 XCU 2.2.3).
_IN_QUOTES: Final = re.compile(r'([$`"\\])')


def printable_text(text: str) -> str:
    """Put a text of others on one line, safe to print on a terminal or in a table cell.

    A character that a terminal obeys or does not show is replaced by its number, in JSON's
    notation: controls, line ends, marks of direction, characters without width, half surrogates.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape_character(letter) for letter in text)


def printable_lines(text: str) -> str:
    """Make a text printable like :func:`printable_text`, but keep line ends and tabs."""
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
    """Return a command line to be printed and copied into a shell; it runs exactly these words.

    A word with unprintable characters is shown in escaped form, and then means nothing.
    """
    return shlex.join(printable_text(word) for word in words)


def shell_value(text: str) -> str:
    """Return the text in double quotes; a shell reads it without executing any of it."""
    return '"' + _IN_QUOTES.sub(r"\\\1", printable_text(text)) + '"'


def sheet_cell(text: str) -> str:
    """Return the text of a CSV cell: printable, and not a formula.

    Spreadsheets show a text behind an apostrophe unchanged. A number stays one.
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
