# SPDX-License-Identifier: Apache-2.0
"""What is wrong between the records of a cloud; that it is found on Nova's own stack shows
tests/functional/test_doctor_cloud.py.
"""

import json

import pytest
from attrs import evolve

from nova_hpc_tools.doctor import facts_records as command
from nova_hpc_tools.doctor.checks_records import check_records
from nova_hpc_tools.doctor.command import Doctor
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers
from nova_hpc_tools.snapshot.cloud_records import (
    CloudRecords,
    CyborgProvider,
    Leftover,
    PciProvider,
    RecordedDevice,
    RecordedHost,
    ServiceAlias,
)
from tests.unit.doctor.cure_words import faults_of_cure

GPU, PF = "0000:18:00.0", "0000:19:00.0"
ALPHA = RecordedHost(
    "alpha",
    "alpha.example",
    (RecordedDevice(GPU, "rp-1"), RecordedDevice(PF, "rp-2", 4)),
    ours=True,
)
PROVIDERS = (
    PciProvider("rp-1", "alpha.example", GPU, "CUSTOM_GPU", 1),
    PciProvider("rp-2", "alpha.example", PF, "CUSTOM_VF", 4),
)
SOUND = CloudRecords(
    (ALPHA,), PROVIDERS, aliases=(ServiceAlias("gpu", "CUSTOM_GPU"),), roles={"service"}
)


def checks(records):
    return [each.check for each in check_records(records)]


def test_a_sound_cloud():
    assert check_records(SOUND) == []
    assert check_records(CloudRecords()) == []


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"providers": PROVIDERS[1:], "aliases": ()}, "provider-missing"),
        ({"providers": (PROVIDERS[0], evolve(PROVIDERS[1], total=3))}, "provider-missing"),
        ({"providers": (PROVIDERS[0], evolve(PROVIDERS[1], total=5))}, "provider-excess"),
        ({"hosts": (evolve(ALPHA, devices=ALPHA.devices[1:]),)}, "provider-excess"),
        ({"hosts": ()}, "node-gone"),
        ({"aliases": (ServiceAlias("gpu", "CUSTOM_OTHER"),)}, "alias-nowhere"),
        ({"roles": frozenset({"member"})}, "service-role"),
        ({"roles": frozenset()}, "service-role"),
        (
            {"leftovers": (Leftover("c", "alpha.example", (GPU,), "remove it"),)},
            "allocation-orphaned",
        ),
        ({"hosts": (evolve(ALPHA, unread="has v 9"),)}, "not-read"),
        ({"hosts": (evolve(ALPHA, ours=False, stock=True),)}, "driver-stock"),
        ({"hosts": (evolve(ALPHA, lacks_dedicated_cpus=True),)}, "cpus-none"),
        (
            {"hosts": (evolve(ALPHA, contradictions=("host 'alpha' is in two",)),)},
            "map-contradicts",
        ),
        ({"problems": ("Placement answers 500.",)}, "not-looked"),
        ({"cyborg": (CyborgProvider("alpha.example", "alpha_GPU_1"),)}, "provider-cyborg"),
    ],
)
def test_each_check(change, check):
    (finding,) = check_records(evolve(SOUND, **change))
    assert finding.check == check
    assert faults_of_cure(finding.cure) == []


def test_what_is_reserved_is_given_to_nobody():
    """A device that is withheld: Nova does not track it, and Placement has it still."""
    withheld = evolve(ALPHA, devices=(evolve(ALPHA.devices[1], count=3),))
    providers = (evolve(PROVIDERS[0], reserved=1), evolve(PROVIDERS[1], reserved=1))
    assert checks(evolve(SOUND, hosts=(withheld,), providers=providers)) == []


def test_cyborg_beside_no_device_of_nova_is_no_fault():
    other = (CyborgProvider("beta", "beta_FPGA_1"),)
    assert check_records(evolve(SOUND, cyborg=other)) == []


def test_what_was_not_read_is_not_missing():
    half = evolve(SOUND, problems=("Cell 2 cannot be read.",), complete=False)
    assert checks(half) == ["not-looked"]
    assert checks(evolve(half, hosts=())) == ["not-looked"]
    assert checks(evolve(half, providers=())) == ["not-looked"]


def leaf(*hosts):
    found = []
    for number, (networks, idle) in enumerate(hosts):
        found.append(
            RecordedHost(
                *(f"h{number}",) * 2,
                networks=frozenset(networks.split()),
                idle=idle,
                leaf="leaf1",
                placed=True,
            )
        )
    return CloudRecords(tuple(found))


