# SPDX-License-Identifier: Apache-2.0
"""Files that are whole, readings that are late or fail, and what a scrape is told of them."""

from __future__ import annotations

import builtins
import os
import stat
import subprocess
import sys
import threading

import pytest

from nova_hpc_tools.base import CommandError
from nova_hpc_tools.main import main
from nova_hpc_tools.metrics import catalogue, exposition
from nova_hpc_tools.metrics.catalogue import MetricScope
from nova_hpc_tools.metrics.command import parse_listen_address
from nova_hpc_tools.metrics.exposition import MetricsKeeper
from nova_hpc_tools.metrics.samples import MetricSample
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.cloud.test_explain_command import a_cloud
from tests.unit.metrics.texts import parse, value

SAMPLE = MetricSample(catalogue.NODE_ABSENT, 3)
UP = "nova_hpc_node_up"
SUCCESS = "nova_hpc_node_last_success_timestamp_seconds"


class Source:
    """What is read; None: it cannot be."""

    def __init__(self, *samples):
        self.samples = samples

    def read(self):
        if self.samples is None:
            raise CommandError("gone")
        return self.samples


def text_of(keeper):
    return exposition.write_exposition(keeper.list_samples()).decode()


def test_before_the_first_reading_nothing_is_known():
    assert parse(text_of(MetricsKeeper(MetricScope.NODE, lambda: ()))) == {(UP, ()): 0}


def test_a_reading_that_fails_takes_back_what_was_known():
    source = Source(SAMPLE)
    keeper = MetricsKeeper(MetricScope.NODE, source.read)
    keeper.refresh()
    text = text_of(keeper)
    assert (value(text, UP), value(text, "nova_hpc_node_absent_devices")) == (1, 3)
    success = value(text, SUCCESS)
    source.samples = None
    with pytest.raises(CommandError):
        keeper.refresh()
    text = text_of(keeper)
    assert parse(text) == {(UP, ()): 0, (SUCCESS, ()): success}
    source.samples = (SAMPLE,)
    keeper.refresh()
    assert value(text_of(keeper), SUCCESS) >= success


def test_a_reading_that_is_late_is_not_believed(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(exposition.time, "monotonic", lambda: now[0])
    keeper = MetricsKeeper(MetricScope.NODE, Source(SAMPLE).read, lasts=180.0)
    keeper.refresh()
    now[0] += 180.0
    assert value(text_of(keeper), UP) == 1
    now[0] += 0.1
    text = text_of(keeper)
    assert value(text, UP) == 0
    assert value(text, SUCCESS) is not None
    assert value(text, "nova_hpc_node_absent_devices") is None


def test_equal_series_would_lose_the_scrape():
    text = exposition.write_exposition([SAMPLE, SAMPLE]).decode()
    assert parse(text) == {("nova_hpc_node_absent_devices", ()): 3}


def test_a_file_is_replaced_whole_and_may_be_read_by_others(tmp_path):
    file = tmp_path / "node.prom"
    source = Source(SAMPLE)
    previous = os.umask(0o077)
    try:
        exposition.write_textfile(file, MetricsKeeper(MetricScope.NODE, source.read))
    finally:
        os.umask(previous)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["node.prom"]
    success = value(file.read_text(), SUCCESS)
    source.samples = None
    before = file.stat().st_ino
    with pytest.raises(CommandError, match="gone"):
        exposition.write_textfile(file, MetricsKeeper(MetricScope.NODE, source.read))
    # A later process knows when the last one was well.
    assert parse(file.read_text()) == {(UP, ()): 0, (SUCCESS, ()): success}
    assert file.stat().st_ino != before
    for damaged in (b"\xff\xfe", b"nova_hpc_node_up {", b""):
        file.write_bytes(damaged)
        with pytest.raises(CommandError, match="gone"):
            exposition.write_textfile(file, MetricsKeeper(MetricScope.NODE, source.read))
        assert parse(file.read_text()) == {(UP, ()): 0}


def test_who_reads_meanwhile_sees_a_whole_file(tmp_path):
    file = tmp_path / "node.prom"
    keeper = MetricsKeeper(MetricScope.NODE, Source(SAMPLE).read)
    exposition.write_textfile(file, keeper)
    whole = set(parse(file.read_text()))
    seen, done = [], threading.Event()

    def look():
        while not done.is_set():
            seen.append(set(parse(file.read_text())))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(100):
            exposition.write_textfile(file, keeper)
    finally:
        done.set()
        reader.join()
    assert seen
    assert all(each == whole for each in seen)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("node.txt", "does not end with .prom"),
        ("none/node.prom", "cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be(tmp_path, name, reason):
    keeper = MetricsKeeper(MetricScope.NODE, Source(SAMPLE).read)
    with pytest.raises(CommandError, match=reason):
        exposition.write_textfile(tmp_path / name, keeper)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9911", "127.0.0.1", 9911),
        ("[::1]:1", "::1", 1),
        ("node17.site:65535", "node17.site", 65535),
    ],
)
def test_addresses(text, host, port):
    address = parse_listen_address(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "9911", ":9911", "::1:9911", "a:0", "a:65536", "a:b", "a b:1"]
)
def test_what_is_no_address(text, capsys):
    with pytest.raises(SystemExit):
        main(["metrics", "node", "--listen", text])
    assert "is not ADDRESS:PORT, like 127.0.0.1:9911" in " ".join(capsys.readouterr().err.split())


def test_an_address_that_others_have(tmp_path, capsys):
    file = tmp_path / "cloud.json"
    file.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    # No address of this machine: kept for documentation (RFC 5737).
    words = ["metrics", "cloud", "--snapshot", str(file), "--listen", "192.0.2.1:9911"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err == (
        "nova-hpc metrics cloud: --listen: 192.0.2.1:9911 cannot be used: "
        "Cannot assign requested address\n"
    )
    local = ["metrics", "cloud", "--snapshot", str(file), "--listen", "127.0.0.1:9911"]
    assert main([*local, "--tls-certificate", "/none", "--tls-key", "/none"]) == 2
    assert capsys.readouterr().err == (
        "nova-hpc metrics cloud: --tls-certificate, --tls-key: /none and /none cannot be used: "
        "No such file or directory\n"
    )


def test_without_the_library_the_cure_is_named(tmp_path, monkeypatch, capsys):
    real = builtins.__import__

    def missing(name, *more):
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    file = tmp_path / "cloud.json"
    file.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    assert main(["metrics", "cloud", "--snapshot", str(file)]) == 2
    assert capsys.readouterr().err == (
        "nova-hpc metrics cloud: prometheus-client is not installed: "
        "pip install prometheus-client\n"
    )
    # Lists need it not.
    assert main(["metrics", "cloud", "--snapshot", str(file), "-f", "csv"]) == 0


def test_commands_are_loaded_without_the_library():
    code = (
        "import sys; import nova_hpc_tools.metrics.command; "
        "sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
