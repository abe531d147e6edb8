"""What Nova's and Placement's services are told now, for ``nova-hpc configure``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs
from oslo_config import cfg

from nova_hpc.cli import include_files, node_config
from nova_hpc.offer import settings
from nova_hpc.offer.configured import Configured, HeldBack

#: Nova's options (nova/conf/scheduler.py, compute.py and pci.py of 32 to 34) that are
#: added to, without their defaults: what is not set belongs to nobody.
_NOVA: Final = {
    "filter_scheduler": [cfg.ListOpt("enabled_filters"), cfg.ListOpt("weight_classes")],
    "scheduler": [cfg.IntOpt(settings.NOVA_LIMIT)],
    "compute": [cfg.StrOpt(name) for name in settings.CPU_SETS],
    "pci": [
        cfg.MultiStrOpt("alias", deprecated_name="pci_alias", deprecated_group="DEFAULT"),
        cfg.MultiStrOpt(
            "device_spec",
            deprecated_opts=[
                cfg.DeprecatedOpt("passthrough_whitelist", group="pci"),
                cfg.DeprecatedOpt("pci_passthrough_whitelist", group="DEFAULT"),
            ],
        ),
    ],
}
_PLACEMENT: Final = {"placement": [cfg.IntOpt(settings.PLACEMENT_LIMIT)]}
_FILES: Final = frozenset(settings.file_name(part) for part in settings.PARTS)


@attrs.frozen
class Told:
    """What the services of this machine are told now."""

    device_role: tuple[str, ...]
    nvlink_set: tuple[str, ...]
    configured: Configured


def read(words: Sequence[str], folder: Path | None, placement: bool) -> Told:
    """Read the configuration that is added to.

    :param words: as :func:`node_config.add_options` leaves them.
    :param folder: where files are written; those that are there count even where no
        service reads that directory by itself. None: they are printed.
    :param placement: read that of Placement, too.
    :raises node_config.ConfigError: it cannot be read.
    """
    files = node_config.files(words)
    here = None if folder is None else folder.resolve()
    own = [path for path in files if here in (None, path.parent.resolve()) and _own(path)]
    others = [path for path in files if path not in own]
    if folder is not None and not own:
        # No service reads that directory by itself, or nothing is there yet.
        own = [path for name in sorted(_FILES) if _own(path := folder / name)]
    mine, theirs = _load(own), _load(others)
    all_of_it = _load([*files, *(path for path in own if path not in files)])
    limits = {settings.NOVA_LIMIT: all_of_it.scheduler[settings.NOVA_LIMIT]}
    if placement:
        limits[settings.PLACEMENT_LIMIT] = _placement(own)
    return Told(
        device_role=tuple(all_of_it.hpc.device_role),
        nvlink_set=tuple(all_of_it.hpc.nvlink_set),
        configured=Configured(
            filters=_both(theirs, mine, "enabled_filters"),
            weighers=_both(theirs, mine, "weight_classes"),
            aliases=tuple(mine.pci.alias or ()),
            other_aliases=tuple(theirs.pci.alias or ()),
            limits={name: value for name, value in limits.items() if value is not None},
            cpu_sets={
                name: value
                for name in settings.CPU_SETS
                if (value := all_of_it.compute[name]) is not None
            },
            device_spec=tuple(all_of_it.pci.device_spec or ()),
            device_role=tuple(mine.hpc.device_role) if _has_roles(mine) else (),
            held_back=_held_back(own),
        ),
    )


def _load(files: Sequence[Path]) -> cfg.ConfigOpts:
    options = node_config.load(files, _NOVA)
    node_config.check(options, "hpc", ("device_role", "nvlink_set"))
    for group, opts in _NOVA.items():
        node_config.check(options, group, (opt.dest for opt in opts))
    return options


def _placement(own: Iterable[Path]) -> int | None:
    """Placement's limit, from where its API reads it (placement/wsgi, _get_config_files)."""
    folder = os.environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    words = [f"--config-file={folder}/placement.conf"] if folder else []
    files = node_config.files(words, "placement", "placement")
    options = node_config.load([*files, *own], _PLACEMENT)
    node_config.check(options, "placement", (settings.PLACEMENT_LIMIT,))
    limit: int | None = options.placement[settings.PLACEMENT_LIMIT]
    return limit


def _own(path: Path) -> bool:
    """Whether ``configure`` wrote this file."""
    if path.name not in _FILES:
        return False
    try:
        text = include_files.read(path)
    except include_files.IncludeError:
        return False
    return text is not None and include_files.is_owned(text)


def _both(theirs: cfg.ConfigOpts, mine: cfg.ConfigOpts, name: str) -> tuple[str, ...] | None:
    """A list as others and ``configure`` have set it: the last file would hide theirs."""
    first, second = theirs.filter_scheduler[name], mine.filter_scheduler[name]
    if first is None or second is None:
        found = first if second is None else second
        return None if found is None else tuple(found)
    if set(first) <= set(second):
        return tuple(second)
    return tuple(dict.fromkeys([*first, *second]))


def _has_roles(options: cfg.ConfigOpts) -> bool:
    where = options.get_location("device_role", "hpc")
    return where is not None and bool(where.location.is_user_controlled)


def _held_back(own: Iterable[Path]) -> HeldBack | None:
    for path in own:
        if path.name == settings.file_name(settings.COMPUTE):
            return HeldBack.of(include_files.read(path) or "")
    return None
