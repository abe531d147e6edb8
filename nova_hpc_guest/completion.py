# SPDX-License-Identifier: Apache-2.0
"""Completion of a program's commands and options in bash and zsh.

Both shells read the same script. It needs no package of theirs, such as bash-completion.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

# path, words and options are variables of zsh itself.
_SCRIPT: Final = """\
_{name}_offers()
{{
  local typed="$1" at='' word names={names} flags={flags}
  shift
  for word in "$@"; do
    case "$at $word" in
{cases}
      *) break;;
    esac
    at="$at $word"
  done
  case "$typed" in -*) echo "$flags";; *) echo "$names";; esac
}}
if [ -n "$ZSH_VERSION" ]; then
  typeset -f compdef >/dev/null || {{ autoload -Uz compinit; compinit; }}
  _{name}()
  {{
    compadd -- $(_{name}_offers "${{words[CURRENT]}}" "${{(@)words[2,CURRENT-1]}}") || _files
  }}
  compdef _{name} {program}
else
  _{name}()
  {{
    local typed="${{COMP_WORDS[COMP_CWORD]}}"
    COMPREPLY=($(compgen -W "$(_{name}_offers "$typed" "${{COMP_WORDS[@]:1:COMP_CWORD-1}}")" \\
      -- "$typed"))
  }}
  complete -o default -F _{name} {program}
fi
"""


def format_completion(program: str, commands: Mapping[str, Iterable[str]]) -> str:
    """Return the script that a shell evaluates: ``source <(PROGRAM complete)``.

    :param commands: words of a command, separated by spaces -> its options, and words that may
        follow. The empty text stands for the program without a command.
    """
    offers: dict[str, set[str]] = {"": set()}
    for command, following in commands.items():
        words = command.split()
        offers.setdefault(command, set()).update(following)
        for count, word in enumerate(words):
            offers.setdefault(" ".join(words[:count]), set()).add(word)
    cases = (
        "      {}) names={} flags={};;".format(shlex.quote(f" {command}"), *_split(offered))
        for command, offered in sorted(offers.items())
        if command
    )
    names, flags = _split(offers[""])
    return _SCRIPT.format(
        name=program.replace("-", "_"),
        program=program,
        names=names,
        flags=flags,
        cases="\n".join(cases),
    )


def _split(offered: Iterable[str]) -> tuple[str, str]:
    flags = sorted(word for word in offered if word.startswith("-"))
    names = sorted(word for word in offered if not word.startswith("-"))
    return shlex.quote(" ".join(names)), shlex.quote(" ".join(flags))


def list_option_words(actions: Iterable[argparse.Action]) -> list[str]:
    """Return the options of a parser, and the words of its positional arguments with choices."""
    return [
        str(word)
        for action in actions
        if action.help != argparse.SUPPRESS
        for word in action.option_strings or action.choices or ()
    ]


def list_parser_words(parser: argparse.ArgumentParser, at: str = "") -> dict[str, list[str]]:
    """Return each command below a parser -> its options and words."""
    words = {at: list_option_words(parser._actions)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                words.update(list_parser_words(below, f"{at} {name}".strip()))
    return words


def add_completion(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add the subcommand ``complete`` to a parser.

    :param commands: the parser's subparsers.
    """
    completer = commands.add_parser(
        "complete",
        help="print the script with which bash and zsh complete commands and options",
        epilog="Use it so: source <(nova-hpc-guest complete)",
    )
    completer.set_defaults(
        complete=lambda: format_completion(parser.prog, list_parser_words(parser)).splitlines()
    )
