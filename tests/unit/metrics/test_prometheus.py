# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the exporter; its own tool reads the rules and the dashboard."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from nova_hpc_tools.metrics import catalogue
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.cloud.test_explain_command import a_cloud
from tests.unit.metrics import metrics_page
from tests.unit.metrics.texts import parse

TOP = Path(__file__).parents[3]
RULES = metrics_page.RULES
DASHBOARD = TOP / "etc/grafana/nova-hpc.json"
NOVA_HPC = (sys.executable, "-X", "faulthandler", "-m", "nova_hpc_tools.main")
#: What NVIDIA's exporter gives, which is joined.
OTHERS = {"DCGM_FI_DEV_GPU_UTIL"}
_NAMES = re.compile(r"\b(?:nova_hpc_\w+|DCGM_\w+)")
#: Variables of Grafana that stand for a time.
_RATE = "$__rate_interval"


@pytest.fixture(scope="module")
def programs():
    """Debian's prometheus, and the tool of its package."""
    found = {name: shutil.which(name) for name in ("prometheus", "promtool")}
    if None in found.values():
        pytest.skip("Debian's package prometheus is not installed (bindep.txt)")
    return found


def promtool(programs, *words):
    done = subprocess.run(
        [programs["promtool"], *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- files ---------------------------------------------------------------------------------


def test_the_rules_are_rules(programs):
    assert f"{len(metrics_page.rules())} rules found" in promtool(programs, "check", "rules", RULES)


def test_each_alert_fires_and_each_is_silent(programs):
    file = Path(__file__).with_name("rules.test.yml")
    promtool(programs, "test", "rules", file)
    tests = yaml.safe_load(file.read_text())["tests"]
    fires = {
        rule["alertname"]: bool(rule["exp_alerts"])
        for test in tests
        for rule in test["alert_rule_test"]
        if rule["exp_alerts"]
    }
    silent = {
        rule["alertname"]
        for test in tests
        for rule in test["alert_rule_test"]
        if not rule["exp_alerts"]
    }
    assert set(fires) == silent == {rule["alert"] for rule in metrics_page.rules()}


def expressions():
    """Every expression of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_each_expression_of_the_dashboard_is_one(programs, tmp_path):
    assert len(expressions()) > 25
    rules = [
        {"record": f"panel:{number}", "expr": text.replace(_RATE, "5m")}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool(programs, "check", "rules", file)


def test_rules_and_dashboard_use_metrics_that_there_are():
    names = {kind.name for kind in catalogue.ALL}
    used = set(_NAMES.findall(RULES.read_text()))
    assert used - names == set()
    shown = set(_NAMES.findall(" ".join(expressions())))
    assert shown - names == OTHERS
    # And none is for nothing: each is in a rule or on the dashboard.
    assert names - used - shown <= {"nova_hpc_cloud_problems", "nova_hpc_node_problems"} | {
        "nova_hpc_cloud_unlisted_devices",
        "nova_hpc_cloud_unusable_devices",
        "nova_hpc_cloud_ailing_devices",
        "nova_hpc_cloud_largest_set",
        "nova_hpc_cloud_last_success_timestamp_seconds",
    }


def test_the_dashboard_is_whole():
    """No two panels lie over each other, and each says what it shows."""
    board = json.loads(DASHBOARD.read_text())
    assert board["uid"] == "nova-hpc"
    places = set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        where = panel["gridPos"]
        area = {
            (column, row)
            for column in range(where["x"], where["x"] + where["w"])
            for row in range(where["y"], where["y"] + where["h"])
        }
        assert not area & places, panel["title"]
        assert where["x"] + where["w"] <= 24
        places |= area
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"] for variable in board["templating"]["list"]}
    text = DASHBOARD.read_text().replace(_RATE, "")
    assert set(re.findall(r"\$\{?(\w+)", text)) == variables


def test_the_pages_are_as_the_code():
    for path, text in metrics_page.pages().items():
        assert path.read_text(encoding="utf-8") == text, (
            "run: python -m tests.unit.metrics.metrics_page"
        )


# -- a scrape ------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(*words):
    """A process that is asked to end, by its number."""
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints where it waits
            process.wait(60)
            raise


def fetch(url, tls=None):
    with urllib.request.urlopen(url, timeout=10, context=tls) as answer:
        return answer.read().decode()


def wait_for(ask):
    """What *ask* gives as soon as it gives something."""
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            if found := ask():
                return found
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def exporter(tmp_path):
    """The exporter of a cloud that lies in a file."""
    file = tmp_path / "cloud.json"
    file.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    port = free_port()
    words = (*NOVA_HPC, "metrics", "cloud", "--interval", "5")
    flavor = ("--flavor", "pair", "--members", "2", "--snapshot", file)
    with running(*words, *flavor, "--listen", f"127.0.0.1:{port}") as process:
        text = wait_for(lambda: fetch(f"http://127.0.0.1:{port}/metrics"))
        assert "nova_hpc_cloud_up" in text
        yield file, port, process
    # It was asked to end, and that is no failure.
    assert process.returncode == 0


@pytest.fixture
def prometheus(programs, exporter, tmp_path):
    """A Prometheus that scrapes it each second; asks a query."""
    _, port, _ = exporter
    config = tmp_path / "prometheus.yml"
    job = {"job_name": "nova-hpc", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [job],
            }
        )
    )
    promtool(programs, "check", "config", config)
    place = free_port()
    with running(
        programs["prometheus"],
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{place}",
        "--log.level=error",
    ):

        def ask(query):
            text = urllib.parse.quote(query)
            answer = json.loads(fetch(f"http://127.0.0.1:{place}/api/v1/query?query={text}"))
            assert answer["status"] == "success"
            return {
                tuple(sorted((key, label) for key, label in series["metric"].items())): float(
                    series["value"][1]
                )
                for series in answer["data"]["result"]
            }

        wait_for(lambda: ask("nova_hpc_cloud_up == 1"))
        yield ask


@pytest.mark.long
def test_prometheus_has_what_the_exporter_says(prometheus, exporter):
    file, port, _ = exporter
    told = parse(fetch(f"http://127.0.0.1:{port}/metrics"))
    more = {("instance", f"127.0.0.1:{port}"), ("job", "nova-hpc")}
    moving = catalogue.LAST_SUCCESS[catalogue.MetricScope.CLOUD].name
    series = {key: number for key, number in told.items() if key[0].startswith("nova_hpc")}
    assert len(series) > 40
    for (name, labels), number in series.items():
        if name == moving:
            continue
        # An empty label is none to Prometheus.
        key = {("__name__", name), *((key, text) for key, text in labels if text), *more}
        assert prometheus(name)[tuple(sorted(key))] == number
    # The rules are evaluated: the snapshot is of another year.
    assert wait_for(lambda: prometheus('ALERTS{alertname="NovaHpcCloudOld"}'))
    assert not prometheus('ALERTS{alertname="NovaHpcCloudUnknown"}')
    # What cannot be read any more is down, and nothing else is said.
    file.write_text("{")
    assert wait_for(lambda: prometheus("nova_hpc_cloud_up == 0"))
    assert prometheus("nova_hpc_cloud_devices") == {}
    assert prometheus(moving)
    file.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    assert wait_for(lambda: prometheus("nova_hpc_cloud_up == 1"))
    assert prometheus("nova_hpc_cloud_devices") != {}


@pytest.mark.long
def test_a_scrape_is_as_prometheus_recommends(programs, exporter):
    _, port, _ = exporter
    text = fetch(f"http://127.0.0.1:{port}/metrics")
    done = subprocess.run(
        [programs["promtool"], "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "nova_hpc" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.long
def test_only_who_has_a_certificate_is_answered(tmp_path):
    """TLS both ways, with a certificate that openssl makes."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    file = tmp_path / "cloud.json"
    file.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    port = free_port()
    words = (*NOVA_HPC, "metrics", "cloud", "--snapshot", file)
    tls = ("--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", certificate)
    url = f"https://127.0.0.1:{port}/metrics"
    unknown = ssl.create_default_context(cafile=str(certificate))
    allowed = ssl.create_default_context(cafile=str(certificate))
    allowed.load_cert_chain(certificate, key)
    with running(*words, "--listen", f"127.0.0.1:{port}", *tls):
        assert "nova_hpc_cloud_up" in wait_for(lambda: fetch(url, allowed))
        with pytest.raises((OSError, http.client.HTTPException)):
            fetch(url, unknown)
        # A file that is no certificate is named with its option, before anything is served.
        done = subprocess.run(
            [*map(str, words), "--listen", f"127.0.0.1:{free_port()}", *map(str, tls[:-1]), file],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        said = f"nova-hpc metrics cloud: --tls-client-ca: {file} cannot be used: "
        assert (done.returncode, done.stderr[: len(said)]) == (2, said)
        # Who connects and says nothing keeps nobody waiting, and no end of the process.
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.settimeout(60)
            assert "nova_hpc_cloud_up" in fetch(url, allowed)
