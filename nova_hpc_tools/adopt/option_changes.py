# SPDX-License-Identifier: Apache-2.0
"""The options of a service, before and after files are written: values, not lines.

oslo.config itself reads the files in the service's own order, once with the present files of
this project and once with the new ones. So a value that a later file hides is not a change, and
a value of an earlier file that becomes hidden is a loss.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from oslo_config import cfg

from nova_hpc import conf
from nova_hpc_tools.adopt import foreign_lines
from nova_hpc_tools.site import include_files, service_settings, settings

#: Options that are lists, and options that may be given several times: they are compared
#: value by value. Nova's names and defaults: nova/conf/scheduler.py and pci.py of 32 to 34.
_LISTS: Final = ("enabled_filters", "weight_classes")
_SEVERAL: Final = ("alias", "device_spec", "available_filters")
_OLD: Final[Mapping[str, Sequence[cfg.DeprecatedOpt]]] = {
    "alias": [cfg.DeprecatedOpt("pci_alias", group="DEFAULT")],
    "device_spec": [
        cfg.DeprecatedOpt("passthrough_whitelist", group="pci"),
        cfg.DeprecatedOpt("pci_passthrough_whitelist", group="DEFAULT"),
    ],
}

#: Group and name of an option.
Option = tuple[str, str]
#: None if no file sets the option.
Values = Mapping[Option, tuple[str, ...] | None]


@attrs.frozen
class OptionChange:
    """A change of the value of one option for a service: its values before and after."""

    option: Option
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None

    def lines(self) -> Iterator[str]:
        """Yield the change as lines for people, such as ``[group]name: old -> new``."""
        group, name = self.option
        head = f"[{group}]{name}"
        if name not in (*_LISTS, *_SEVERAL, "device_role"):
            yield (
                f"{head}: {_format_option_value(self.before)} -> {_format_option_value(self.after)}"
            )
            return
        before, after = self.before or (), self.after or ()
        gone = [value for value in before if value not in after]
        new = [value for value in after if value not in before]
        yield from (f"{head}: - {value}" for value in gone)
        yield from (f"{head}: + {value}" for value in new)
        if not gone and not new:
            yield f"{head}: in another order: {', '.join(after)}"


def _format_option_value(value: tuple[str, ...] | None) -> str:
    return "not set" if value is None else ", ".join(value)


@attrs.frozen
class ConfiguredService:
    """A service whose configuration files are compared before and after a change."""

    #: Its name in messages.
    name: str
    prog: str
    project: str
    words: tuple[str, ...] = ()

    def files(self, paths: Iterable[Path] = ()) -> tuple[Path, ...]:
        """Return the configuration files that the service would read if *paths* existed."""
        return service_settings.config_files_of(self.words, self.prog, self.project, paths)


def find_option_changes(
    service: ConfiguredService, files: Mapping[Path, tuple[str | None, str | None]]
) -> list[OptionChange]:
    """Return the options of the service that change when *files* are written.

    :param files: path -> text before and after; None if the file does not exist. A directory
        that the service does not read by default counts as the last that it reads.
    :raises nova_hpc_tools.site.service_settings.ConfigError: its configuration cannot be read.
    """
    pairs = sorted(
        {pair for texts in files.values() for text in texts for pair in _find_set_options(text)}
    )
    if not pairs:
        return []
    before = _read_service_options(service, {path: old for path, (old, _) in files.items()}, pairs)
    after = _read_service_options(service, {path: new for path, (_, new) in files.items()}, pairs)
    return [
        OptionChange(pair, before[pair], after[pair])
        for pair in pairs
        if before[pair] != after[pair]
    ]


def find_hidden_options(service: ConfiguredService, files: Mapping[Path, str]) -> list[str]:
    """Find options of *files* that another file, read later, sets to another value.

    :returns: one refusal each, with the line that wins.
    :raises nova_hpc_tools.site.service_settings.ConfigError: its configuration cannot be read.
    """
    refusals = []
    others = [path for path in service.files(files) if path not in files]
    for path, text in files.items():
        pairs = sorted(set(_find_set_options(text)))
        alone, told = (
            _read_option_values((_Draft(text),), pairs),
            _read_service_options(service, dict(files), pairs),
        )
        for group, name in pairs:
            own_values, theirs = alone[group, name], told[group, name]
            if own_values is not None and not set(own_values) <= set(theirs or ()):
                line = foreign_lines.find_option_line(group, name, others)
                if line and include_files.has_project_mark(
                    include_files.read_text_or_empty(line.path)
                ):
                    continue  # The run that writes that file corrects it.
                refusals.append(
                    f"{line or 'a file of yours'}: [{group}]{name} is read after {path} and "
                    f"hides it, so {service.name} would use {_format_option_value(theirs)}: "
                    f"remove {line.place if line else 'that line'} in your configuration "
                    f"management, or start {service.name} with --config-dir {path.parent} "
                    "behind that file, and run this command again"
                )
    return refusals


# --- reading ------------------------------------------------------------------------------


@attrs.frozen
class _Draft:
    """The text of a file that was not written yet, for oslo.config's parser."""

    text: str


