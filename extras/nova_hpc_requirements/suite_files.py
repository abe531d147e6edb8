# SPDX-License-Identifier: Apache-2.0
"""The configuration of NVIDIA's validation suite for this project's steps.

A file of it imports one of the suite's own lists of checks, and names the command of each step. The
suite's guide to its configuration describes the format (ai-cloud-validation 0.11.0,
``docs/guides/configuration.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from nova_hpc_common.outside.text import printable_text

#: Path of the lists of checks in a checkout.
SUITES: Final = Path("isvctl", "configs", "suites")
_COMMAND: Final = "nova-hpc requirements step"
_LAUNCHED: Final = "{{steps.launch_instance."
_SERVER: Final = ("--server", f"{_LAUNCHED}instance_id}}}}")
_KEY: Final = ("--key-file", f"{_LAUNCHED}key_file}}}}")
#: Seconds.
_LIMIT: Final = 1800


class SuiteFileError(Exception):
    """The configuration files for the suite cannot be written. The text names the cure."""


@attrs.frozen
class SuiteWishes:
    """The user's values for the suite's configuration files."""

    suite: Path
    flavor: str
    image: str
    network: str = ""
    ssh_user: str = ""
    cluster: str = ""
    #: Step or document -> file with its saved output.
    files: Mapping[str, Path] = attrs.field(factory=dict, hash=False)
    physical_networks: tuple[str, ...] = ()
    #: Nova's configuration, as ``add_config_options`` leaves it.
    config: tuple[str, ...] = ()


def write_suite_files(wishes: SuiteWishes, folder: Path) -> list[Path]:
    """Write a configuration file for each of NVIDIA's suites.

    :returns: their paths.
    :raises SuiteFileError: it cannot be done.
    """
    suites = (wishes.suite / SUITES).resolve()
    if not (suites / "vm.yaml").is_file():
        raise SuiteFileError(
            f"{printable_text(str(wishes.suite))} is no checkout of NVIDIA/ai-cloud-validation: "
            f"it has no {SUITES}/vm.yaml"
        )
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, config in build_suite_configs(wishes, suites).items():
            path = folder / f"nova-hpc-{name}.yaml"
            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            path.write_text(text, encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise SuiteFileError(f"{error.filename or folder}: {error.strerror}") from error
    return paths


def build_suite_configs(wishes: SuiteWishes, suites: Path) -> dict[str, dict[str, Any]]:
    """Build the configuration of each suite: name of the suite -> its JSON object.

    :param suites: the folder with the suite's own lists of checks.
    """
    return {
        "vm": _build_config("vm", suites, "vm", _list_vm_steps(wishes)),
        "network": _build_config("network", suites, "network", _list_network_steps()),
        "security": _build_config("security", suites, "security", _list_capacity_steps(wishes)),
        "bare_metal": _build_config("bare_metal", suites, "bare_metal", _list_fleet_steps(wishes)),
    }


def _build_config(
    name: str, suites: Path, group: str, steps: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "import": [str(suites / f"{name}.yaml")],
        "version": "1.0",
        "commands": {group: {"phases": ["setup", "test", "teardown"], "steps": steps}},
        "tests": {
            "cluster_name": f"nova-hpc-{name.replace('_', '-')}",
            "description": f"OpenStack with nova-hpc: {name.replace('_', ' ')}",
            "settings": {"region": "", "min_resources": 1},
        },
    }


def _build_step(name: str, phase: str, *args: str, keep_on: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "phase": phase,
        "command": f"{_COMMAND} {name}",
        "args": list(args),
        "timeout": _LIMIT,
        # A step that fails proves nothing about the others.
        "continue_on_failure": keep_on,
    }


def _list_vm_steps(wishes: SuiteWishes) -> list[dict[str, Any]]:
    login = _pair("--ssh-user", wishes.ssh_user)
    made = ("--flavor", wishes.flavor, "--image", wishes.image)
    own = (*_SERVER, *_KEY, *login)
    return [
        _build_step(
            "launch_instance",
            "setup",
            *made,
            *_pair("--network", wishes.network),
            *login,
            keep_on=False,
        ),
        _build_step("list_instances", "test", *_SERVER),
        _build_step("verify_tags", "test", *_SERVER),
        _build_step("serial_console", "test", *_SERVER),
        _build_step("console_rbac", "test", *_SERVER),
        _build_step("component_key_access", "test", *_SERVER),
        *_list_recorded(wishes, "virtual_device_hardening"),
        _build_step("stop_instance", "test", *_SERVER),
        _build_step("start_instance", "test", *own),
        _build_step("reboot_instance", "test", *own),
        _build_step("describe_instance", "test", *own),
        _build_step(
            "teardown",
            "teardown",
            *_SERVER,
            *_KEY,
            *("--key-name", f"{_LAUNCHED}key_name}}}}"),
            *("--security-group", f"{_LAUNCHED}security_group_id | default('', true)}}}}"),
        ),
    ]


def _list_network_steps() -> list[dict[str, Any]]:
    return [
        _build_step("backend_switch_fabric", "test"),
        _build_step("nvlink_domain", "test"),
    ]


def _list_capacity_steps(wishes: SuiteWishes) -> list[dict[str, Any]]:
    steps = [_build_step("capacity_reservation_grouping", "test", *wishes.config)]
    if wishes.cluster:
        name = "topology_block_atomic_allocation"
        steps.append(_build_step(name, "test", "--cluster", wishes.cluster))
    return steps


def _list_fleet_steps(wishes: SuiteWishes) -> list[dict[str, Any]]:
    steps = [_build_step("query_host_health", "test", *wishes.config)]
    if wishes.physical_networks:
        names = [word for name in wishes.physical_networks for word in ("--physical-network", name)]
        steps.append(_build_step("query_ib_tenant_isolation", "test", *names))
    steps += _list_recorded(wishes, "fabric_check", "query_ib_keys")
    steps += _list_recorded(wishes, "topology_placement")
    steps += _list_recorded(wishes, "query_sanitization")
    return steps


def _list_recorded(wishes: SuiteWishes, source: str, name: str = "") -> list[dict[str, Any]]:
    """Return the step that prints a recorded file; [] if no file is given."""
    file = wishes.files.get(source)
    if file is None:
        return []
    return [_build_step(name or source, "test", "--from", str(file.resolve()))]


def _pair(option: str, value: str) -> tuple[str, ...]:
    return (option, value) if value else ()
