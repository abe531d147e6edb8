# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration of services in the same way as the services.

oslo.config looks for ``nova.conf`` and ``nova-compute.conf``, then for the
directories ``nova.conf.d`` and ``nova-compute.conf.d``, each in ``~/.nova``, ``~``,
``/etc/nova`` and ``/etc``. ``--config-file`` replaces the files that it found and
``--config-dir`` the directories, each only its own kind. Every command that
needs the settings of a service uses this module.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
from oslo_config import cfg

from nova_hpc import conf
from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.tenancy.stage import erasers
from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology import roles
from nova_hpc.topology.model import Node
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.site import configured, include_files, settings, spec_entries
from nova_hpc_tools.site.configured import Configured
from nova_hpc_tools.site.layouts import Sections
from nova_hpc_tools.site.source_options import CONFIG_DIR, CONFIG_FILE

#: Both are empty unless a file sets them (nova/conf/pci.py of 32 to 34).
PCI: Final = [
    cfg.MultiStrOpt("alias", default=[], deprecated_name="pci_alias", deprecated_group="DEFAULT"),
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        deprecated_opts=[
            cfg.DeprecatedOpt("passthrough_whitelist", group="pci"),
            cfg.DeprecatedOpt("pci_passthrough_whitelist", group="DEFAULT"),
        ],
    ),
]
#: Nova's CPU power management (nova/conf/libvirt.py of 32 to 34).
CPU_POWER: Final = [
    cfg.BoolOpt("cpu_power_management", default=False),
    cfg.StrOpt("cpu_power_management_strategy", default="cpu_state"),
]
#: Nova's options (nova/conf/scheduler.py, compute.py and pci.py of 32 to 34) to which
#: ``configure`` adds values; without their defaults, because an unset option has no owner.
_NOVA: Final = {
    "DEFAULT": [cfg.StrOpt("compute_driver")],
    "filter_scheduler": [
        cfg.ListOpt("enabled_filters"),
        cfg.ListOpt("weight_classes"),
        cfg.MultiStrOpt("available_filters"),
    ],
    "scheduler": [cfg.IntOpt(settings.NOVA_LIMIT)],
    "compute": [cfg.StrOpt(name) for name in settings.CPU_SETS],
    "pci": PCI,
    "libvirt": CPU_POWER,
}
#: Nova's option with the address of its libvirt (nova/conf/libvirt.py of 32 to 34).
_LIBVIRT: Final = {"libvirt": [cfg.StrOpt("connection_uri", default="")]}
_PLACEMENT: Final = {"placement": [cfg.IntOpt(settings.PLACEMENT_LIMIT)]}
_FILES: Final = frozenset(settings.file_name(part) for part in settings.PARTS)


class ConfigError(Exception):
    """The configuration of a service cannot be read. The text contains the reason."""


def config_files_of(
    words: Sequence[str],
    prog: str = "nova-compute",
    project: str = "nova",
    more: Iterable[Path] = (),
) -> tuple[Path, ...]:
    """Return the configuration files that a service reads, in its order: a later one wins.

    :param words: ``--config-file=`` and ``--config-dir=`` of its command line.
    :param prog: the name of the service: nova-compute also reads ``nova-compute.conf``.
    :param more: files that do not exist yet; each has its place in its directory if the
        service reads that directory.
    :raises ConfigError: a directory in *words* does not exist.
    """
    paths: list[Path] = []
    new = tuple(more)
    # The order of oslo.config (ConfigOpts._parse_config_files): files that it finds come first.
    if not any(word.startswith(CONFIG_FILE) for word in words):
        paths += map(Path, cfg.find_config_files(project, prog))
    if not any(word.startswith(CONFIG_DIR) for word in words):
        for config_dir in cfg.find_config_dirs(project, prog):
            paths += _config_files_in(Path(config_dir), new)
    for word in words:
        if word.startswith(CONFIG_DIR):
            folder = Path(word.removeprefix(CONFIG_DIR))
            if not folder.is_dir():
                raise ConfigError(f"the configuration cannot be read: no directory {folder}")
            paths += _config_files_in(folder, new)
        else:
            paths.append(Path(word.removeprefix(CONFIG_FILE)))
    return tuple(paths)


