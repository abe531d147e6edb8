# SPDX-License-Identifier: Apache-2.0
"""Which modules a service loads, followed through the imports of the code."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tools.wheels import read_entry_points, read_package_roots, read_wheels

PACKAGES = read_package_roots()
OF_ROOT = frozenset(read_wheels()["nova-hpc"].packages)
#: Packages that no service may load.
TYPED = ("nova_hpc_client", "nova_hpc_common.output", "nova_hpc_guest", "nova_hpc_tools")
TYPED += ("nova_hpc_blazar", "nova_hpc_requirements", "nova_hpc_simulate")
#: Entry points that services load.
OF_SERVICES = ("nova.api.extra_spec_validators", "nova_hpc.cleaners", "nova_hpc.checks")
OF_SERVICES += ("nova_hpc.nvlink_backends", "nova_hpc.subnet_managers", "oslo.config.opts")


def _modules() -> dict[str, Path]:
    found = {}
    for package, top in PACKAGES.items():
        for path in (top / package).rglob("*.py"):
            name = ".".join(path.relative_to(top).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def _base_of(module: str, node: ast.ImportFrom) -> str:
    """What ``from ... import`` imports from; the guest's command is packed, so it is relative."""
    if not node.level:
        return str(node.module)
    is_package = MODULES[module].name == "__init__.py"
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join((*parts, *filter(None, (node.module,))))


@functools.cache
def _imports(module: str) -> set[str]:
    """Names of the project's modules that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = _base_of(module, node)
            names = [f"{base}.{each.name}" for each in node.names]
            found |= {name if name in MODULES else base for name in names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    # A module loads the packages that it is in.
    found |= {module.rpartition(".")[0]}
    return found & MODULES.keys()


def _closure(starts: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    left = list(starts)
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += _imports(module)
    return seen


def _entry_points() -> set[str]:
    points = read_entry_points()
    return {place.partition(":")[0] for group in OF_SERVICES for place in points[group].values()}


SERVICES = {
    "Neutron's server and the fabric agent": {
        m for m in MODULES if m.startswith("neutron_drivers")
    },
    "nova-scheduler and nova-api": {m for m in MODULES if m.startswith("scheduler_filters")},
    "nova-compute": {m for m in MODULES if m.startswith("virt_driver_patches")},
    "what they find by name": _entry_points(),
    "what nova-compute runs": {"nova_hpc.tenancy.adapters.ebrctl"},
    "the stage's virtual machine": {m for m in MODULES if m.startswith("nova_hpc.tenancy.stage")},
}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_loads_none_of_the_tools(service: str) -> None:
    assert SERVICES[service]
    loaded = _closure(SERVICES[service])
    assert sorted(name for name in loaded if name.startswith(TYPED)) == []


def test_services_load_all_of_their_wheel() -> None:
    """The services' wheel is no place for code that only commands need."""
    loaded = _closure(module for starts in SERVICES.values() for module in starts)
    rest = {name for name in MODULES if name.partition(".")[0] in OF_ROOT} - loaded
    assert sorted(rest) == []


def test_the_guests_command_is_the_standard_library_alone() -> None:
    loaded = _closure(
        # The build of the wheel loads that one.
        {name for name in MODULES if name.startswith("nova_hpc_guest.")}
        - {"nova_hpc_guest.hatch_build"}
    )
    assert {name for name in loaded if not name.startswith("nova_hpc_guest")} == set()
    foreign = set()
    for module in loaded:
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                foreign |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                foreign.add(_base_of(module, node).partition(".")[0])
    assert foreign - sys.stdlib_module_names - {"nova_hpc_guest"} == set()
