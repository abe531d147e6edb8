# SPDX-License-Identifier: Apache-2.0
"""Cleaners: found by name, and what they do with a device of theirs."""

import re
from types import SimpleNamespace

import pytest
from oslo_config import types

from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.cleaner import (
    CleanerError,
    CleanError,
    CleanerTools,
    NvidiaGpu,
    OwnResets,
    check_gpu_memory,
)
from nova_hpc.tenancy.hygiene.own_reset import ResetFile
from nova_hpc.topology import sysfs
from nova_hpc.topology.vfio import Vfio
from tests.unit.adopt.machines import gpu
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make

ADDRESS = "0000:41:00.0"


@pytest.fixture
def tools(tmp_path):
    done = []
    return CleanerTools(root=tmp_path, timeout=20.0, reset=done.append), done


def test_roles(tools):
    found = cleaner.load_cleaners({"vf": "vf", "gpu": "generic"}, tools[0])
    assert type(found.of("vf")) is cleaner.VirtualFunction
    assert (
        type(found.of("gpu")) is type(found.of("else")) is type(found.of(None)) is cleaner.Generic
    )


def test_an_unknown_cleaner_is_named(tools):
    with pytest.raises(CleanerError, match=r"\[hpc\]cleaners.*'brush'"):
        cleaner.load_cleaners({"gpu": "brush"}, tools[0])


@pytest.mark.parametrize("kind", [cleaner.Generic, cleaner.VirtualFunction, NvidiaGpu])
@pytest.mark.parametrize(
    ("driver", "resets"), [("vfio-pci", 1), (None, 1), ("mlx5_vfio_pci", 1), ("mlx5_core", 0)]
)
def test_no_reset_below_a_driver_of_the_host(tools, kind, driver, resets):
    kind(tools[0]).clean(gpu(ADDRESS, driver=driver, reset_methods=("flr",)))
    assert tools[1] == [ADDRESS] * resets


def test_a_device_without_a_reset_that_the_operator_allows(tmp_path):
    done = []
    function = gpu(ADDRESS, driver="vfio-pci", reset_methods=())
    for need in (True, False):
        allowed = CleanerTools(root=tmp_path, timeout=20.0, reset=done.append, need_reset=need)
        cleaner.Generic(allowed).clean(function)
    assert done == [ADDRESS]  # where it is needed, the kernel is asked, and refuses


# -- cleaners of vendors ----------------------------------------------------------------


def distribution(folder, name, source, entry="acme"):
    """A distribution *name* with one module and one cleaner; its folder."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[nova_hpc.cleaners]\n{entry} = {name}:Acme\n")
    head = """from nova_hpc.tenancy.hygiene.cleaner import Generic
from nova_hpc.tenancy.hygiene.own_reset import ResetFile, ResetProgram
"""
    (folder / f"{name}.py").write_text(head + source)
    return folder


GOOD = """class Acme(Generic):
    resets = (ResetFile("engines", "acme/reset_engines"),)