def _config_files_in(folder: Path, more: Iterable[Path] = ()) -> list[Path]:
    """Return the files of a directory that oslo.config reads: all ``*.conf`` but hidden ones."""
    resolved_folder = folder.resolve()
    names = {path.name for path in more if path.parent.resolve() == resolved_folder}
    there = {*folder.glob("*.conf"), *(folder / name for name in names)}
    return [path for path in sorted(there) if not path.name.startswith(".")]


def load_options(
    paths: Iterable[Path], more: Mapping[str, Sequence[cfg.Opt]] | None = None
) -> cfg.ConfigOpts:
    """Load nova-hpc's options, and further ones, from configuration files.

    :param more: group -> options of the services themselves that are read, too.
    :raises ConfigError: a file cannot be read.
    """
    options = cfg.ConfigOpts()
    conf.register_all_options(options)
    # Nova's own option, with the default directory of the state files.
    options.register_opt(cfg.StrOpt("state_path", default="/var/lib/nova"))
    for group, opts in (more or {}).items():
        options.register_opts(opts, group=None if group == "DEFAULT" else group)
    try:
        options([], default_config_files=[str(path) for path in paths], default_config_dirs=[])
    except (cfg.Error, OSError, ValueError) as error:
        raise _build_config_error(error) from error
    return options


def read_node_options(words: Sequence[str], needed: Iterable[str]) -> cfg.ConfigOpts:
    """Load the configuration of this node's nova-compute.

    :param words: from :func:`source_options.add_config_options`.
    :param needed: options of group ``[hpc]`` that are used later.
    :raises ConfigError: it cannot be read, or one of these has no value that can be used.
    """
    options = load_options(config_files_of(words), {**_LIBVIRT, "pci": _NOVA["pci"]})
    check_option_values(options, "hpc", needed)
    return options


def role_table_of(entries: Sequence[str], node: Node, device_spec: Iterable[str] | None) -> Roles:
    """Build the table of roles for *node*. Default roles keep the names that its devices have.

    :param entries: ``[hpc]device_role``.
    :param device_spec: the present entries of ``[pci]device_spec``.
    :raises nova_hpc.topology.roles.RoleError: a bad entry.
    """
    role_table = roles.parse_roles(entries)
    if list(entries) != DEFAULT_ROLES:
        return role_table
    return configured.keep_names(role_table, node, device_spec or ())


def check_option_values(options: cfg.ConfigOpts, group: str, needed: Iterable[str]) -> None:
    """Read options now, so that a bad value does not fail later.

    :raises ConfigError: one of these options has no value that can be used.
    """
    try:
        for name in needed:
            getattr(options[group], name)
    except (cfg.Error, ValueError) as error:
        raise _build_config_error(error) from error


def _build_config_error(error: Exception) -> ConfigError:
    return ConfigError(f"the configuration cannot be read: {' '.join(str(error).split())}")


# --- settings to which configure adds ------------------------------------------


@attrs.frozen
class ServiceSettings:
    """The options of this machine's Nova services to which ``nova-hpc configure`` adds values.

    They are read from the services' configuration files. The file set by an operator and the file
    written by ``configure`` are kept apart.
    """

    #: ``[hpc]device_role`` without a declaration: *other_roles*, else the default. The roles in
    #: files of ``configure`` come from the declaration, so they do not count here.
    device_role: tuple[str, ...]
    nvlink_set: tuple[str, ...]
    #: ``[hpc]nvlink_backend``: the manager of this node's NVSwitches.
    nvlink_backend: str
    configured: Configured
    #: Addresses in ``[hpc]nvlink_gpus``.
    nvlink_gpus: tuple[str, ...] = ()
    #: ``[hpc]device_role`` of files of others; () if they do not set it.
    other_roles: tuple[str, ...] = ()
    #: ``[hpc]offer_anyway``, in lower case.
    anyway: frozenset[str] = frozenset()
    #: From the options in :data:`erasers.OPTIONS`.
    erasers: Erasers = attrs.field(factory=Erasers)
    #: The values of others for options that may be given several times.
    others: Sections = attrs.field(factory=dict, hash=False)


