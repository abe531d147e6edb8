# SPDX-License-Identifier: Apache-2.0
"""Cleaners: found by name, and what they do with a device of theirs."""

import pytest

from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.cleaner import (
    CleanerError,
    CleanError,
    CleanerTools,
    NvidiaGpu,
    check_gpu_memory,
)
from tests.unit.adopt.machines import gpu

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