"""


def test_a_cleaner_of_a_vendor_is_given_its_own_reset(tools, vendor):
    found = cleaner.load_cleaners({"gpu": "acme"}, tools[0]).of("gpu")
    given = []
    found.tools = CleanerTools(
        root=tools[0].root, timeout=1.0, reset=lambda *all: given.append(all)
    )
    for methods in (None, ("flr",), ()):
        found.clean(gpu(ADDRESS, driver="vfio-pci", reset_methods=methods))
    assert given == [(ADDRESS, ResetFile("engines", "acme/reset_engines", "all\n"))] * 3
    # A driver of the host has not reset it.
    for driver, vfio in (("acme", Vfio.NO), ("acme", Vfio.VENDOR), (None, Vfio.NO)):
        found.clean(gpu(ADDRESS, driver=driver, vfio=vfio, reset_methods=()))
    assert len(given) == 6


def test_a_role_has_one_cleaner():
    with pytest.raises(ValueError, match="Duplicate key gpu"):
        types.Dict()("gpu:acme,gpu:generic")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("class Acme: pass", "is no nova_hpc.tenancy.hygiene.cleaner.Cleaner"),
        ("Other = 1", "'acme' cannot be loaded"),
        ("import no_such_module", "'acme' cannot be loaded"),
        ("raise ValueError('no licence')", "'acme' cannot be loaded: ValueError: no licence"),
        (GOOD.replace("acme/", "../"), "'acme' cannot be used: its reset 'engines' cannot be used"),
        (GOOD.replace("(ResetFile", "[ResetFile").replace(",)", "]"), "its resets are no tuple"),
        (
            f"{GOOD}    def __init__(self, tools): raise OSError('no card')",
            "'acme' cannot be made: OSError: no card",
        ),
    ],
)
def test_a_cleaner_that_cannot_be_used(tools, install, tmp_path, request, source, text):
    # Each has a module of its own: Python loads a name once.
    name = f"acme_{abs(hash(request.node.name))}"
    install(distribution(tmp_path / "one", name, source))
    with pytest.raises(CleanerError, match=re.escape(text)) as raised:
        cleaner.load_cleaners({"gpu": "acme"}, tools[0])
    assert "[hpc]cleaners" in str(raised.value)
    if "cannot be made" not in text:
        assert cleaner.find_erasing_cleaners({"gpu": "acme"}) == {}
        assert OwnResets.from_options(options(tmp_path)).of_role == {}


def test_two_distributions_that_register_one_name(tools, install, tmp_path):
    for name in ("acme_first", "acme_second"):
        install(distribution(tmp_path / name, name, GOOD))
    with pytest.raises(CleanerError, match=r"(?i)'acme' cannot be loaded: multiple"):
        cleaner.load_cleaners({"gpu": "acme"}, tools[0])


def test_a_reset_is_found_by_its_name_and_role(vendor):
    names = {"gpu": "acme", "nic": "acme-choosy", "vf": "vf"}
    assert cleaner.find_declared_reset(names, "gpu", "engines").text == "all\n"
    assert cleaner.find_declared_reset(names, "nic", "card").path == "acme/reset_card"
    for role, name in (
        ("gpu", "card"),
        ("vf", "engines"),
        ("other", "engines"),
        (None, "engines"),
        ("gpu", ""),
        ("gpu", "acme/reset_engines"),
        ("gpu", "../reset"),
    ):
        with pytest.raises(CleanerError, match="has no reset"):
            cleaner.find_declared_reset(names, role, name)
    with pytest.raises(CleanerError, match="cannot be loaded"):
        cleaner.find_declared_reset({"gpu": "gone"}, "gpu", "engines")


# -- which reset a device has -----------------------------------------------------------


def options(root, names=None, **more):
    names = {"gpu": "acme"} if names is None else names
    return SimpleNamespace(
        **{"cleaners": names, "clean_devices": True, "sysfs_root": str(root), **more}
    )


def test_which_devices_their_cleaner_resets(vendor, tmp_path):
    node = make(tmp_path)
    file = node.devices / GPU / "acme/reset_engines"
    file.parent.mkdir()
    file.write_text("")
    reading = sysfs.read_sysfs_node(tmp_path)
    resets = OwnResets.from_options(options(tmp_path))
    roles = {GPU: "gpu", OTHER: "gpu", "0000:99:00.0": "gpu"}
    assert resets.judge(reading, roles) == {
        GPU: "",
        OTHER: "acme/reset_engines: there is no such file",
    }
    assert resets.judge(reading, {GPU: "nic", OTHER: None}) == {}
    off = OwnResets.from_options(options(tmp_path, clean_devices=False))
    assert off.judge(reading, roles) == {}
    # The kernel resets devices of another model.
    node.write(OTHER, "device", "0x1db4")
    reading = sysfs.read_sysfs_node(tmp_path)
    choosy = OwnResets.from_options(options(tmp_path, {"gpu": "acme-choosy", "vf": "vf"}))
    assert choosy.judge(reading, roles) == {GPU: "acme/reset_card: there is no such file"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return ResetFile('x', 'reset')", "its cleaner chose file reset, which it does not decl"),
        ("return cls.no_such", "its cleaner failed: AttributeError"),
        ("return 'engines'", "its cleaner chose engines, which it does not declare"),
    ],
)
def test_a_choice_that_is_none(vendor, tmp_path, body, text):
    names: dict[str, object] = {"ResetFile": ResetFile}
    exec(f"def choose(cls, function): {body}", names)
    kind = type(
        "Odd",
        (cleaner.Generic,),
        {"resets": (ResetFile("a", "a"),), "choose_reset": classmethod(names["choose"])},
    )
    make(tmp_path)
    found = OwnResets(tmp_path, {"gpu": kind}).judge(sysfs.read_sysfs_node(tmp_path), {GPU: "gpu"})
    assert found[GPU].startswith(text)


# -- NVIDIA's tool: its manual's words; not tried on real hardware -------------------


@pytest.mark.parametrize("output", ["0, 0\n", "451, [N/A]\n", "12, 0"])
def test_clean_memory(output):
    check_gpu_memory(output)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("40000, 0\n", "40000 MiB"),
        ("0, 3\n", "3 uncorrected errors"),
        ("", "no answer"),
        ("No devices were found\n", "no answer"),
        ("0, 0\n0, 0\n", "no answer"),
        ("[N/A], 0\n", "no answer"),
    ],
)
def test_memory_that_is_not_clean(output, text):
    with pytest.raises(CleanError, match=text):
        check_gpu_memory(output)


def tool(tmp_path, monkeypatch, body):
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


BOUND = gpu(ADDRESS, driver="nvidia", reset_methods=("flr",))


def test_the_tool_is_asked(tools, tmp_path, monkeypatch):
    body = 'echo "$@" >>"$0.log"; case "$3" in --query*) echo "0, 0";; esac'
    tool(tmp_path, monkeypatch, body)
    NvidiaGpu(tools[0]).clean(BOUND)
    first, second = (tmp_path / "nvidia-smi.log").read_text().splitlines()
    assert first == f"-i {ADDRESS} --gpu-reset"
    assert second.startswith(f"-i {ADDRESS} --query-gpu=memory.used,")
    assert tools[1] == []


def test_the_tool_fails_hangs_or_is_missing(tools, tmp_path, monkeypatch):
    tool(tmp_path, monkeypatch, "echo 'GPU is in use by another client'; exit 19")
    with pytest.raises(CleanError, match="gpu-reset failed: GPU is in use"):
        NvidiaGpu(tools[0]).clean(BOUND)
    tool(tmp_path, monkeypatch, "sleep 60")
    patient = CleanerTools(root=tmp_path, timeout=0.5, reset=tools[0].reset)
    with pytest.raises(hygiene_reset.ResetError, match="did not answer"):
        NvidiaGpu(patient).clean(BOUND)
    monkeypatch.setattr(cleaner, "_TOOL", "nvidia-smi-that-is-not-there")
    with pytest.raises(CleanError, match="there is no nvidia-smi"):
        NvidiaGpu(tools[0]).clean(BOUND)