def read_service_settings(
    words: Sequence[str],
    folder: Path | None,
    placement: bool,
    merged: Mapping[str, str] | None = None,
) -> ServiceSettings:
    """Read the configuration to which ``configure`` adds values.

    :param words: from :func:`source_options.add_config_options`.
    :param folder: the folder of the output; files in it count even if no service reads that
        directory by default. None if the output is printed.
    :param placement: read Placement's configuration, too.
    :param merged: part -> text of ours that a deployment tool has merged into the files of the
        services. None if our text is in files of its own.
    :raises ConfigError: it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        if merged is None:
            return _read_settings_of_files(words, folder, placement)
        scratch_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nova-hpc-")))
        for part, text in merged.items():
            (scratch_folder / settings.file_name(part)).write_text(
                include_files.mark_as_owned(text), encoding="utf-8"
            )
        return _read_settings_of_files(words, scratch_folder, placement, is_merged=True)


def _read_settings_of_files(
    words: Sequence[str], folder: Path | None, placement: bool, is_merged: bool = False
) -> ServiceSettings:
    """Read the services' options three times: from our files, from the others, and from all.

    Options with one value come from all files together, because the last file wins. Options with
    several values are also read separately, so that ours are not taken for values of others.
    """
    paths = config_files_of(words)
    own_folder = None if folder is None else folder.resolve()
    own = [
        path
        for path in paths
        if own_folder in (None, path.parent.resolve()) and _is_written_by_configure(path)
    ]
    others = [path for path in paths if path not in own]
    if folder is not None and not own:
        # No service reads that directory by default, or it has no such file yet.
        own = [path for name in sorted(_FILES) if _is_written_by_configure(path := folder / name)]
    parts = {settings.file_name(part): part for part in settings.PARTS}
    our_options, theirs = _load_checked_options(own), _load_checked_options(others)
    all_of_it = _load_checked_options([*paths, *(path for path in own if path not in paths)])
    limits = {settings.NOVA_LIMIT: all_of_it.scheduler[settings.NOVA_LIMIT]}
    own_cache, other_cache = _read_cache_size(our_options), _read_cache_size(theirs)
    # A deployment tool copies our value into the file of others: that copy is ours.
    limits[settings.CACHE] = None if other_cache == own_cache else other_cache
    if placement:
        limits[settings.PLACEMENT_LIMIT] = _read_placement_limit(own)
    other_device_spec = spec_entries.split_entries(
        _values_without(theirs.pci.device_spec, our_options.pci.device_spec)
    )
    other_roles = tuple(theirs.hpc.device_role) if _has_roles(theirs) else ()
    if is_merged and _has_roles(our_options):
        other_roles = _values_without(other_roles, our_options.hpc.device_role)
    return ServiceSettings(
        device_role=tuple(dict.fromkeys(other_roles or DEFAULT_ROLES)),
        nvlink_set=tuple(dict.fromkeys(all_of_it.hpc.nvlink_set)),
        nvlink_backend=all_of_it.hpc.nvlink_backend,
        nvlink_gpus=tuple(all_of_it.hpc.nvlink_gpus.values()),
        configured=Configured(
            filters=_merge_list_option(theirs, our_options, "enabled_filters"),
            weighers=_merge_list_option(theirs, our_options, "weight_classes"),
            aliases=tuple(our_options.pci.alias or ()),
            other_aliases=_values_without(theirs.pci.alias, our_options.pci.alias),
            limits={name: value for name, value in limits.items() if value is not None},
            own_cache=own_cache,
            cpu_sets={
                name: value
                for name in settings.CPU_SETS
                if (value := all_of_it.compute[name]) is not None
            },
            switches_cpus_off=switches_cpus_off(all_of_it),
            device_spec=spec_entries.split_entries(all_of_it.pci.device_spec or ()),
            driver=all_of_it.compute_driver,
            own_device_spec=spec_entries.split_entries(our_options.pci.device_spec or ()),
            other_device_spec=other_device_spec,
            own_cpu_sets={
                name: value for name in settings.CPU_SETS if (value := our_options.compute[name])
            },
            files=frozenset(parts[path.name] for path in own),
        ),
        other_roles=other_roles,
        anyway=frozenset(word.strip().lower() for word in all_of_it.hpc.offer_anyway),
        erasers=erasers.find_erasers(all_of_it.hpc),
        others={
            "pci": {
                "alias": _values_without(theirs.pci.alias, our_options.pci.alias),
                "device_spec": other_device_spec,
            },
            "filter_scheduler": {
                "available_filters": _values_without(
                    theirs.filter_scheduler.available_filters,
                    our_options.filter_scheduler.available_filters,
                )
            },
            "hpc": {"device_role": other_roles},
        },
    )


def switches_cpus_off(options: cfg.ConfigOpts) -> bool:
    """Whether Nova switches dedicated CPUs off while no server has them.

    It then accepts each CPU that is present (nova/virt/libvirt/driver.py, _get_pcpu_available
    of 32 to 34); else a dedicated CPU has to be online.

    :param options: with ``[compute]`` and the options of :data:`CPU_POWER`.
    """
    libvirt = options.libvirt
    return bool(
        libvirt.cpu_power_management
        and libvirt.cpu_power_management_strategy == "cpu_state"
        and options.compute[settings.CPU_SETS[1]]
    )


def foreign_config_files(words: Sequence[str], folder: Path | None) -> list[Path]:
    """Return the configuration files of nova-compute that ``configure`` did not write.

    :param folder: the folder with files of this project.
    """
    own_folder = None if folder is None else folder.resolve()
    return [
        path
        for path in config_files_of(words)
        if not (own_folder in (None, path.parent.resolve()) and _is_written_by_configure(path))
    ]


def _values_without(theirs: Iterable[str] | None, ours: Iterable[str] | None) -> tuple[str, ...]:
    """Return the values of others, without ours: files merged by a tool have both."""
    return tuple(value for value in theirs or () if value not in (ours or ()))


def _load_checked_options(files: Sequence[Path]) -> cfg.ConfigOpts:
    options = load_options(files, _NOVA)
    check_option_values(
        options,
        "hpc",
        ("device_role", "nvlink_set", "offer_anyway", *erasers.OPTIONS, settings.CACHE),
    )
    for group, opts in _NOVA.items():
        if group == "DEFAULT":
            continue
        check_option_values(options, group, (opt.dest for opt in opts))
    return options


def _read_cache_size(options: cfg.ConfigOpts) -> int | None:
    """Return ``[hpc]cache_size`` from a file; None if no file sets it."""
    where = options.get_location(settings.CACHE, "hpc")
    if where is None or not where.location.is_user_controlled:
        return None
    value: int = options.hpc[settings.CACHE]
    return value


def _read_placement_limit(own: Iterable[Path]) -> int | None:
    """Read Placement's limit from the files that its API reads (placement/wsgi, _get_config_files).

    None if it is not set.
    """
    folder = os.environ.get("OS_PLACEMENT_CONFIG_DIR", "").strip()
    words = [f"--config-file={folder}/placement.conf"] if folder else []
    paths = config_files_of(words, "placement", "placement")
    options = load_options([*paths, *own], _PLACEMENT)
    check_option_values(options, "placement", (settings.PLACEMENT_LIMIT,))
    limit: int | None = options.placement[settings.PLACEMENT_LIMIT]
    return limit


def _is_written_by_configure(path: Path) -> bool:
    """Return whether ``nova-hpc configure`` wrote this file, by its name and its mark."""
    if path.name not in _FILES:
        return False
    try:
        text = include_files.read_plain_file(path)
    except include_files.IncludeError:
        return False
    return text is not None and include_files.has_project_mark(text)


def _merge_list_option(
    theirs: cfg.ConfigOpts, ours: cfg.ConfigOpts, name: str
) -> tuple[str, ...] | None:
    """Join the list of others with the list of ``configure``: the last file hides the first.

    None if neither sets the option.
    """
    first, second = theirs.filter_scheduler[name], ours.filter_scheduler[name]
    if first is None or second is None:
        values = first if second is None else second
        return None if values is None else tuple(values)
    if set(first) <= set(second):
        return tuple(second)
    return tuple(dict.fromkeys([*first, *second]))


def _has_roles(options: cfg.ConfigOpts) -> bool:
    where = options.get_location("device_role", "hpc")
    return where is not None and bool(where.location.is_user_controlled)
