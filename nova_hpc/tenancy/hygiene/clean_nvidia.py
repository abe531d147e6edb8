# SPDX-License-Identifier: Apache-2.0
"""Checks an NVIDIA GPU through NVIDIA's management library (NVML).

It needs NVIDIA's driver on the GPU and the module ``pynvml`` of nvidia-ml-py, in a service VM or
on the host. Features that a GPU lacks (ECC on a board without it) are judged only if
an operator has pinned them. It was written from NVML's reference, as were the answers in the
tests; it is **untested on hardware**. NVML cannot overwrite a GPU's memory: that needs an
operator's program, for example one that allocates and fills all of it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError

#: Keys of a pin, which are also keys of the facts.
PINS: Final = ("vbios", "inforom", "driver", "ecc", "mig")
_UNCORRECTED: Final = 1  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE: Final = 0  # NVML_VOLATILE_ECC
#: Form of a line in the kernel's log: "NVRM: Xid (PCI:0000:41:00): 79, ...".
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_LOG: Final = "/dev/kmsg"


def read_gpu_facts(nvml: Any, address: str) -> dict[str, Any]:
    """Return the library's facts about a GPU; None for each feature that the GPU lacks.

    :param nvml: the module ``pynvml``.
    :raises UnableError: the library does not find the GPU, or fails.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnableError(f"NVML cannot be used: {error}") from error
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address.encode())

        def ask(name: str, *more: Any) -> Any:
            try:
                return getattr(nvml, name)(handle, *more)
            except nvml.NVMLError_NotSupported:
                return None

        mig, ecc = ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetEccMode")
        rows = ask("nvmlDeviceGetRemappedRows")
        return {
            "mig": None if mig is None else [bool(state) for state in mig],
            "ecc": None if ecc is None else [bool(state) for state in ecc],
            "remap_pending": None if rows is None else bool(rows[2]),
            "remap_failed": None if rows is None else bool(rows[3]),
            "uncorrected": ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            "processes": len(ask("nvmlDeviceGetComputeRunningProcesses") or ()),
            "vbios": _decode_nvml_text(ask("nvmlDeviceGetVbiosVersion")),
            "inforom": _decode_nvml_text(ask("nvmlDeviceGetInforomImageVersion")),
            "driver": _decode_nvml_text(nvml.nvmlSystemGetDriverVersion()),
        }
    except nvml.NVMLError as error:
        raise UnableError(f"NVML does not say what the GPU is like: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _decode_nvml_text(value: Any) -> str | None:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def xid_errors_of(log: str, address: str) -> list[int]:
    """Return the numbers of a GPU's errors (Xid) in the kernel's log."""
    gpu_slot = address.rpartition(".")[0].lower()
    return [int(number) for place, number in _XID.findall(log) if gpu_slot.endswith(place.lower())]


def gpu_problems_of(
    facts: Mapping[str, Any], errors: list[int], pins: Mapping[str, Any]
) -> list[str]:
    """Return the problems of a GPU, as texts.

    :param facts: result of :func:`read_gpu_facts`.
    :param errors: result of :func:`xid_errors_of`.
    :param pins: values that an operator requires; ``ecc`` is true and ``mig`` false by default.
    """
    texts = []
    for name, default in (("mig", False), ("ecc", True)):
        wanted = pins.get(name, default)
        modes = facts[name]
        if modes is None:
            if name in pins and wanted:
                texts.append(f"{name.upper()} has to be on, and the GPU does not know it")
        elif modes != [wanted, wanted]:
            pending = " (changes with its next reset)" if modes[0] != modes[1] else ""
            texts.append(f"{name.upper()} is {'on' if modes[0] else 'off'}{pending}")
    if facts["remap_pending"]:
        texts.append("a memory row waits to be remapped: it needs a reset")
    if facts["remap_failed"]:
        texts.append("a memory row could not be remapped")
    if facts["uncorrected"]:
        texts.append(f"{facts['uncorrected']} uncorrected errors in its memory")
    if facts["processes"]:
        texts.append(f"{facts['processes']} processes use it although nobody has it")
    if errors:
        texts.append(
            f"the driver has reported Xid {', '.join(str(number) for number in errors[:8])}"
        )
    for name in ("vbios", "inforom", "driver"):
        if name in pins and facts[name] != pins[name]:
            texts.append(f"{name} is {facts[name]}, pinned is {pins[name]}")
    return texts


def check(device: Path, pins: Mapping[str, Any], load: Callable[[], Any] | None = None) -> Any:
    """Check an NVIDIA GPU through NVML: its state, recent Xid errors and pinned versions.

    See :data:`nova_hpc.tenancy.hygiene.clean_check.Check`.

    :param load: returns the module ``pynvml``.
    :returns: the facts that were read.
    """
    try:
        nvml = (load or (lambda: importlib.import_module("pynvml")))()
    except ImportError as error:
        raise UnableError("nvidia-ml-py is not there (module pynvml)") from error
    facts = read_gpu_facts(nvml, device.name)
    faults = gpu_problems_of(facts, xid_errors_of(_kernel_log(), device.name), pins)
    if faults:
        raise UncleanError("; ".join(faults))
    return facts


def _kernel_log() -> str:
    """Return the kernel's log since its boot, as far as it is kept; "" if it is unreadable."""
    import os

    pieces = []
    try:
        handle = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while True:
            try:
                pieces.append(os.read(handle, 8192))
            except BrokenPipeError:
                continue  # older lines were overwritten
            except OSError:
                break
    finally:
        os.close(handle)
    return b"\n".join(pieces).decode("utf-8", "replace")
