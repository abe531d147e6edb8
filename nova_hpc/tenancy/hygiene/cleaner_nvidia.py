"""NVIDIA GPUs: reset and memory check by NVIDIA's own tool, where it can be used.

``nvidia-smi`` reaches a GPU only through NVIDIA's driver. A GPU that stays with
vfio-pci (``managed: no``, as this project writes it) is reset by the kernel, as
any other function is. Written after the manual page of nvidia-smi; it has not
been tried on real hardware.
"""

from __future__ import annotations

import csv
import shutil
from typing import Final

from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.cleaner import CleanError, Generic
from nova_hpc.topology.model import Function

_TOOL: Final = "nvidia-smi"
_DRIVER: Final = "nvidia"
_QUERY: Final = "memory.used,ecc.errors.uncorrected.volatile.total"
#: MiB that the driver itself may use on a GPU that nobody has.
_OWN_MEMORY: Final = 1024


class NvidiaGpu(Generic):
    """A GPU that NVIDIA's driver has back, or any other by the kernel."""

    def clean(self, function: Function) -> None:
        """Reset the GPU; with its driver, also look at its memory."""
        if function.driver != _DRIVER:
            super().clean(function)
            return
        if shutil.which(_TOOL) is None:
            raise CleanError(f"it is bound to the driver {_DRIVER}, and there is no {_TOOL}")
        self._ask(function, "--gpu-reset")
        output = self._ask(function, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
        check_memory(output)

    def _ask(self, function: Function, *words: str) -> str:
        argv = [_TOOL, "-i", function.address, *words]
        status, output = hygiene_reset.run(argv, self.tools.timeout)
        if status:
            text = " ".join(output.split())[:200]
            raise CleanError(f"{_TOOL} {words[0].partition('=')[0]} failed: {text or status}")
        return output


def check_memory(output: str) -> None:
    """Judge what nvidia-smi says of one GPU: MiB used, uncorrected errors.

    :raises CleanError: memory is in use, has errors, or it cannot be told.
    """
    rows = [[word.strip() for word in row] for row in csv.reader(output.splitlines()) if row]
    if len(rows) != 1 or len(rows[0]) != 2 or not rows[0][0].isdigit():
        raise CleanError(f"{_TOOL} gave no answer that can be read: {output[:100]!r}")
    used, errors = rows[0]
    if int(used) > _OWN_MEMORY:
        raise CleanError(f"{used} MiB of its memory are in use although nobody has it")
    # GPUs without ECC say [N/A].
    if errors.isdigit() and int(errors):
        raise CleanError(f"{errors} uncorrected errors in its memory (ECC)")
