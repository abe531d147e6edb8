# SPDX-License-Identifier: Apache-2.0
"""Nothing that others wrote is obeyed by the terminal of an operator."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest
import yaml
from rich.text import Text
from rich.tree import Tree

from nova_hpc.cluster.group_domain.records import SweptProviders
from nova_hpc_common.output.hostlist import expand_hostlist
from nova_hpc_common.output.printing import InertConsole, InertStream, inert_streams
from nova_hpc_tools import main
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand, RecordCommand
from nova_hpc_tools.cloud import drain_api, drain_command, server_moves
from nova_hpc_tools.cloud.drain import Move
from nova_hpc_tools.fabric import nova_aggregates, sync_command
from nova_hpc_tools.fabric.sync import CREATE, METADATA, SyncStep
from nova_hpc_tools.snapshot import cloud_readers
from nova_hpc_tools.snapshot.group_fleet import Reaped
from nova_hpc_tools.wire import fabric_map
from tests.unit import hostile
from tests.unit.fabric.cabling import Cabling
from tests.unit.snapshot import clouds
from tools.wheels import list_production_folders

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: object) -> tuple[int, str, str]:
        status = main.main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


# -- maps --------------------------------------------------------------------------------


def plain(text: str) -> str:
    entry = {"leaf": text, "spine": f"s{text}", "hosts": [text, "n2"], "rails": [text]}
    link = {"lower": text, "upper": f"s{text}", "rate": text}
    other = {"nvlink_domain": text, "hosts": [f"{text}1", "n2"]}
    return yaml.safe_dump(
        {"nova_hpc_fabric": 1, "name": text, "domains": [entry, other], "links": [link]}
    )


def graph(text: str) -> str:
    return json.dumps(
        {"instances": [{"id": text, "network_layers": [text, "s"], "labels": {"nvlink": text}}]}
    )


def model(text: str) -> str:
    block = {"switch": text, "nodes": [text, "n2"], "nvlink": text}
    return json.dumps({"switches": {"s": {"switches": [text]}}, "blocks": [block]})


def topology_conf(text: str) -> str:
    return f"SwitchName={text} Nodes={text},n2\nSwitchName=s Switches={text}\n{text}\n"


def topology_yaml(text: str) -> str:
    switches = [{"switch": text, "nodes": text}, {"switch": "s", "children": text}]
    return yaml.safe_dump([{"topology": text, "tree": {"switches": switches}}])


def ibnetdiscover(text: str) -> str:
    cabling = Cabling()
    leaf = cabling.switch(text)
    cabling.connect(cabling.adapter(f"{text} mlx5_0"), leaf)
    cabling.connect(cabling.adapter(f"n2 {text}"), leaf, text)
    cabling.connect(cabling.adapter(f"n3 {text.replace(' ', '')}"), leaf)
    return cabling.text()


def ours(text: str) -> str:
    host = {"host": text, "leaf": text, "rails": [{"name": text, "switch": text, "rate": text}]}
    switch = {"name": text, "level": "leaf", "domain": text, "guid": text}
    link = {"lower": text, "upper": text, "rate": text}
    return json.dumps(
        {
            **{"schema": "nova-hpc/fabric-map", "version": 1, "name": text, "source": text},
            **{"hosts": [host], "switches": [switch], "links": [link]},
        }
    )


MAPS = (plain, graph, model, topology_conf, topology_yaml, ibnetdiscover, ours)
#: A whole line of topology.conf.
_LINE = re.compile(
    r"#.*|SwitchName=[A-Za-z0-9][\w.-]*(?: Nodes=[\w.,\[\]-]+)?(?: Switches=[\w.,\[\]-]+)?"
    r"|BlockName=[A-Za-z0-9][\w.-]* Nodes=[\w.,\[\]-]+|BlockSizes=[\d,]+",
    re.ASCII,
)


def sound(form: str, out: str) -> None:
    """Whether a program reads in an export what is meant."""
    if form == "json":
        fabric_map.read_fabric_map(out)
    elif form == "topograph":
        assert set(json.loads(out)) == {"instances"}
    elif form == "svg":
        elements = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(out).iter()}
        assert elements <= {"svg", "title", "style", "text", "g", "rect", "line", "circle"}
    elif form == "slurm-yaml":
        for topology in yaml.safe_load(out):
            for switch in topology.get("tree", {}).get("switches", ()):
                assert _LINE.fullmatch(f"SwitchName={switch['switch']}")
                named(switch.get("nodes", ""))
    else:
        for line in out.splitlines():
            assert _LINE.fullmatch(line), line
            named(line.partition(" Nodes=")[2])


def named(nodes: str) -> None:
    for node in expand_hostlist(nodes) if nodes else ():
        assert node.lower() not in ("all", "default")
        assert not node.startswith("-")


@pytest.mark.parametrize("write", MAPS)
def test_a_map_is_shown(write: Callable[[str], str], ask: Ask, tmp_path: Any) -> None:
    path = tmp_path / "map"
    for text in hostile.texts():
        path.write_bytes(write(text).encode("utf-8", "surrogatepass"))
        for words in ((), ("-f", "csv"), ("-f", "yaml"), ("-f", "value"), ("-f", "table")):
            _, out, err = ask("fabric", "show", path, "--all-notes", *words)
            assert hostile.obeyed(out + err) == []
        _, out, err = ask("fabric", "diff", path, path)
        assert hostile.obeyed(out + err) == []


#: An export has one writer for all readers. The first reader takes any text.
_READERS = [plain, *(pytest.param(write, marks=pytest.mark.slow) for write in MAPS[1:])]


@pytest.mark.parametrize("form", ["json", "svg", "topograph", "slurm-tree", "slurm-block"])
@pytest.mark.parametrize("write", _READERS)
def test_a_map_is_exported(write: Callable[[str], str], form: str, ask: Ask, tmp_path: Any) -> None:
    path = tmp_path / "map"
    for text in (*hostile.texts(), "ALL", "default", "-n1"):
        path.write_bytes(write(text).encode("utf-8", "surrogatepass"))
        status, out, err = ask("fabric", "export", path, "--accept-problems", "-f", form)
        assert hostile.obeyed(out + err) == []
        assert status == 0 or (out, status) == ("", 2)
        if out:
            sound(form, out)


def test_slurm_yaml(ask: Ask, tmp_path: Any) -> None:
    path = tmp_path / "map"
    for text in (*hostile.texts(), "ALL", "default", "-n1"):
        path.write_bytes(plain(text).encode("utf-8", "surrogatepass"))
        _, out, err = ask("fabric", "export", path, "--accept-problems", "-f", "slurm-yaml")
        assert hostile.obeyed(out + err) == []
        if out:
            sound("slurm-yaml", out)


def test_a_switch_is_not_called_as_slurm_calls_all(ask: Ask, tmp_path: Any) -> None:
    path = tmp_path / "map"
    entries = [{"leaf": "ALL", "spine": "-x", "hosts": "n1"}, {"leaf": "default", "hosts": "n2"}]
    path.write_text(yaml.safe_dump({"nova_hpc_fabric": 1, "domains": entries}))
    _, out, _ = ask("fabric", "export", path, "-f", "slurm-tree")
    assert out.splitlines()[1:] == [
        "SwitchName=leaf.ALL Nodes=n1",
        "SwitchName=leaf.default Nodes=n2",
        "SwitchName=spine.-x Switches=leaf.ALL",
    ]


@pytest.mark.parametrize("what", ["eraser", "title of the window", "line end", "right to left"])
def test_the_name_of_a_file(what: str, ask: Ask, tmp_path: Any) -> None:
    path = tmp_path / hostile.TEXTS[what].replace("/", "")
    status, out, err = ask("fabric", "show", path)
    assert (status, hostile.obeyed(out + err)) == (2, [])
    assert len(err.splitlines()) == 1
    path.write_text("SwitchName=l1 Nodes=n[1-2]\n")
    status, out, err = ask("fabric", "export", path, "-f", "slurm-tree")
    assert hostile.obeyed(out + err) == []
    sound("slurm-tree", out)


# -- the cloud ----------------------------------------------------------------------------


def a_cloud(text: str) -> Any:
    """Where even what is written before Nova's names are cleaned reaches the command."""
    one = clouds.node("n1", [1, ["s1", None]])
    host = attrs.evolve(one, host=text or "x", node=text or "x")
    return clouds.cloud(
        host,
        clouds.node("n2", [1, 1], withheld={"0000:40:00.0": text}),
        clouds.node("n3", [4], out=text),
        flavors=[clouds.flavor(), clouds.flavor(text, wants={"gpu": 2})],
        servers=[
            attrs.evolve(clouds.server("s1", "n1"), name=text, host=host.host, node=host.node)
        ],
    )


