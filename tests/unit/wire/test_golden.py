# SPDX-License-Identifier: Apache-2.0
"""Every wire document against texts that lie in the tree.

``v1`` is what today's writer makes of the example (of the guest ABI: ``v2``, and ``v3``
of a server with a segment; of the snapshot: ``v3``);
``v1-first`` is the same example as the first code that had the document wrote it, before
keys were added; the version after today's is what a later release might write. All but
the last are read; that is refused and stays unknown, and so is whatever is broken.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import roles
from nova_hpc.topology.nccl import NCCL_VERSION
from nova_hpc.wire import (
    announcements,
    capture,
    decision,
    device_record,
    guest_abi,
    ledger,
    partitions,
    stats,
    tags,
    unplug,
)
from nova_hpc_common.wire import cluster_wish, member_verdict, position, server_devices
from nova_hpc_common.wire.version import WireDocument, WireError
from nova_hpc_guest import document as guest
from nova_hpc_guest import host_list, install
from nova_hpc_guest.accept import baseline, result, sample
from nova_hpc_guest.gpu import records as gpu_records
from nova_hpc_guest.machine import GuestFunction
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.wire import documents, fabric_map, findings, node_declaration
from tests.unit.topology import nccl_reader
from tests.unit.wire import acceptance_examples, examples
from tests.unit.wire.examples import FOLDER, WRITERS
from tools.wheels import list_production_folders

REPOSITORY = Path(__file__).parents[3]


def read_tags(text: str) -> object:
    return tags.parse_tags(json.loads(text))


def read_record(text: str) -> object:
    return tags.parse_tags(device_record.read_device_record(text))


def read_decision(text: str) -> object:
    found = decision.read_decision(text)
    if found is None:  # it has no other word for "unknown"; nobody takes it for "nothing"
        raise WireError("unknown")
    return found


def read_partitions(text: str) -> object:
    return partitions.read_desired(partitions.DESIRED_PARTITIONS.load(text))


#: What is said of a text that cannot be read; anything else is a bug.
UNKNOWN = (
    WireError,
    guest.DocumentError,
    SnapshotError,
    roles.RoleError,
    sample.AcceptanceError,
    gpu_records.RecordError,
    host_list.WrongHostListError,
)
READERS: dict[str, Callable[[str], object]] = {
    "device-tags": read_tags,
    "device-record": read_record,
    "stats": stats.read_stats,
    "decision": read_decision,
    "guest-abi": guest_abi.read_guest_abi,
    "unplug-mark": unplug.read_unplug,
    "guest-document": lambda text: guest.parse_guest_document(
        text.encode("utf-8", "surrogatepass")
    ),
    "snapshot": snapshot_document.load_cloud_snapshot,
    "ledger": ledger.read_ledger,
    "fabric-map": fabric_map.read_fabric_map,
    "cluster-label": lambda text: cluster_wish.from_group_name(f"hpc:train {text}"),
    "cluster-wish": cluster_wish.read_cluster_wish,
    "position": position.read_position,
    "server-devices": server_devices.read_server_devices,
    "node-declaration": node_declaration.read_declaration,
    "capture-manifest": capture.read_capture_note,
    "findings": findings.read_findings,
    "desired-partitions": read_partitions,
    "acceptance": result.read_acceptance,
    "acceptance-sample": sample.read_sample,
    "acceptance-baseline": baseline.read_baseline,
    "gpu-share": gpu_records.read_share,
    "gpu-slot": gpu_records.read_slot,
    "gpu-client": gpu_records.read_client,
    "host-list": host_list.read_host_list,
}
#: What the golden text means.
MEANING: dict[str, object] = {
    "device-tags": examples.TAGS,
    "device-record": examples.TAGS,
    "stats": examples.STATS,
    "decision": examples.DECISION,
    "guest-abi": examples.ABI,
    "unplug-mark": examples.UNPLUG,
    "snapshot": examples.SNAPSHOT,
    "ledger": examples.LEDGER,
    "fabric-map": examples.FABRIC,
    "cluster-label": cluster_wish.Label(
        name="train",
        members=examples.WISH.members,
        attempt="a77e01fc",
        digest=examples.LABEL_OF.digest,
        wish=examples.LABEL_OF,
    ),
    "cluster-wish": examples.WISH,
    "position": examples.POSITION,
    "server-devices": examples.DEVICES,
    "node-declaration": examples.DECLARED,
    "capture-manifest": examples.REPLACED,
    "acceptance": result.AcceptanceSummary(
        *("promise broken", 1, "quick", "11111111-2222-3333-4444-555555555555", True),
        *(("pages-small",), ("blas",)),
    ),
    "acceptance-sample": acceptance_examples.GUEST_SAMPLE,
    "findings": examples.FOUND,
    "desired-partitions": examples.DESIRED,
    "gpu-share": examples.GPU_SHARE,
    "gpu-slot": examples.GPU_SLOT,
    "gpu-client": examples.GPU_CLIENT,
    "host-list": examples.HOST_LIST,
}


#: Documents of which this release does not write version 1.
WRITTEN = {"guest-abi": 2, "snapshot": 4}
#: The versions after today's that are not the next one.
LATER = {"guest-abi": 4, "cluster-label": 3, "cluster-wish": 3}


def today(name: str) -> str:
    return golden(f"{name}/v{WRITTEN.get(name, 1)}.json")


def golden(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_today(name: str) -> None:
    assert WRITERS[name]() == golden(name)


@pytest.mark.parametrize("name", MEANING)
def test_what_is_read_today(name: str) -> None:
    assert READERS[name](today(name)) == MEANING[name]


def test_the_guest_reads_what_it_is_promised() -> None:
    found = READERS["guest-document"](golden("guest-document/v1.json"))
    assert isinstance(found, guest.GuestDocument)
    assert found.cells == (guest.GuestCell(4, 1 << 21, 2048), guest.GuestCell(2, 1 << 20, None))
    assert [(each.role, each.ids, each.path) for each in found.devices] == [
        ("gpu", ("10de", "2330"), ("20", "00.0", "00.0")),
        ("vf", ("15b3", "101e"), ("20", "00.0", "01.0")),
    ]
    assert found.peers == (guest.Peers(0, (1,), "root", "acs-redirect", False),)
    assert found.peer_wish == "translated"
    assert found.fabric == (("block", "b-5a07"), ("leaf", "l-93c2"))
    assert [each.rail for each in found.devices] == [None, "r-0a11"]
    assert [(each.pkey, each.service_level) for each in found.devices] == [
        (None, None),
        (0x0101, 3),
    ]


def test_nccl_reads_what_the_guest_fills_in() -> None:
    template = golden("nccl-topology/v1.xml")
    assert template.startswith(f'<system version="{NCCL_VERSION}">')
    places = {0: "0000:21:00.0", 1: "0000:22:00.0"}
    functions = {
        number: GuestFunction(**{**dict.fromkeys(GuestFunction._fields), "address": address})
        for number, address in places.items()
    }
    text, left_out = install.fill_in_addresses(template, functions)
    assert left_out == []
    assert nccl_reader.devices(nccl_reader.read(text)).keys() == set(places.values())
    assert install.fill_in_addresses(template, {})[1] == [0, 1]


def test_the_declaration_is_read() -> None:
    entries = golden("declaration/v1.txt").splitlines()
    first = ("nvswitch", "gpu", "vf", "pf", "nic")
    assert roles.parse_roles(entries).names == (*first, "ethvf", "ethpf", "ethnic")
    assert roles.parse_good_roles(entries) == roles.parse_roles(entries)
    assert roles.parse_roles(golden("declaration/v1-first.txt").splitlines()).names == first


# -- the texts of former code ----------------------------------------------------------


def test_texts_of_the_first_code_are_read() -> None:
    assert READERS["decision"](golden("decision/v1-first.json")) == attrs.evolve(
        examples.DECISION, redirected=None
    )
    assert READERS["device-tags"](golden("device-tags/v1-first.json")) == attrs.evolve(
        examples.TAGS, nvlink=None
    )
    assert READERS["stats"](golden("stats/v1-first.json")) == attrs.evolve(
        examples.STATS, differs={}, states={}, unusable=(), kinds={}
    )
    assert READERS["guest-abi"](golden("guest-abi/v1.json")) == attrs.evolve(
        examples.ABI, version=1
    )
    assert READERS["desired-partitions"](golden("desired-partitions/v1-first.json")) == (
        attrs.evolve(
            examples.DESIRED,
            policies={
                pkey: attrs.evolve(policy, mtu=None)
                for pkey, policy in examples.DESIRED.policies.items()
            },
        )
    )
    readings = dict(acceptance_examples.GUEST_SAMPLE.readings)
    del readings["timer_p99"]
    assert READERS["acceptance-sample"](golden("acceptance-sample/v1-first.json")) == (
        acceptance_examples.GUEST_SAMPLE._replace(readings=readings)
    )
    assert READERS["acceptance"](golden("acceptance/v1-first.json")) == MEANING["acceptance"]
    # Not a former one, and not one for every server.
    assert READERS["guest-abi"](golden("guest-abi/v3.json")) == examples.ABI_WITH_SEGMENT
    (server,) = examples.SNAPSHOT.servers
    unknown = {"project": None, "until": None, "movable": None, "immobile": None, "live": None}
    assert READERS["snapshot"](golden("snapshot/v3.json")) == attrs.evolve(
        examples.SNAPSHOT, servers=(attrs.evolve(server, **unknown),), groups=(), leases=()
    )
    with pytest.raises(UNKNOWN, match="take the snapshot again"):
        READERS["snapshot"](golden("snapshot/v3.json").replace('"version": 3', '"version": 2'))
    now = READERS["guest-document"](golden("guest-document/v1.json"))
    assert isinstance(now, guest.GuestDocument)
    # Of releases that did not say so: no place has got other hardware, and no device is watched
    # or reported.
    said = {
        each: attrs.evolve(found, replaced=False, watch=None, report=None)
        for each, found in examples.LEDGER.devices.items()
    }
    bare = {"trial": None, "last_server": None, "counted": None, "proof": None}
    # Of a release that took silence for clean: nothing is.
    unproved = {each: attrs.evolve(found, proof=None) for each, found in said.items()}
    nothing = announcements.PlannedDeviceWork()
    new = {"compared": False, "node": "", "written": "", "planned": nothing}
    assert READERS["ledger"](golden("ledger/v1-unproved.json")) == attrs.evolve(
        examples.LEDGER, devices=unproved, **new
    )
    assert READERS["ledger"](golden("ledger/v1-first.json")) == attrs.evolve(
        examples.LEDGER,
        devices={each: attrs.evolve(found, **bare) for each, found in said.items()},
        absent={},
        maintenance=None,
        accepted=(),
        providers={},
        **new,
    )
    first = READERS["guest-document"](golden("guest-document/v1-first.json"))
    devices = tuple(each._replace(rail=None, pkey=None, service_level=None) for each in now.devices)
    assert first == now._replace(devices=devices, peers=(), fabric=(), peer_wish="keep")
    assert READERS["position"](golden("position/v1-first.json")) == attrs.evolve(
        examples.POSITION, rails=()
    )
    assert READERS["cluster-wish"](golden("cluster-wish/v1-first.json")) == attrs.evolve(
        examples.WISH, gpu_share="", hosts=False, adopted=False, mounts=(), healed=()
    )
    # Nor these: of clusters that have a head.
    headed = READERS["cluster-label"](golden("cluster-label/v2.json"))
    assert isinstance(headed, cluster_wish.Label)
    assert (headed.head, headed.wish) == (True, examples.LABEL_WITH_HEAD)
    assert READERS["cluster-wish"](golden("cluster-wish/v2.json")) == examples.WISH_WITH_HEAD
    assert READERS["host-list"](golden("host-list/v1-head.json")) == examples.HOST_LIST_WITH_HEAD
    pairs = READERS["decision"](golden("decision/v1-pairs.json"))
    assert pairs == examples.DECISION_OF_PAIRS


def test_the_inventory_has_kept_its_keys() -> None:
    def keys(value: Any) -> set[str]:
        parts = value.values() if isinstance(value, dict) else value
        below = [keys(each) for each in parts if isinstance(each, (dict, list))]
        return set(value if isinstance(value, dict) else ()).union(*below)

    first, now = (json.loads(golden(f"inventory/{name}.json")) for name in ("v1-first", "v1"))
    assert keys(first) < keys(now)
    for before, after in zip(first["functions"], now["functions"], strict=True):
        assert before.items() <= after.items()


# -- later ones ------------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
def test_a_later_version_is_unknown(name: str) -> None:
    later = LATER.get(name, WRITTEN.get(name, 1) + 1)
    with pytest.raises(UNKNOWN) as error:
        READERS[name](golden(f"{name}/v{later}.json"))
    assert name == "decision" or str(later) in str(error.value)


@pytest.mark.parametrize("name", READERS)
def test_a_key_more_is_no_new_version(name: str) -> None:
    text = today(name)
    document = json.loads(text)
    document["hpc_more"] = "later"
    if name in ("snapshot", "node-declaration"):  # a wrong answer would be worse than none
        with pytest.raises(UNKNOWN, match="hpc_more is no known field of this version"):
            READERS[name](json.dumps(document))
    else:
        assert READERS[name](json.dumps(document)) == READERS[name](text)


def test_the_node_declaration_is_read_as_it_is_written() -> None:
    assert READERS["node-declaration"](golden("node-declaration/v1.yaml")) == examples.DECLARED


def test_a_key_more_of_the_declaration_is_refused_by_name() -> None:
    entry = '{"role": "gpu", "vendor_id": "10de", "serial": "1"}'
    with pytest.raises(roles.RoleError, match="'serial'"):
        roles.parse_roles([entry])
    assert roles.parse_good_roles([entry]).patterns == ()


# -- broken ones -----------------------------------------------------------------------


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, each in pairs:
        yield (*path, key)
        yield from _paths(each, (*path, key))


@pytest.mark.parametrize("name", READERS)
def test_a_text_that_is_cut_is_unknown(name: str) -> None:
    text = today(name).rstrip("\n")
    for length in range(len(text)):
        if name == "device-tags":
            break  # no text, but a mapping of Nova's
        with pytest.raises(UNKNOWN):
            READERS[name](text[:length])


@pytest.mark.parametrize("name", READERS)
def test_values_of_wrong_types(name: str) -> None:
    """Each is unknown, or means something else; none is an error of another kind."""
    text = today(name)
    for path in _paths(json.loads(text)):
        for value in (None, True, -1, 1.5, 10**30, "", "\ud800", "x" * 300, [], [[]], {}, {"": 0}):
            document = json.loads(text)
            place = document
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = value
            try:
                found = READERS[name](json.dumps(document))
            except UNKNOWN:
                continue
            assert found is not None, (path, value)


@pytest.mark.parametrize("name", [name for name in READERS if name != "device-tags"])
@given(data=st.data())
def test_bytes_that_have_changed(name: str, data: st.DataObject) -> None:
    found = bytearray(today(name).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(found)))
        end = data.draw(st.integers(start, min(len(found), start + 9)))
        found[start:end] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(UNKNOWN):
        assert READERS[name](found.decode("utf-8", "surrogateescape")) is not None


@given(st.binary(max_size=80), st.integers(0, 400))
def test_a_template_for_nccl_that_is_broken(data: bytes, place: int) -> None:
    template = golden("nccl-topology/v1.xml")
    broken = template[:place] + data.decode("latin-1") + template[place:]
    install.fill_in_addresses(broken, {})


# -- the table -------------------------------------------------------------------------


def _resolve(name: str) -> object:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("document", documents.ALL, ids=lambda document: document.name)
def test_every_document_is_what_the_table_says(document: WireDocument) -> None:
    for name in (document.writer, *document.readers):
        assert not name or callable(_resolve(name))
    folder = {"statistics document": "stats"}.get(document.name, document.name)
    folder = folder.lower().replace(" ", "-")
    versions = {path.stem for path in (FOLDER / folder).iterdir()}
    assert {f"v{version}" for version in {*document.reads, document.version}} <= versions
    if document.limit is not None:
        assert len(golden(f"{folder}/v{document.version}.json").encode()) <= document.limit
    assert document.version in document.reads
    page = (REPOSITORY / "docs/source/contributor/wire.rst").read_text(encoding="utf-8")
    assert f"* - {document.name}\n" in page


def test_the_command_in_the_guest_keeps_to_the_table() -> None:
    known = documents.GUEST_DOCUMENT
    assert (known.schema, known.reads) == (guest.SCHEMA, guest.READS)


@pytest.mark.parametrize(
    "key",
    [
        decision.KEY,
        guest_abi.KEY,
        unplug.KEY,
        cluster_wish.KEY,
        position.KEY,
        member_verdict.KEY,
        server_devices.KEY,
    ],
)
def test_a_key_is_written_down_once(key: str) -> None:
    packages = (*list_production_folders(), "lab/nova_hpc_lab")
    places = [
        path
        for package in packages
        for path in (REPOSITORY / package).rglob("*.py")
        if f'"{key}"' in path.read_text(encoding="utf-8")
    ]
    assert len(places) == 1
