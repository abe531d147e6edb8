# SPDX-License-Identifier: Apache-2.0
"""Engines: programs that carry an API of a GPU over the network, each a file of data.

``/etc/nova-hpc/gpu-engines/NAME.ini`` is the operator's and replaces the shipped file of that name.
An engine's programs come with the image; none is ever fetched from a share.
"""

from __future__ import annotations

import configparser
import pkgutil
import re
import shlex
import string
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..files import Root
from .port_rule import LIFELINE
from .records import ENGINE, RELEASE

FOLDER: Final = "/etc/nova-hpc/gpu-engines"
SHIPPED: Final = ("lupine", "pocl")
EXACT, SERIES = "exact", "series"
#: Fields that a file of data may contain.
_FIELDS: Final = frozenset({"address", "bind", "mib", "port"})
_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)+[0-9A-Za-z.+~-]*", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
_DEVICE: Final = re.compile(r"(?:char-[a-z0-9*_-]{1,40}|/dev/[A-Za-z0-9/_-]{1,60})", re.ASCII)
_KEYS: Final = ("name", "ports", "server", "release_file", "release", "match", "user", "devices")


class EngineError(ValueError):
    """An engine that cannot be used here; the text names it and a remedy."""


class Engine(NamedTuple):
    """One engine, as its file has it; texts have fields in braces."""

    name: str
    #: Words of the server's command.
    server: tuple[str, ...]
    #: Number of ports that the server takes.
    ports: int = 1
    #: A file of the image that contains the release; empty if *release* is set.
    release_file: str = ""
    release: str = ""
    match: str = EXACT
    user: str = "nova-hpc-gpu"
    devices: tuple[str, ...] = ()
    server_environment: Mapping[str, str] = {}
    client_environment: Mapping[str, str] = {}
    memory_environment: Mapping[str, str] = {}


def load_engine(root: Root, name: str) -> Engine:
    """Load the engine of this name: the operator's file, or the shipped one.

    :raises EngineError: there is none, or its file is wrong.
    """
    if not ENGINE.fullmatch(name):
        raise EngineError(f"{name!a} is no name of an engine")
    path = f"{FOLDER}/{name}.ini"
    data = root.read_own(path)
    if data is None and name in SHIPPED:
        path = f"the shipped {name}.ini"
        data = pkgutil.get_data(__package__ or "", f"engines/{name}.ini")
    if data is None:
        raise EngineError(f"there is no engine {name}: {path} is missing")
    engine = parse_engine(data.decode("utf-8", "replace"), path)
    if engine.name != name:
        raise EngineError(f"{path} says that it is the engine {engine.name}")
    return engine


def parse_engine(text: str, path: str) -> Engine:
    """Read the file of an engine.

    :param path: its name in errors.
    :raises EngineError: the text names the fault.
    """
    parser = configparser.RawConfigParser()
    # Names of environment variables differ in case.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise EngineError(f"{path}: {' '.join(str(error).split())}") from error
    if not parser.has_section("engine"):
        raise EngineError(f"{path} has no section [engine]")
    values = dict(parser.items("engine"))
    unknown = sorted(set(values) - set(_KEYS))
    if unknown:
        raise EngineError(f"{path}: {unknown[0]!a} is none of {', '.join(_KEYS)}")
    name, match, user = values.get("name", ""), values.get("match", EXACT), values.get("user")
    if not ENGINE.fullmatch(name):
        raise EngineError(f"{path}: name is {name!a}, and has to be one word in lower case")
    if match not in (EXACT, SERIES):
        raise EngineError(f"{path}: match is {match!a}, and not {EXACT} or {SERIES}")
    if user is not None and not _USER.fullmatch(user):
        raise EngineError(f"{path}: user is {user!a}, which is no name of a user")
    if values.get("ports", "1") not in [str(count) for count in range(1, LIFELINE + 1)]:
        raise EngineError(f"{path}: ports is {values['ports']!a}; a slot has 1 to {LIFELINE}")
    if not values.get("server", "").startswith("/"):
        raise EngineError(f"{path}: server has to begin with the path of a program")
    devices = tuple(values.get("devices", "").split())
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise EngineError(f"{path}: {device!a} is no device as DeviceAllow= takes it")
    release, file = values.get("release", ""), values.get("release_file", "")
    if bool(release) == bool(file) or (release and not RELEASE.fullmatch(release)):
        raise EngineError(f"{path} has to have either release, a number, or release_file")
    try:
        server = tuple(shlex.split(values["server"]))
    except ValueError as error:
        raise EngineError(f"{path}: server: {error}") from error
    for word in server:
        _check_fields(path, "server", word)
    return Engine(
        name,
        server,
        int(values.get("ports", "1")),
        file,
        release,
        match,
        user or "nova-hpc-gpu",
        devices,
        *(_read_environment(parser, path, part) for part in ("server", "client", "memory")),
    )


def _read_environment(
    parser: configparser.RawConfigParser, path: str, part: str
) -> Mapping[str, str]:
    section = f"{part} environment"
    found = dict(parser.items(section)) if parser.has_section(section) else {}
    for variable, value in found.items():
        if not _VARIABLE.fullmatch(variable) or not value.isprintable():
            raise EngineError(f"{path}: [{section}] has the wrong variable {variable!a}")
        _check_fields(path, variable, value)
    return found


def _check_fields(path: str, where: str, text: str) -> None:
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}
    except ValueError as error:
        raise EngineError(f"{path}: {where}: {error}") from error
    unknown = sorted(fields - _FIELDS)
    if unknown:
        raise EngineError(
            f"{path}: {where}: {{{unknown[0]}}} is none of {', '.join(sorted(_FIELDS))}"
        )


def fill_environment(environment: Mapping[str, str], **fields: object) -> dict[str, str]:
    """Fill in the fields of the variables; a variable with an unknown field is left out."""
    filled = {}
    for variable, value in environment.items():
        try:
            filled[variable] = value.format(**fields)
        except (KeyError, IndexError):
            continue
    return filled


def find_release(root: Root, engine: Engine) -> str:
    """Find the release of an engine that is installed here.

    :raises EngineError: it is not installed, or its file contains no release.
    """
    if engine.release:
        return engine.release
    text = root.text(engine.release_file)
    if text is None:
        raise EngineError(
            f"the engine {engine.name} is not part of this image: {engine.release_file} is missing"
        )
    match = _NUMBERS.search(text)
    if match is None or not RELEASE.fullmatch(match[0]):
        raise EngineError(f"{engine.release_file} says no release of the engine {engine.name}")
    return match[0]


def explain_release_difference(engine: str, match: str, share: str, client: str) -> str | None:
    """Explain why two guests with these releases do not match; None if they do.

    :param match: the engine's rule: the same release, or the same series.
    """
    same = share == client
    if match == SERIES:
        same = share.split(".")[:2] == client.split(".")[:2]
    if same:
        return None
    return (
        f"the share has release {share} of the engine {engine} and the client {client}: "
        "start both from images with one release"
    )
