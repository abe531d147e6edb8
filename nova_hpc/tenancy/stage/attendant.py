# SPDX-License-Identifier: Apache-2.0
"""The process that has a service VM: it starts it, listens to it, and ends with it.

A libvirt that hangs holds whoever calls it. So nova-compute never does that here: this
program does, on a connection of its own, and is killed when its time is up. The domain is
transient and made with libvirt's *auto-destroy*: libvirt itself ends it when the
connection closes, however this process ends. Its standard input is a pipe that only its
parent holds open: when nova-compute is killed, the pipe closes, and this process goes.

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

#: Seconds between looks at what the console has said.
_PAUSE: Final = 0.1
_LAST_WORDS: Final = 160


class ServiceVmConsole:
    """The console of a service VM, as far as it is kept."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lock = threading.Lock()
        #: The VM has ended, or nobody can listen any more.
        self.closed = False

    def listen(self, stream: Any) -> None:
        """Keep what *stream* brings until it ends; for a thread of its own."""
        with contextlib.suppress(Exception):  # libvirtError: the domain is gone
            while piece := stream.recv(4096):
                with self._lock:
                    self._data += piece
                    del self._data[: -report.LONGEST]
        self.closed = True

    def text(self) -> str:
        """All that it has said."""
        with self._lock:
            return self._data.decode("ascii", "replace")

    def last_words(self) -> str:
        """The end of what it has said, for people."""
        words = " ".join(self.text().split())[-_LAST_WORDS:]
        return "".join(character if character.isprintable() else " " for character in words).strip()


def attend_service_vm(
    libvirt: Any, uri: str, xml: str, nonce: str, seconds: float
) -> dict[str, Any]:
    """Start the VM, wait for its document, and end it.

    :param libvirt: the module.
    :param seconds: for all of it.
    :returns: ``{"results": ...}``, or ``{"problem": why}``.
    """
    began = time.monotonic()
    connection = libvirt.open(uri)
    flags = libvirt.VIR_DOMAIN_START_AUTODESTROY | libvirt.VIR_DOMAIN_START_PAUSED
    domain = connection.createXML(xml, flags)
    console = ServiceVmConsole()
    try:
        # Paused, so that nothing is said before somebody listens.
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
    while True:
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
    """End a service VM that another process has left, and nothing else.

    :returns: ``{"ended": True}`` also where there is none, or ``{"problem": why}``.
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
    """Go when the parent goes; libvirt then ends the VM."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(3)


def main() -> int:
    """Do what the arguments say; the answer is one JSON object."""
    what, text = sys.argv[1:]
    threading.Thread(target=_watch_vm_parent, daemon=True).start()
    try:
        import libvirt

        # Its own message would go beside the answer.
        libvirt.registerErrorHandler(lambda *_: None, None)
        answer = (attend_service_vm if what == "run" else end_service_vm)(
            libvirt, **json.loads(text)
        )
    except ImportError as error:
        answer = {"problem": f"libvirt-python cannot be used here: {error}"}
    except Exception as error:
        answer = {"problem": f"libvirt says: {error}" if str(error) else type(error).__name__}
    os.write(1, json.dumps(answer).encode())
    # Not by the standard way: a thread may be inside libvirt.
    os._exit(0)


if __name__ == "__main__":
    main()