@pytest.mark.parametrize("form", ["", "table", "csv", "value", "json", "yaml"])
def test_explain(form: str, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    words = ("-f", form) if form else ()
    for text in hostile.texts():
        taken = a_cloud(text)
        monkeypatch.setattr(cloud_readers, "_load_reader", lambda _, taken=taken: lambda *_: taken)
        for question in (("--flavor", "pair", "--count", "2"), ("--server", "s1")):
            status, out, err = ask("explain", *question, *words)
            assert hostile.obeyed(out + err) == []
            assert status in (0, 1), err
            if form == "csv":
                rows = list(csv.reader(io.StringIO(out)))
                assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("form", ["", "csv", "json", "yaml", "value", "table"])
def test_capacity(form: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in hostile.texts():
        taken = a_cloud(text)
        monkeypatch.setattr(cloud_readers, "_load_reader", lambda _, taken=taken: lambda *_: taken)
        _, out, err = ask("capacity", "--flavor", "pair", *(("-f", form) if form else ()))
        assert hostile.obeyed(out + err) == []


def test_reap_says_what_is_strange(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Reaped(SweptProviders(0, 0, 0), 0, tuple(hostile.texts()))
    monkeypatch.setattr(
        cloud_readers, "_load_reader", {"nova_fabric_reap": lambda config: found}.get
    )
    status, out, err = ask("fabric", "reap")
    assert (status, hostile.obeyed(out + err)) == (1, [])


class Compute:
    """Nova's API, where everybody has called everything as he liked."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get(self, path: str, **more: Any) -> Any:
        flavor = {"original_name": self.text, "extra_specs": {"hpc:affinity": "switch"}}
        server = {
            **{"id": "s1", "name": self.text, "status": self.text, "flavor": flavor},
            "OS-EXT-SRV-ATTR:host": "n1",
        }
        first = not more.get("params", {}).get("marker")
        body: Any = {
            "/os-services": {"services": [{"id": "1", "host": "n1", "status": "enabled"}]},
            "/servers/detail": {"servers": [server] if first else []},
            "/os-migrations": {"migrations": []},
            "/os-aggregates": {
                "aggregates": [
                    {
                        "id": 1,
                        "name": self.text,
                        "metadata": {"hpc_fabric:version": "1", "hpc_fabric:map": "fabric"},
                        "hosts": [self.text],
                    }
                ]
            },
            "/os-server-groups": {"server_groups": []},
        }[path]
        text = json.dumps(body)
        return SimpleNamespace(status_code=200, content=text, json=lambda: body, reason="")

    def post(self, path: str, **more: Any) -> Any:
        text = json.dumps({"error": {"message": self.text}})
        return SimpleNamespace(status_code=409, content=text, reason=self.text)


def test_drain(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in hostile.texts():
        taken = a_cloud("x")
        monkeypatch.setattr(cloud_readers, "_load_reader", lambda _, taken=taken: lambda *_: taken)
        monkeypatch.setattr(
            nova_aggregates, "connect_compute_proxy", lambda _, text=text: Compute(text)
        )
        status, out, err = ask("drain", "n1")
        assert (status, hostile.obeyed(out + err)) == (2, [])
        # One line that nothing was changed, one for the server, and none of the server's own.
        assert {line.partition(" ")[0] for line in err.splitlines()} <= {"nova-hpc"}, err


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_moves_are_one_line_each(what: str) -> None:
    server = drain_api._parse_drain_server({"id": "s1", "name": hostile.TEXTS[what]})
    move = Move("s1", server.name, "n2", "switch", "leaf l1")
    for said in (
        drain_command._format_move(move),
        server_moves._format_moved_server(move),
        *server_moves.find_unmovable_servers([server]),
    ):
        assert said.isprintable()
    host = hostile.TEXTS[what]
    assert drain_command._explain_drain_stop(host, 1, 2, "x").count("\n") == host.count("\n") * 2


def test_sync_shows_steps_of_one_line() -> None:
    for text in hostile.texts():
        for step in (
            SyncStep(CREATE, text),
            SyncStep("add host", text, "1", text),
            SyncStep(METADATA, text, "1", metadata={text: text}),
        ):
            assert sync_command._format_sync_step(step).isprintable()


def test_sync(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "map"
    path.write_text("SwitchName=l1 Nodes=n[1-2]\n")
    for text in hostile.texts():
        monkeypatch.setattr(
            nova_aggregates, "connect_compute_proxy", lambda _, text=text: Compute(text)
        )
        for words in ((), ("-f", "csv"), ("--yes",)):
            _, out, err = ask("fabric", "sync", path, *words)
            assert hostile.obeyed(out + err) == []
            for line in err.splitlines():
                assert line.startswith(("note: ", "nova-hpc fabric sync: ")), line


# -- every command -------------------------------------------------------------------------


class Rows(ListCommand):
    """Lists all of them."""

    def take_action(self, parsed_args: Any) -> CommandAnswer:
        """Two columns."""
        return CommandAnswer(("One", "Other"), [(each, each) for each in hostile.texts()])


class One(RecordCommand):
    """Shows one of them."""

    text = ""

    def take_action(self, parsed_args: Any) -> CommandAnswer:
        """One column more than a text."""
        return CommandAnswer(("One", "Other"), (self.text, self.text))


class Says(ListCommand):
    """Says them, and fails."""

    def take_action(self, parsed_args: Any) -> CommandAnswer:
        """On both streams."""
        for each in hostile.texts():
            self.say(each)
            self.app.LOG.error("%s", each)
        raise CommandError("\n".join(hostile.texts()))


class Documented(ListCommand):
    """Has a document beside its rows."""

    def take_action(self, parsed_args: Any) -> CommandAnswer:
        """The texts."""
        return CommandAnswer(("One",), (), document=lambda: json.dumps({"texts": hostile.texts()}))


def run(command: type[Any], *words: str) -> int:
    app = main.NovaHpc()
    app.command_manager.add_command("it", command)
    return app.run(["it", *words])


@pytest.mark.parametrize("form", ["table", "csv", "value", "json", "yaml"])
def test_rows(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Rows, "-f", form) == 0
    out, err = capsys.readouterr()
    texts = hostile.texts()
    assert (hostile.obeyed(out), err) == ([], "")
    if form == "table":
        assert len(out.splitlines()) == len(texts) + 4
    elif form == "value":
        assert len(out.splitlines()) == len(texts)
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert len(rows) == len(texts)
        assert not [row for row in rows if row["One"].lstrip().startswith(("=", "+", "-", "@"))]
    else:
        # Exactly what was written.
        found = json.loads(out) if form == "json" else yaml.safe_load(out)
        assert [row["One"] for row in found] == texts


@pytest.mark.parametrize("form", ["table", "csv", "value", "json", "yaml", "shell"])
def test_records(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in hostile.texts():
        One.text = text
        assert run(One, "-f", form) == 0
        out, err = capsys.readouterr()
        assert (hostile.obeyed(out), err) == ([], "")
        if form in ("json", "yaml"):
            found = json.loads(out) if form == "json" else yaml.safe_load(out)
            assert found == {"One": text, "Other": text}
        elif form in ("value", "shell"):
            assert len(out.splitlines()) == 2


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Says) == 2
    out, err = capsys.readouterr()
    assert hostile.obeyed(out.replace("\t", "") + err.replace("\t", "")) == []


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Documented, "-f", form) == 0
    out, _ = capsys.readouterr()
    assert hostile.obeyed(out) == []
    found = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert found == {"texts": hostile.texts()}


# -- consoles ------------------------------------------------------------------------------

#: The colours that the console itself writes.
_OWN = re.compile(r"\x1b\[[0-9;]*m")


def shown(stream: io.StringIO) -> Iterator[InertConsole]:
    yield InertConsole(file=stream, force_terminal=True, width=200)
    yield InertConsole(file=InertStream(stream), force_terminal=True, width=200)


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_a_console_has_its_own_colours_alone(what: str) -> None:
    text = hostile.TEXTS[what]
    stream = io.StringIO()
    for console in shown(stream):
        tree = Tree(text)
        tree.add(Text(text, style="bold red"))
        for thing in (text, Text(text, style="green"), tree):
            console.print(thing)
    said = stream.getvalue()
    if text:
        assert "\x1b[1;31m" in said
    assert hostile.obeyed(_OWN.sub("", said).replace("\t", "")) == []
    assert "\x1b]8" not in said


def test_streams_are_put_back() -> None:
    before = sys.stdout, sys.stderr
    with contextlib.suppress(ValueError), inert_streams():
        assert isinstance(sys.stdout, InertStream)
        raise ValueError("x")
    assert (sys.stdout, sys.stderr) == before


def test_services_do_not_speak_of_servers_by_their_names() -> None:
    """A name in a log could be a line of the log; only what makes snapshots reads names."""
    top = Path(main.__file__).parents[1]
    packages = list_production_folders()
    found = {
        str(path.relative_to(top))
        for package in packages
        for path in (top / package).rglob("*.py")
        if re.search(r"\bdisplay_name\b", path.read_text(encoding="utf-8"))
    }
    assert found == {
        "nova_hpc_tools/readers/server_requests.py",
        "nova_hpc_tools/readers/snapshot_hosts.py",
    }
