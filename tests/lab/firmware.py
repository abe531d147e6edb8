# SPDX-License-Identifier: Apache-2.0
"""Start a domain's firmware in plain emulation and see where it puts the devices' memory.

QEMU alone, without libvirt and without a guest: the controllers, windows and address
bits of a domain, and for each passed-through GPU a test device with BARs of its sizes.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lxml import etree

QEMU: Final = "qemu-system-x86_64"
CODE: Final = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
VARS: Final = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
_QEMU: Final = "{http://libvirt.org/schemas/domain/qemu/1.0}"
#: pci-testdev: Red Hat's, and its BAR of any size without memory behind it.
_TEST_DEVICE: Final = (0x1B36, 0x0005)
#: Seconds until the firmware has placed everything; emulated UEFI takes a minute.
PATIENCE: Final = 300.0
_UNPLACED: Final = (0, -1, (1 << 64) - 1)


def arguments(xml: str, bars: tuple[int, ...], folder: Path) -> list[str]:
    """QEMU's for the domain *xml*, each of whose GPUs has BARs of these sizes."""
    root = etree.fromstring(xml)
    machine = root.find("os/type").get("machine")
    q35 = "q35" in machine
    bits = root.find("cpu/maxphysaddr").get("bits")
    argv = [QEMU, "-machine", "q35" if q35 else "pc", "-accel", "tcg", "-m", "2G"]
    argv += ["-cpu", f"qemu64,pdpe1gb=on,phys-bits={bits}", "-nodefaults", "-display", "none"]
    argv += ["-qmp", f"unix:{folder}/qmp,server=on,wait=off", "-no-reboot"]
    hole = int(root.findtext("devices/controller/pcihole64")) << 10
    argv += ["-global", f"{'q35-pcihost' if q35 else 'i440FX-pcihost'}.pci-hole64-size={hole}"]
    if root.find("os/loader[@type='pflash']") is not None:
        shutil.copy(VARS, folder / "vars")
        argv += ["-drive", f"if=pflash,format=raw,readonly=on,file={CODE}"]
        argv += ["-drive", f"if=pflash,format=raw,file={folder}/vars"]
    argv += [each.get("value") for each in root.iterfind(f"{_QEMU}commandline/{_QEMU}arg")]
    names = {"0": "pcie.0" if q35 else "pci.0"}
    for one in root.iterfind("devices/controller[@type='pci']"):
        argv += _controller(one, names)
    for number, one in enumerate(root.iterfind("devices/hostdev")):
        place = one.find("address")
        if place is not None:
            bus = names[str(int(place.get("bus"), 0))]
        elif q35:
            # Libvirt gives each a root port of its own.
            argv += ["-device", f"pcie-root-port,id=own{number},bus=pcie.0,chassis={100 + number}"]
            bus = f"own{number}"
        else:
            bus = names["0"]
        argv += _gpu(bus, number, bars, q35)
    return argv


def _controller(one: etree._Element, names: dict[str, str]) -> list[str]:
    """A controller with a place; libvirt places the others, which stay empty here."""
    index, model, place = one.get("index"), one.get("model"), one.find("address")
    if index in names or index is None or place is None:
        return []
    names[index] = f"pci.{index}"
    above = names[str(int(place.get("bus"), 0))]
    slot, function = (int(place.get(each), 0) for each in ("slot", "function"))
    target = one.find("target")
    if model == "pcie-expander-bus":
        words = f"pxb-pcie,bus_nr={target.get('busNr')}"
    elif model == "pcie-switch-upstream-port":
        words = "x3130-upstream"
    else:
        port = int(target.get("port"), 0)
        kind = "pcie-root-port" if model == "pcie-root-port" else "xio3130-downstream"
        words = f"{kind},chassis={target.get('chassis')},port={port}"
    more = ",multifunction=on" if place.get("multifunction") == "on" else ""
    return ["-device", f"{words},id=pci.{index},bus={above},addr={slot:#x}.{function}{more}"]


def _gpu(bus: str, number: int, bars: tuple[int, ...], express: bool) -> list[str]:
    """One function for each BAR, all at one place."""
    argv = []
    for function, size in enumerate(bars):
        slot = 0 if express else 0x10 + number
        more = ",multifunction=on" if function == 0 else ""
        argv += ["-device", f"pci-testdev,bus={bus},addr={slot:#x}.{function},membar={size}{more}"]
    return argv


def placed(argv: list[str], count: int, folder: Path) -> list[tuple[int, int]]:
    """Start and size of the wide BARs that the firmware has placed, when it has placed *count*.

    :raises AssertionError: it placed fewer within :data:`PATIENCE`, or QEMU ended.
    """
    with (folder / "errors").open("w+b") as errors:
        process = subprocess.Popen(argv, stderr=errors, stdin=subprocess.DEVNULL)
        try:
            monitor = _Monitor(folder / "qmp", process)
            end, before = time.monotonic() + PATIENCE, None
            while time.monotonic() < end and process.poll() is None:
                found = sorted(_regions(monitor.ask("query-pci")))
                # Firmware sizes BARs before it places them: twice the same is the end.
                if len(found) == count and found == before:
                    return found
                before = found
                time.sleep(2)
            errors.seek(0)
            raise AssertionError(f"{before}: {errors.read().decode(errors='replace')[:500]}")
        finally:
            process.kill()
            process.wait()


class _Monitor:
    """QEMU's monitor; as little of it as is needed."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 30
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.1)
        self._stream = self._socket.makefile("rw")
        self._stream.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str) -> Any:
        self._stream.write(json.dumps({"execute": command}) + "\n")
        self._stream.flush()
        while True:
            answer = json.loads(self._stream.readline())
            assert "error" not in answer, answer
            if "return" in answer:
                return answer["return"]


def _regions(buses: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    for bus in buses:
        for device in bus["devices"]:
            bridge = device.get("pci_bridge", {})
            if "devices" in bridge:
                yield from _regions([bridge])
            ids = (device["id"].get("vendor"), device["id"].get("device"))
            for region in device["regions"] if ids == _TEST_DEVICE else ():
                if region.get("mem_type_64") and region["address"] not in _UNPLACED:
                    yield region["address"], region["size"]
