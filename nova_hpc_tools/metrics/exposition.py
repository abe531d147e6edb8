# SPDX-License-Identifier: Apache-2.0
"""The metrics as Prometheus takes them: a text, a file for node_exporter, or a service.

A scrape never starts a reading. It gets the last reading, unless that is too old; otherwise it gets
only the metric for a failed reading. An unknown value is left out and never 0.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from wsgiref import simple_server

import attrs

from nova_hpc.topology import atomic_files
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.metrics import catalogue
from nova_hpc_tools.metrics.catalogue import MetricKind, MetricScope
from nova_hpc_tools.metrics.samples import MetricSample

#: Reads fresh samples of the command's subject on each call.
ReadSamples = Callable[[], Sequence[MetricSample]]

#: A reading is too old after so many intervals without another.
_LATE: Final = 3
#: node_exporter reads no other files (collector/textfile.go).
_SUFFIX: Final = ".prom"
#: All users may read it: node_exporter has a user of its own.
_MODE: Final = 0o644
#: Limit for our own files, in bytes; larger than any of them.
_LARGEST: Final = 1 << 24


def load_prometheus_client() -> Any:
    """Import the library prometheus_client, which only the metrics commands need.

    :raises CommandError: it is not installed; the text names the cure.
    """
    try:
        import prometheus_client.core
        import prometheus_client.parser
    except ImportError as error:
        raise CommandError(
            "prometheus-client is not installed: pip install prometheus-client"
        ) from error
    return prometheus_client


# --- the last reading ----------------------------------------------------------------------


@attrs.frozen
class _MetricsReading:
    """The result of one reading of metrics: its samples, or None if it failed."""

    samples: Sequence[MetricSample] | None
    #: End of the reading, by a monotonic clock, in seconds.
    ended: float
    #: Unix time of the last complete reading; None without one.
    success: float | None


@attrs.define
class MetricsKeeper:
    """Keeps the last reading of metrics for the threads that answer scrapes."""

    scope: MetricScope
    read: ReadSamples
    #: Seconds after which it no longer counts; None if it is never too old.
    lasts: float | None = None
    _last: _MetricsReading = attrs.field(
        init=False, factory=lambda: _MetricsReading(None, 0.0, None)
    )

    def refresh(self, before: float | None = None) -> None:
        """Read the metrics now, and replace the last reading.

        :param before: Unix time of the last reading of an earlier process.
        :raises Exception: the error of :attr:`read`; from now on no sample is valid.
        """
        success = self._last.success or before
        try:
            samples = tuple(self.read())
        except BaseException:
            self._last = _MetricsReading(None, time.monotonic(), success)
            raise
        self._last = _MetricsReading(samples, time.monotonic(), time.time())

    def list_samples(self) -> tuple[MetricSample, ...]:
        """Return the samples that are valid now, with those about the reading itself.

        Samples of a reading that is too old are left out.
        """
        last = self._last
        late = self.lasts is not None and time.monotonic() - last.ended > self.lasts
        known = () if last.samples is None or late else last.samples
        first = [MetricSample(catalogue.UP[self.scope], last.samples is not None and not late)]
        if last.success is not None:
            first.append(MetricSample(catalogue.LAST_SUCCESS[self.scope], last.success))
        return (*first, *known)


# --- as a text -----------------------------------------------------------------------------


def write_exposition(samples: Iterable[MetricSample]) -> bytes:
    """Format the samples in Prometheus's text format, in UTF-8; no file is written.

    :raises CommandError: the library is not there.
    """
    client = load_prometheus_client()
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_SamplesCollector(client, lambda: tuple(samples)))
    text: bytes = client.generate_latest(registry)
    return text


@attrs.frozen(eq=False)
class _SamplesCollector:
    """Adapter that gives the samples to prometheus_client's registry."""

    client: Any
    samples: ReadSamples

    def describe(self) -> Iterable[Any]:
        """Return nothing: the registry calls this at the start, before anything has been read."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield prometheus_client's family for each metric, in the order of the catalogue."""
        values: dict[MetricKind, dict[tuple[str, ...], float]] = {}
        for sample in self.samples():
            # Of equal series Prometheus would refuse the whole text.
            values.setdefault(sample.kind, {}).setdefault(sample.labels, sample.value)
        core = self.client.core
        for kind in catalogue.ALL:
            if kind not in values:
                continue
            make = core.CounterMetricFamily if kind.counter else core.GaugeMetricFamily
            family = make(kind.name, kind.text, labels=kind.labels)
            for labels, value in values[kind].items():
                family.add_metric(labels, value)
            yield family


# --- as a file -----------------------------------------------------------------------------