@pytest.mark.parametrize(
    ("hosts", "odd"),
    [
        ((("a b", True), ("a b", True), ("a", True)), "h2 has adapters in a,"),
        # Its adapter of b may be in use.
        ((("a b", True), ("a b", True), ("a", False)), None),
        ((("a b", True), ("a b", True), ("a c", False)), "h2 has adapters in a and c,"),
        # Nobody knows which of them is right.
        ((("a", True), ("b", True)), None),
        ((("a", False), ("b", False)), None),
        # One without ports is no odd one.
        ((("a", True), ("a", True), ("", True)), None),
        ((("a", True),) * 7 + (("b", True),) * 6, "h10, h11, h12, h7 and 2 more"),
    ],
)
def test_networks_of_a_leaf(hosts, odd):
    found = check_records(leaf(*hosts))
    assert [each.check for each in found] == (["rails-mixed"] if odd else [])
    assert all(odd in each.seen for each in found)


def test_hosts_that_the_map_does_not_have():
    beta = evolve(ALPHA, host="beta", node="beta", devices=(), placed=True)
    assert checks(evolve(SOUND, hosts=(ALPHA, beta))) == ["host-no-leaf"]
    # Without this project's driver, and without devices, none has to be there.
    for change in ({"ours": False}, {"placed": True}):
        assert checks(evolve(SOUND, hosts=(evolve(ALPHA, **change), beta))) == []
    two = evolve(ALPHA, contradictions=("host 'alpha' is in the maps 'a' and 'b' at once",))
    assert checks(evolve(SOUND, hosts=(two, beta))) == ["map-contradicts"]


# -- the command ---------------------------------------------------------------------------


@pytest.fixture
def cloud(monkeypatch):
    """What is read, one after the other."""
    looks = []

    def read(track):
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cloud_readers, "records_reader", lambda config: read)
    return looks


def test_two_looks(cloud):
    """What only changes between them is no fault."""
    cloud[:] = [SOUND]
    assert command.examine_records_twice(()) == []
    gone, reserved = evolve(SOUND, hosts=()), evolve(SOUND, roles=frozenset())
    cloud[:] = [gone, SOUND]
    assert command.examine_records_twice(()) == []
    cloud[:] = [gone, reserved]
    assert command.examine_records_twice(()) == []
    both = evolve(gone, roles=frozenset())
    cloud[:] = [both, reserved]
    assert [each.check for each in command.examine_records_twice(())] == ["service-role"]
    assert cloud == []


def test_a_look_that_was_not_whole_clears_nothing(cloud):
    part = evolve(SOUND, problems=("Cell c2 cannot be read.",))
    faulty = evolve(SOUND, roles=frozenset())
    for looks, found in (
        ([part, faulty], ["service-role"]),
        ([faulty, part], ["not-looked"]),
        ([part, SOUND], []),
    ):
        cloud[:] = looks
        assert [each.check for each in command.examine_records_twice(())] == found


def test_a_cloud_that_cannot_be_read(cloud):
    cloud[:] = [SnapshotError("Nova cannot be loaded here.")]
    (found,) = command.examine_records_twice((), alone=False)
    assert (found.check, found.seen) == (
        "not-looked",
        "The cloud was not checked: Nova cannot be loaded here.",
    )
    cloud[:] = [SnapshotError("no")]
    with pytest.raises(SnapshotError):
        command.examine_records_twice(())


def doctor(*words):
    found = Doctor(None, None)
    return found.run(found.get_parser("nova-hpc doctor").parse_args(["--part", "cloud", *words]))


def test_the_command(cloud, capsys, tmp_path):
    """Where nothing but the cloud is looked at, no device and no declaration has to be there."""
    conf = tmp_path / "nova.conf"
    conf.write_text('[pci]\nalias = {"name": "gpu"}\n', encoding="ascii")
    config = ("--config-file", str(conf))
    cloud[:] = [SOUND]
    assert doctor(*config) == 0
    assert capsys.readouterr().out == "Nothing is wrong.\n"
    cloud[:] = [evolve(SOUND, hosts=())] * 2
    assert doctor(*config) == 1
    assert capsys.readouterr().out.startswith("WARNING alpha.example: Placement has")
    cloud[:] = [evolve(SOUND, hosts=())] * 2
    assert doctor(*config, "-f", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in found["findings"]] == ["node-gone"]
    # doctor --merge compares them with those of nodes.
    assert found["aliases"] == ['{"name": "gpu"}']
    cloud[:] = [SnapshotError("Nova's database cannot be read")]
    assert doctor(*config) == 2
    assert capsys.readouterr().err == "nova-hpc doctor: Nova's database cannot be read\n"