def _find_set_options(text: str | None) -> Iterator[Option]:
    """Yield the options that a configuration text sets, as (group, name)."""
    for group, pairs in parse_config_sections(text or "").items():
        for name in pairs:
            yield (group, name)


def parse_config_sections(text: str) -> dict[str, dict[str, list[str]]]:
    """Parse a configuration text: group -> option -> its values, unchanged."""
    by_group: dict[str, dict[str, list[str]]] = {}
    _parse_into_sections(text, by_group)
    return by_group


def _parse_into_sections(text: str, sections: dict[str, dict[str, list[str]]]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        try:
            cfg.ConfigParser(stream.name, sections).parse()
        except cfg.ParseError:
            sections.clear()  # a broken text sets no option


def _read_service_options(
    service: ConfiguredService, texts: Mapping[Path, str | None], pairs: Sequence[Option]
) -> Values:
    there = {path.resolve(): text for path, text in texts.items()}
    new = [path for path, text in texts.items() if text is not None]
    paths: list[Path | _Draft] = []
    seen = set()
    for path in service.files(new):
        place = path.resolve()
        seen.add(place)
        if place not in there:
            paths.append(path)
        elif (text := there[place]) is not None:
            paths.append(_Draft(text))
    paths += [_Draft(text) for path, text in there.items() if path not in seen and text is not None]
    return _read_option_values(paths, pairs)


def _read_option_values(paths: Iterable[Path | _Draft], pairs: Sequence[Option]) -> Values:
    more: dict[str, list[Any]] = {}
    project_options = {(group, opt.dest) for group, opts in conf.list_opts() for opt in opts}
    for group, name in pairs:
        if (group, name) not in project_options:
            more.setdefault(group, []).append(_declare_option(name))
    with tempfile.TemporaryDirectory(prefix="nova-hpc-") as folder:
        files = []
        for number, path in enumerate(paths):
            if isinstance(path, _Draft):
                file = Path(folder, f"{number}.conf")
                file.write_text(path.text, encoding="utf-8")
                files.append(file)
            else:
                files.append(path)
        options = service_settings.load_options(files, more)
        return {pair: _value_of_option(options, pair) for pair in pairs}


def _declare_option(name: str) -> Any:
    if name in _LISTS:
        return cfg.ListOpt(name)
    if name in _SEVERAL:
        return cfg.MultiStrOpt(name, deprecated_opts=list(_OLD.get(name, ())))
    return cfg.StrOpt(name)


def _value_of_option(options: Any, pair: Option) -> tuple[str, ...] | None:
    group, name = pair
    try:
        section = options if group == "DEFAULT" else options[group]
        where = options.get_location(name, None if group == "DEFAULT" else group)
        value = section[name]
    except (cfg.Error, ValueError) as error:
        raise service_settings.ConfigError(f"[{group}]{name} cannot be read: {error}") from error
    if value is None or where is None or not where.location.is_user_controlled:
        return None
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)


def services_by_part(words: Sequence[str]) -> dict[str, ConfiguredService]:
    """Return part of the settings -> the service that reads it.

    :param words: ``--config-file=`` and ``--config-dir=`` of the command, only for Nova.
    """
    compute = ConfiguredService("nova-compute", "nova-compute", "nova", tuple(words))
    controller = ConfiguredService("the controllers", "nova-scheduler", "nova", tuple(words))
    # The same lookup as in Placement's API (placement/wsgi, _get_config_files).
    folder = os.environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    own = (f"--config-file={folder}/placement.conf",) if folder else ()
    placement = ConfiguredService("Placement", "placement", "placement", own)
    return {
        settings.COMMON: compute,
        settings.COMPUTE: compute,
        settings.CONTROLLER: controller,
        settings.PLACEMENT: placement,
    }