def write_textfile(path: Path, keeper: MetricsKeeper) -> None:
    """Read the metrics, and write the file for node_exporter's textfile collector atomically.

    If the reading fails, the file reports that, and keeps the time of the last complete reading.

    :raises CommandError: it cannot be written.
    :raises Exception: the error of the reading, after the file was written.
    """
    if path.suffix != _SUFFIX:
        raise CommandError(
            f"--textfile: {path} does not end with {_SUFFIX}, so node_exporter would not read it"
        )
    before = _find_last_success(path, keeper.scope)
    try:
        keeper.refresh(before)
    finally:
        try:
            atomic_files.write_file(path, write_exposition(keeper.list_samples()), _MODE)
        except OSError as error:
            raise CommandError(
                f"--textfile: {path} cannot be written: {error.strerror or error}"
            ) from error


def _find_last_success(path: Path, scope: MetricScope) -> float | None:
    """Return the Unix time of the last complete reading in the file; None if missing."""
    name = catalogue.LAST_SUCCESS[scope].name
    parser = load_prometheus_client().parser
    with contextlib.suppress(Exception):  # the file may contain anything
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST)
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name:
                    return float(sample.value)
    return None


# --- as a service --------------------------------------------------------------------------


@attrs.frozen
class ListenAddress:
    """The address and port on which scrapes are served."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class TransportKeys:
    """The TLS files for serving scrapes; None for plain HTTP."""

    certificate: Path | None = None
    key: Path | None = None
    #: CA of clients that may scrape; None if all may.
    client_ca: Path | None = None


class _ScrapeHandler(simple_server.WSGIRequestHandler):
    """Handler that answers one HTTP scrape, in a thread of its own."""

    #: Seconds within which a client has to send data, the handshake of TLS included.
    timeout = 30

    def log_message(self, *args: object) -> None:
        """Log nothing, because scrapes come all the time."""


class _ScrapeServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """HTTP server for scrapes, with one daemon thread per scrape."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report faults of the server, but not clients that go away or lack a certificate."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _make_tls_context(keys: TransportKeys) -> ssl.SSLContext | None:
    """Make the context of TLS; None if it is not used.

    :raises CommandError: a file cannot be used; the text names the option and the file.
    """
    if keys.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    option = f"--tls-certificate, --tls-key: {keys.certificate} and {keys.key} cannot be used"
    try:
        context.load_cert_chain(keys.certificate, keys.key)
        if keys.client_ca is not None:
            option = f"--tls-client-ca: {keys.client_ca} cannot be used"
            context.load_verify_locations(keys.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        raise CommandError(f"{option}: {error.strerror or error}") from error
    return context


def _open_server(address: ListenAddress, tls: ssl.SSLContext | None, app: Any) -> _ScrapeServer:
    """Open a server that listens at *address*.

    :param app: the WSGI application that answers scrapes.
    :raises OSError: the address cannot be used, as OverflowError and UnicodeError.
    """
    place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    kind = type(_ScrapeServer.__name__, (_ScrapeServer,), {"address_family": place[0]})
    server: _ScrapeServer = kind(place[4], _ScrapeHandler)
    server.set_app(app)
    if tls is not None:
        # No handshake in accept(): a silent client would keep all others waiting, and the end
        # of the process. The first read makes the handshake, in the thread of that client.
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    return server


def serve_metrics(
    keeper: MetricsKeeper,
    address: ListenAddress,
    interval: float,
    keys: TransportKeys,
    say: Callable[[str], None],
) -> None:
    """Serve scrapes, and read the metrics every *interval* seconds, until a signal ends the
    process.

    Standard error gets a line for a reading that fails, and for the next one that succeeds.

    :raises CommandError: the address or the keys cannot be used.
    """
    client = load_prometheus_client()
    keeper.lasts = _LATE * interval
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_SamplesCollector(client, keeper.list_samples))
    tls = _make_tls_context(keys)
    try:
        server = _open_server(address, tls, client.make_wsgi_app(registry))
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"--listen: {address} cannot be used: {reason}") from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    say(f"listening on {address}")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _refresh_forever(keeper, interval)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _refresh_forever(keeper: MetricsKeeper, interval: float) -> None:
    failed = False
    while True:
        try:
            keeper.refresh()
        except Exception as error:
            # A failed reading does not end the service; scrapes get no old values.
            text = "".join(traceback.format_exception_only(error)).strip()
            print(text, file=sys.stderr, flush=True)
            failed = True
        else:
            if failed:
                print("it can be read again", file=sys.stderr, flush=True)
            failed = False
        time.sleep(interval)
