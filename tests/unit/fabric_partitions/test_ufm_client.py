# SPDX-License-Identifier: Apache-2.0
"""Bad certificates, sessions that have ended, pages, and answers that are none of UFM's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import attrs
import pytest

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc_ufm.client import UfmAccess, UfmClient
from tests.unit.fabric_partitions.ufm_server import (
    PASSWORD,
    USER,
    RawAnswer,
    RecordedUfm,
    serve_ufm,
)


def connect(url: str, ca_file: Path | None = None, **options: object) -> UfmClient:
    access = UfmAccess(url, USER, PASSWORD, None if ca_file is None else str(ca_file))
    return UfmClient(attrs.evolve(access, **options))


def make_certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """Make a key, and a certificate that it has signed itself."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out",
         str(certificate), "-subj", "/CN=ufm", "-addext", f"subjectAltName={name}", *options],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


class TestCertificates:
    """The error names the cause and its cure, and the request is not repeated."""

    def test_unknown_signer(self, tmp_path: Path, ufm: RecordedUfm) -> None:
        key, certificate = make_certificate(tmp_path, "IP:127.0.0.1")
        with (
            serve_ufm(ufm, certificate, key) as url,
            pytest.raises(SubnetManagerError, match=r"self.signed.*; \[hpc_fabric_agent\]ufm_ca"),
        ):
            connect(url).get("/app/ufm_version")

    def test_other_name(self, tmp_path: Path, ufm: RecordedUfm) -> None:
        key, certificate = make_certificate(tmp_path, "DNS:ufm.example.org")
        with (
            serve_ufm(ufm, certificate, key) as url,
            pytest.raises(SubnetManagerError, match=r"not valid for.*ufm_url must have a name"),
        ):
            connect(url, certificate).get("/app/ufm_version")

    def test_expired(self, tmp_path: Path, ufm: RecordedUfm) -> None:
        folder = tmp_path / "ca"
        folder.mkdir()
        (folder / "index.txt").touch()
        (folder / "serial").write_text("01\n")
        key = folder / "key.pem"
        request, certificate = folder / "request.pem", folder / "certificate.pem"
        settings = folder / "openssl.cnf"
        settings.write_text(
            "[ca]\ndefault_ca=d\n[d]\npolicy=p\nx509_extensions=x\ndefault_md=sha256\n"
            f"database={folder}/index.txt\nserial={folder}/serial\nnew_certs_dir={folder}\n"
            "[p]\ncommonName=supplied\n[x]\nsubjectAltName=IP:127.0.0.1\n"
            "basicConstraints=CA:TRUE\n"
        )
        for command in (
            ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out",
             str(request), "-subj", "/CN=ufm"],
            ["openssl", "ca", "-batch", "-selfsign", "-config", str(settings), "-keyfile",
             str(key), "-in", str(request), "-out", str(certificate), "-startdate",
             "20200101000000Z", "-enddate", "20200201000000Z"],
        ):  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
        with (
            serve_ufm(ufm, certificate, key) as url,
            pytest.raises(SubnetManagerError, match=r"expired; renew UFM's certificate"),
        ):
            connect(url, certificate).get("/app/ufm_version")

    def test_no_tls_on_that_port(self, ufm: RecordedUfm) -> None:
        with (
            serve_ufm(ufm) as url,
            pytest.raises(SubnetManagerError, match=r"no common TLS.*port where UFM speaks https"),
        ):
            connect(url.replace("http:", "https:")).get("/app/ufm_version")

    @pytest.mark.parametrize("text", [None, "", "no certificate"])
    def test_ca_file_without_certificates(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "ca.pem"
        if text is not None:
            path.write_text(text)

        with pytest.raises(SubnetManagerError, match=r"ufm_ca_file is '.*ca.pem', which has no"):
            connect("https://127.0.0.1", path)


class TestSessions:
    """UFM may keep a session behind a cookie, which ends at some time."""

    def test_an_ended_session_is_renewed_once(self, ufm: RecordedUfm) -> None:
        ufm.session = 1
        with serve_ufm(ufm) as url:
            client = connect(url)
            client.get("/app/ufm_version")
            ufm.session = 2

            assert client.get("/app/ufm_version") == {"ufm_release_version": "6.22.1-2"}
            assert client.change("DELETE", "/resources/pkeys/0x7fff") is None

        assert [path for _, path in ufm.seen].count("/app/ufm_version") == 3

    def test_a_user_who_is_refused_is_named(self, ufm: RecordedUfm) -> None:
        ufm.session = 1
        with serve_ufm(ufm) as url:
            client = connect(url)
            client.get("/app/ufm_version")
            ufm.failures = [401, 401, 401]

            with pytest.raises(SubnetManagerError, match=r"refuses the user agent .401"):
                client.get("/app/ufm_version")

        assert len(ufm.failures) == 1


class TestOtherAnswers:
    """Answers of a proxy, of a portal, or of a server that ends half-way."""

    def ask(self, ufm: RecordedUfm, raw: RawAnswer) -> str:
        ufm.raw = [raw] * 9
        with serve_ufm(ufm) as url, pytest.raises(SubnetManagerError) as at:
            connect(url, retries=1, retry_wait=0.001).get("/resources/pkeys", guids_data="true")
        return str(at.value)

    def test_html(self, ufm: RecordedUfm) -> None:
        raw = RawAnswer(b"<html>Log in</html>", headers={"Content-Type": "text/html"})

        assert "19 bytes that are no JSON (text/html); is [hpc_fabric_agent]ufm_url" in self.ask(
            ufm, raw
        )

    def test_cut_off_json(self, ufm: RecordedUfm) -> None:
        whole = json.dumps(ufm.partitions).encode()

        assert "the answer is cut off or damaged" in self.ask(ufm, RawAnswer(whole[:-9]))

    def test_cut_off_answer(self, ufm: RecordedUfm) -> None:
        raw = RawAnswer(b'{"0x7fff": ', headers={"Content-Length": "400"})

        assert "does not answer GET /resources/pkeys" in self.ask(ufm, raw)

    def test_nested_without_end(self, ufm: RecordedUfm) -> None:
        assert "are no JSON" in self.ask(ufm, RawAnswer(b"[" * 100_000))

    def test_sent_on(self, ufm: RecordedUfm) -> None:
        raw = RawAnswer(b"", 302, {"Location": "https://portal.example.org/login"})

        said = self.ask(ufm, raw)

        assert "on to https://portal.example.org/login (302)" in said
        assert "set [hpc_fabric_agent]ufm_url" in said

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
    def test_trouble(self, ufm: RecordedUfm, status: int) -> None:
        assert f"with {status}: gone fishing\\u001b" in self.ask(
            ufm, RawAnswer(b"gone fishing\x1b", status)
        )

    def test_an_addition_is_asked_for_once(self, ufm: RecordedUfm) -> None:
        """A late first one would come after a removal."""
        ufm.delay = 0.3
        with serve_ufm(ufm) as url:
            client = connect(url, retry_wait=0.001, timeouts=(1.0, 0.05))
            with pytest.raises(SubnetManagerError, match="does not answer POST"):
                client.change("POST", "/resources/pkeys/", {"guids": []})
            with pytest.raises(SubnetManagerError, match="does not answer GET"):
                client.get("/app/ufm_version")

        assert [method for method, _ in ufm.seen] == ["POST", "GET", "GET"]


class TestPages:
    """Lists come whole, or in pages."""

    def test_joins_lists_and_objects(self, ufm: RecordedUfm) -> None:
        ufm.ports = [f"{number:016x}" for number in range(1, 8)]
        for number in range(1, 8):
            ufm.put(f"0x{number:x}", "site")
        with serve_ufm(ufm) as url:
            client = connect(url)
            whole = (
                client.get("/resources/ports"),
                client.get("/resources/pkeys", guids_data="true"),
            )
            ufm.page_length = 3

            pages = (
                client.get("/resources/ports"),
                client.get("/resources/pkeys", guids_data="true"),
            )

        assert pages == whole
        assert len(pages[0]) == 7
        assert len(pages[1]) == 8

    @pytest.mark.parametrize(
        ("page", "why"),
        [
            ({"data": [1], "num_of_pages": 1, "filtered_resources": 2}, "has counted 2"),
            ({"data": 7, "num_of_pages": 1}, "a page that has no data"),
            ({"data": [1], "num_of_pages": "many"}, "with many pages"),
            ({"data": [1], "num_of_pages": 10**9}, "with 1000000000 pages"),
            ({"data": [1], "num_of_pages": 2, "filtered_resources": 2}, "the list has changed"),
        ],
    )
    def test_takes_no_part_for_the_whole(self, ufm: RecordedUfm, page: object, why: str) -> None:
        empty = {"data": [], "num_of_pages": 2, "filtered_resources": 2}
        ufm.raw = [RawAnswer(json.dumps(each).encode()) for each in (page, empty)]
        with (
            serve_ufm(ufm) as url,
            pytest.raises(SubnetManagerError, match=why),
        ):
            connect(url).get("/resources/ports")


def test_a_record_that_is_there_twice_is_none(ufm: RecordedUfm) -> None:
    ufm.raw = [RawAnswer(b'{"0x1": {"a": 1}, "0x2": {"a": 2}, "0x1": {"a": 3}}')]
    with serve_ufm(ufm) as url:
        read = connect(url).get("/resources/pkeys", guids_data="true")

    assert read == {"0x1": None, "0x2": {"a": 2}}
