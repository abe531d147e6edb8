# SPDX-License-Identifier: Apache-2.0
"""The process of a service VM: it starts the VM, reads its console, and ends with it.

A hanging libvirt blocks its caller. So nova-compute does not make these calls: this
program does, on a connection of its own, and is killed when its time is up. The domain is
transient and created with libvirt's *auto-destroy*: libvirt itself ends it when the
connection closes, however this process ends. Its standard input is a pipe that only its
parent holds open. When nova-compute is killed, the pipe closes, and this process exits.

``python -m nova_hpc.tenancy.stage.attendant run|end JSON`` writes one JSON object to its
standard output: ``results``, ``ended`` or ``problem``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any, Final

from nova_hpc.tenancy.stage import report

#: Seconds between two checks of the console's text.
_PAUSE: Final = 0.1
_LAST_WORDS: Final = 160


class ServiceVmConsole:
    """The console of a service VM; its last bytes are kept."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lock = threading.Lock()
        #: Whether the VM has ended, or its console can no longer be read.
        self.closed = False

    def listen(self, stream: Any) -> None:
        """Store the data of *stream* until it ends; runs in a thread of its own."""
        with contextlib.suppress(Exception):  # libvirtError: the domain is gone
            while piece := stream.recv(4096):
                with self._lock:
                    self._data += piece
                    del self._data[: -report.LONGEST]
        self.closed = True

    def text(self) -> str:
        """Return the stored end of the console's output as text."""
        with self._lock:
            return self._data.decode("ascii", "replace")

    def last_words(self) -> str:
        """Return the end of the text, for messages."""
        words = " ".join(self.text().split())[-_LAST_WORDS:]
        return "".join(character if character.isprintable() else " " for character in words).strip()


def attend_service_vm(
    libvirt: Any, uri: str, xml: str, nonce: str, seconds: float
) -> dict[str, Any]:
    """Start the VM, wait for its document, and end it.

    :param libvirt: the module.
    :param seconds: time limit for all of this.
    :returns: ``{"results": ...}``, or ``{"problem": why}``.
    """
    began = time.monotonic()
    connection = libvirt.open(uri)
    flags = libvirt.VIR_DOMAIN_START_AUTODESTROY | libvirt.VIR_DOMAIN_START_PAUSED
    domain = connection.createXML(xml, flags)
    console = ServiceVmConsole()
    try:
        # Start it paused, so that no output is lost before the console is read.
        stream = connection.newStream(0)
        domain.openConsole(None, stream, 0)
        threading.Thread(target=console.listen, args=(stream,), daemon=True).start()
        domain.resume()
        return _wait_for_report(console, nonce, began + seconds, seconds)
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            domain.destroy()


def _wait_for_report(
    console: ServiceVmConsole, nonce: str, end: float, seconds: float
) -> dict[str, Any]:
    """Read the console until it contains the document, the VM has ended, or the time is up."""
    while True:
        # Read it before the text: the console stores all output before it is closed.
        closed = console.closed
        try:
            results = report.find_stage_report(console.text(), nonce)
        except report.ReportError as error:
            return {"problem": f"the answer of the service VM is no answer: {error}"}
        if results is not None:
            return {"results": results}
        last_words = console.last_words()
        last = f'; it last said: "{last_words}"' if last_words else "; it has said nothing"
        if closed:
            return {"problem": f"the service VM has ended without an answer{last}"}
        if time.monotonic() >= end:
            return {"problem": f"the service VM gave no answer within {seconds:g} seconds{last}"}
        time.sleep(_PAUSE)


def end_service_vm(libvirt: Any, uri: str, vm: str) -> dict[str, Any]:
    """End a service VM that another process has left, and no other domain.

    :returns: ``{"ended": True}``, also if there is none, or ``{"problem": why}``.
    """
    from nova_hpc.tenancy.stage import domain as service_domain

    connection = libvirt.open(uri)
    try:
        domain = connection.lookupByUUIDString(vm)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return {"ended": True}
        raise
    if not service_domain.is_service_vm(domain.XMLDesc(0), vm):
        return {"problem": f"domain {vm} is no service VM of nova-hpc: it is left alone"}
    try:
        domain.destroy()
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (
            libvirt.VIR_ERR_NO_DOMAIN,
            libvirt.VIR_ERR_OPERATION_INVALID,
        ):
            raise
    return {"ended": True}


def _watch_vm_parent() -> None:
    """Exit when the parent exits; libvirt then ends the VM."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(3)


def main() -> int:
    """Carry out the command of the arguments; print the answer as one JSON object."""
    what, text = sys.argv[1:]
    threading.Thread(target=_watch_vm_parent, daemon=True).start()
    try:
        import libvirt

        # Libvirt's default handler would print its message beside the answer.
        libvirt.registerErrorHandler(lambda *_: None, None)
        answer = (attend_service_vm if what == "run" else end_service_vm)(
            libvirt, **json.loads(text)
        )
    except ImportError as error:
        answer = {"problem": f"libvirt-python cannot be used here: {error}"}
    except Exception as error:
        answer = {"problem": f"libvirt says: {error}" if str(error) else type(error).__name__}
    os.write(1, json.dumps(answer).encode())
    # No normal exit: a thread may be inside libvirt.
    os._exit(0)


if __name__ == "__main__":
    main()
