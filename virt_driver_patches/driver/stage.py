# SPDX-License-Identifier: Apache-2.0
"""The stage between two servers, built from ``[hpc]clean_*``."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from nova.virt import hardware
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Specs
from nova_hpc.tenancy import forbidden_vpd
from nova_hpc.tenancy.forbidden import ForbiddenDevices, answers_beside
from nova_hpc.tenancy.hygiene.step import HygieneStep
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.stage import binding, erasers
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.domain import ServiceVmMachine
from nova_hpc.tenancy.stage.host import HostRunner
from nova_hpc.tenancy.stage.runner import ServiceVmRunner
from nova_hpc.tenancy.stage.step import StageStep
from nova_hpc.topology import roles
from nova_hpc.wire import tags
from virt_driver_patches import privileged

LOG = logging.getLogger(__name__)

_URI: Final = "qemu:///system"


class OptionError(Exception):
    """An option of the stage is unusable; the text names it and the cure."""


def expect_none(conf: Any) -> None:
    """Refuse a stage on a node that does not clean devices.

    :raises OptionError: a role has a stage.
    """
    if any(word != StageMode.NONE.value for word in conf.hpc.clean_stage.values()):
        raise OptionError("[hpc]clean_stage needs [hpc]clean_devices, which is off")


def check_roles(conf: Any, specs: Specs) -> None:
    """Refuse options of the stage that name a role which no device can have.

    A mistyped role would silently leave the devices of the intended role uncleaned.
    Devices can have the roles of ``[hpc]device_role`` and of the entries of
    ``[pci]device_spec``.

    :raises OptionError: an option does; the text names the option, the role and the valid roles.
    """
    hpc = conf.hpc
    role_names = set(roles.parse_good_roles(hpc.device_role).names)
    role_names |= {
        str(spec.tags[tags.ROLE]) for spec in specs.matcher.specs if spec.tags.get(tags.ROLE)
    }
    named = {"clean_stage": set(hpc.clean_stage)}
    if any(word != StageMode.NONE.value for word in hpc.clean_stage.values()):
        named["clean_checks"] = set(hpc.clean_checks)
        named["clean_drivers"] = set(hpc.clean_drivers)
        named["reported_checks"] = set(hpc.reported_checks)
        named["clean_pins"] = set(_parse_pins_by_role(hpc.clean_pins))
    for option, option_roles in named.items():
        strange = sorted(option_roles - role_names)
        if strange:
            raise OptionError(
                f"[hpc]{option} names the role {strange[0]}, which neither [hpc]device_role nor "
                f"[pci]device_spec has; the roles are {', '.join(sorted(role_names))}"
            )


def stage_of(conf: Any, hygiene: HygieneStep) -> StageStep | None:
    """Return the stage; None if no role has one, and no device is due.

    :param hygiene: cleans the devices before and after the stage.
    :raises OptionError: an option is unusable.
    """
    hpc = conf.hpc
    modes = {role: StageMode(word) for role, word in hpc.clean_stage.items()}
    modes = {role: mode for role, mode in modes.items() if mode is not StageMode.NONE}
    tests = _parse_checks(hpc.reported_checks)
    for role in sorted(tests.keys() - modes.keys()):
        raise OptionError(
            f"[hpc]reported_checks names role {role}, which has no stage: add it to "
            "[hpc]clean_stage, or leave it out"
        )
    if not modes and not hygiene.records.ledger.read().staged:
        return None
    checks = _parse_checks(hpc.clean_checks)
    for role in modes:
        if not checks.get(role):
            raise OptionError(
                f"[hpc]clean_checks names no check for role {role}, which has a stage by "
                f"[hpc]clean_stage: add {role}:memory, or what its devices need"
            )
    if StageMode.SERVICE_VM in modes.values() and not (hpc.clean_vm_kernel and hpc.clean_vm_initrd):
        raise OptionError(
            "[hpc]clean_stage asks for service VMs: set [hpc]clean_vm_kernel and "
            "[hpc]clean_vm_initrd"
        )
    pins = _parse_pins_by_role(hpc.clean_pins)
    root = Path(hpc.sysfs_root)
    machine = ServiceVmMachine(
        kernel=hpc.clean_vm_kernel,
        initrd=hpc.clean_vm_initrd,
        memory_mib=hpc.clean_vm_memory,
        arguments=hpc.clean_vm_arguments,
        machine=hpc.clean_vm_machine,
        domain_type=conf.libvirt.virt_type,
    )
    service = ServiceVmRunner(
        uri=conf.libvirt.connection_uri or _URI,
        machine=machine,
        timeout=hpc.clean_timeout,
        checks=lambda role: checks.get(role or "", ()),
        pins=lambda role: pins.get(role or "", {}),
        root=root,
        dedicated=frozenset(hardware.get_cpu_dedicated_set() or ()),
        shared=frozenset(hardware.get_cpu_shared_set() or ()),
    )
    host = HostRunner(
        root=root,
        drivers=hpc.clean_drivers,
        checks=lambda role: checks.get(role or "", ()),
        pins=lambda role: pins.get(role or "", {}),
        timeout=hpc.clean_timeout,
        bind=binding.bind_device if os.geteuid() == 0 else privileged.bind_by_helper,
        erase=None if os.geteuid() == 0 else privileged.erase_disk_by_helper,
    )
    test_of = lambda role: tests.get(role or "", ())  # noqa: E731
    return StageStep(
        records=hygiene.records,
        cleaners=hygiene.cleaners,
        modes=modes,
        runners={StageMode.SERVICE_VM: service, StageMode.HOST: host},
        at_once=hpc.clean_vm_at_once,
        tests=tests,
        testers={
            StageMode.SERVICE_VM: attrs.evolve(service, checks=test_of),
            StageMode.HOST: attrs.evolve(host, checks=test_of),
        },
    )


def _parse_checks(values: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Role -> names of its checks."""
    return {role: tuple(filter(None, text.split("+"))) for role, text in values.items()}


def forbidden_step_of(conf: Any, ledger: LedgerFile) -> ForbiddenDevices:
    """Return the step that withholds devices that must never be offered."""
    root = Path(conf.hpc.sysfs_root)
    read = functools.partial(forbidden_vpd.read_vpd_in_time, root)
    return ForbiddenDevices(
        root=root,
        read=read if os.geteuid() == 0 else privileged.read_vpd_by_helper,
        cache=answers_beside(ledger.path),
        anyway=frozenset(text.strip().lower() for text in conf.hpc.offer_anyway),
        erasers=erasers.find_erasers(conf.hpc),
    )


def _parse_pins_by_role(values: list[str]) -> dict[str, Mapping[str, Any]]:
    """Role -> its pinned values."""
    pins: dict[str, Mapping[str, Any]] = {}
    for value in values:
        try:
            body = json.loads(value)
            role = body.pop("role")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(
                f"[hpc]clean_pins: {value[:80]!r} is no JSON object with the key role"
            ) from error
        if not isinstance(role, str) or role in pins:
            raise OptionError(f"[hpc]clean_pins: role {role!r} is given twice, or is no text")
        pins[role] = body
    return pins
