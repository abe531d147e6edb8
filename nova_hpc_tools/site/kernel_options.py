# SPDX-License-Identifier: Apache-2.0
"""Options of the kernel and its modules, from the files that the kernel and kmod read.

Words of the command line come from the running kernel, and from the boot loader's files for the
next start. Options of modules come from ``modprobe.d`` (modprobe.d(5)).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology.files import FileError, FileTree

RUNNING: Final = "/proc/cmdline"
#: Files with words of the next command line, in addition to GRUB's.
_NEXT: Final = ("etc/kernel/cmdline", "etc/cmdline", "etc/cmdline.d/*.conf")
_GRUB: Final = ("etc/default/grub", "etc/default/grub.d/*.cfg")
_ASSIGNED: Final = re.compile(r"^\s*(?:export\s+)?GRUB_CMDLINE_LINUX(?:_DEFAULT)?=(.*)$", re.M)
#: The folders of kmod; a file hides files of the same name in later folders.
_MODPROBE: Final = (
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
)
_TRUE: Final = ("1", "y", "yes", "on", "true")
_LONGEST: Final = 40


@attrs.frozen
class KernelOption:
    """One option of the kernel's command line or of modprobe, and the place where it is set."""

    #: With ``_`` for ``-``, which are the same for the kernel. Of a module ``module.option``.
    name: str
    #: "" if it has none.
    value: str
    #: ``/proc/cmdline``, or ``/etc/modprobe.d/vfio.conf:3``.
    place: str
    #: The unchanged text, for people.
    text: str

    @property
    def is_true(self) -> bool:
        """Whether the kernel reads the value as true (``kstrtobool``); no value is true."""
        return not self.value or self.value.lower() in _TRUE


@attrs.frozen
class KernelOptions:
    """The kernel options of this host, now and after the next boot."""

    options: tuple[KernelOption, ...] = ()
    #: Features that run now -> the file and value that show it.
    features: tuple[tuple[str, str], ...] = ()
    #: Files that exist and cannot be read, each with the reason.
    unread: tuple[str, ...] = ()

    def named(self, name: str) -> list[KernelOption]:
        """Return the options of that name, in the order in which the kernel reads them."""
        return [option for option in self.options if option.name == name]


def split_command_line(text: str) -> list[str]:
    """Split a command line into words: quotes keep spaces, and ``--`` ends the kernel's words."""
    words: list[str] = []
    for match in re.finditer(r'(?:"[^"]*"?|[^\s"])+', text):
        if match[0] == "--":
            break
        words.append(match[0])
    return words


def read_kernel_options(root: Path | None, own: Collection[str] = ()) -> KernelOptions:
    """Read the kernel options of the host below *root*; missing files contribute nothing.

    :param root: the folder with the host's files; None if unknown.
    :param own: files below it that this project writes; their words are not the operator's.
    """
    if root is None:
        return KernelOptions()
    unread: list[str] = []
    options: list[KernelOption] = []
    for name in _modprobe_files(root):
        options += _module_options(name, _read(root, name, unread))
    for name, words in _command_lines(root, own, unread):
        options += [_option_of(word, name, word) for word in words]
    return KernelOptions(tuple(options), tuple(_features(root, unread)), tuple(unread))


def _read(root: Path, path: str, unread: list[str]) -> str:
    try:
        return FileTree(root).text(path) or ""
    except FileError as error:
        unread.append(str(error))
        return ""


def _command_lines(
    root: Path, own: Collection[str], unread: list[str]
) -> Iterator[tuple[str, list[str]]]:
    yield RUNNING, split_command_line(_read(root, RUNNING, unread))
    for path in _files(root, _NEXT):
        lines = _read(root, path, unread).splitlines()
        text = " ".join(line for line in lines if not line.lstrip().startswith("#"))
        yield path, split_command_line(text)
    for path in _files(root, _GRUB):
        if path.lstrip("/") in own:
            continue
        for match in _ASSIGNED.finditer(_read(root, path, unread)):
            try:
                value = " ".join(shlex.split(match[1], comments=True))
            except ValueError:
                unread.append(f"{path}: {match[0].strip()[:_LONGEST]!r} cannot be read")
                continue
            yield path, split_command_line(value)


def _files(root: Path, patterns: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            yield f"/{path.relative_to(root)}"


def _modprobe_files(root: Path) -> Iterator[str]:
    by_name: dict[str, str] = {}
    for folder in _MODPROBE:
        for path in _files(root, [f"{folder}/*.conf"]):
            by_name.setdefault(path.rpartition("/")[2], path)
    for name in sorted(by_name):
        yield by_name[name]


def _module_options(path: str, text: str) -> Iterator[KernelOption]:
    number = 0
    for line in re.sub(r"\\\n", " \0", text).splitlines():
        number += 1
        words = line.replace("\0", " ").split()
        if len(words) > 2 and words[0] == "options":
            for word in words[2:]:
                yield _option_of(f"{words[1]}.{word}", f"{path}:{number}", " ".join(words))
        number += line.count("\0")


def parse_word(word: str) -> KernelOption:
    """Parse one word of a command line into an option."""
    return _option_of(word, "", word)


def _option_of(word: str, place: str, text: str) -> KernelOption:
    name, _, value = word.replace('"', "").partition("=")
    return KernelOption(name.replace("-", "_"), value, place, text)


#: Feature -> the file of the kernel that contains a true value while it runs.
_FEATURES: Final = (("SEV-SNP", "/sys/module/kvm_amd/parameters/sev_snp"),)


def _features(root: Path, unread: list[str]) -> Iterator[tuple[str, str]]:
    for feature, path in _FEATURES:
        value = _read(root, path, unread).strip()
        if value.lower() in _TRUE:
            yield feature, f"{path} is {value}"
