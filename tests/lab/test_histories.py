# SPDX-License-Identifier: Apache-2.0
"""Random histories of the lab's node; what may happen in them: tests/lab/histories.py.

``NOVA_HPC_LAB_SEEDS`` is ``first:last``; a history that fails names its seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import history_truth
from tests.lab.conftest import STARTS
from tests.lab.histories import (
    PERIOD,
    SETTINGS,
    History,
    HistoryError,
    World,
    nova_compute,
)

SEEDS = "NOVA_HPC_LAB_SEEDS"
#: What happens in each, after its first server was created.
STEPS = 3


@pytest.fixture
def world(lab: Any) -> Iterator[World]:
    for one in lab.servers():
        lab.openstack("server", "delete", "--wait", one["ID"], check=False)
    found = World(lab)
    found.make_flavors()
    lab.inside(history_truth.START)
    # Nova ends forgotten guests itself, after half an hour: here they stay until a step ends them.
    lab.inside(
        f"printf '[DEFAULT]\\nrunning_deleted_instance_action = noop\\n"
        f"update_resources_interval = {PERIOD}\\n' >{SETTINGS}; sync"
    )
    found.restarted(lambda: lab.inside(nova_compute("KILL")))
    yield found
    lab.inside(f"rm -f {SETTINGS}")
    for each in found.flavors.values():
        found.cloud.compute.delete_flavor(each)


def whole(world: World, before: Any, seed: int) -> History:
    """One history to its end; from its beginning where the emulated machine has reset itself."""
    for _ in range(STARTS):
        boot, history = world.boot(), History(world, before, seed)
        try:
            history.run(STEPS)
        except HistoryError as error:
            if world.boot() == boot:
                raise
            print(f"RESULT: seed {seed}: the node started anew by itself: {error}", flush=True)
            world.begin_again()
        else:
            return history
    raise AssertionError(f"seed {seed}: the node does not stay up")


@pytest.mark.slow
def test_twenty_histories(world: World) -> None:
    first, _, last = os.environ.get(SEEDS, "0:20").partition(":")
    before = world.until(
        lambda: all(not one.used for one in world.providers().values()) and world.providers(),
        "no device is in use",
    )
    print(f"RESULT: {before}")
    for seed in range(int(first), int(last)):
        history = whole(world, before, seed)
        print(f"RESULT: seed {seed}: {' | '.join(history.log)}", flush=True)
    seen = world.look()
    print(
        f"RESULT: {int(last) - int(first)} histories, {sum(world.steps.values())} steps "
        f"({world.steps}), {world.kills} kills, {len(seen.tenures)} guests, "
        f"{len(seen.resets)} resets: no device lost, given twice, given dirty or reset in use"
    )
    # What is judged by was there.
    assert seen.tenures
    assert seen.resets


# -- what histories are judged by can fail -------------------------------------------------

A, B = "0000:43:00.0", "0000:44:10.0"
LOG = f"""
2026-11-23 05:00:10.500+0000: starting up libvirt version: 11.3.0, qemu version: 10.0.2
-device '{{"driver":"vfio-pci","host":"{A}","id":"hostdev0","bus":"pci.5","addr":"0x0"}}' \\
-device '{{"driver":"vfio-pci","host":"{B}","id":"hostdev1","bus":"pci.6","addr":"0x0"}}' \\
2026-11-23 05:00:20.000+0000: shutting down, reason=destroyed
2026-11-23 05:00:30.000+0000: starting up libvirt version: 11.3.0, qemu version: 10.0.2
-device '{{"driver":"vfio-pci","host":"{B}","id":"hostdev0","bus":"pci.5","addr":"0x0"}}' \\
"""
START = 1795410010.5


def printed(*resets: tuple[float, str], other: str = "", since: float = START - 9) -> str:
    written = "".join(f"{at:.6f} {name}\n" for at, name in resets)
    return (
        f"== clock\n{START + 100}\n== running\n u-1  instance-1\n"
        "== defined\n u-1  instance-1\n u-2  instance-2\n"
        f"== resets\n{since:.6f} watching 9\n{written}\n"
        f"== ledger\n{{}}\n== log instance-1\n{LOG}\n== log instance-2\n{other}\n"
    )


def test_the_logs_are_read() -> None:
    seen = history_truth.read(printed((START + 1, A)))
    assert [(one.start - START, one.end, one.devices) for one in seen.tenures] == [
        (0.0, START + 9.5, {A, B}),
        (19.5, math.inf, {B}),
    ]
    assert seen.running == {"u-1": "instance-1"}
    assert seen.defined == {"u-1": "instance-1", "u-2": "instance-2"}
    assert seen.devices("u-1") == {B}
    assert seen.devices("u-2") == frozenset()
    assert [(round(at - START, 3), name) for at, name in seen.resets] == [(1.0, A)]
    with pytest.raises(ValueError, match="resets"):
        history_truth.read("== clock\n1\n== running\n== defined\n== ledger\n")
    with pytest.raises(ValueError, match="nobody watches"):
        history_truth.read("== clock\n1\n== running\n== defined\n== resets\n== ledger\n")


def test_what_must_never_be_is_told() -> None:
    def told(*resets: tuple[float, str], other: str = "") -> list[str]:
        return history_truth.violations(history_truth.read(printed(*resets, other=other)))

    assert told() == []
    assert told((START - 1, A), (START + 15, B)) == []
    (reset,) = told((START + 1, A))
    assert f"{A} was reset at" in reset
    # The last guest runs still.
    assert len(told((START + 50, B))) == 1
    after = LOG.splitlines()
    after[1] = after[1].replace("05:00:10", "05:00:25")
    (dirty,) = told(other="\n".join(after[:3]))
    assert dirty == f"{A} was given to instance-2 with the traces of instance-1"
    assert told((START + 12, A), other="\n".join(after[:3])) == []
    late = history_truth.read(printed(other="\n".join(after[:3]), since=START + 10))
    assert history_truth.violations(late) == []  # whether it was reset is not known
    after[1] = after[1].replace("05:00:25", "05:00:12")
    (twice,) = told(other="\n".join(after[:3]))
    assert twice == f"{A} was given to instance-2 while instance-1 had it"
