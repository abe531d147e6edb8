# SPDX-License-Identifier: Apache-2.0
"""A world whose devices only a vendor's cleaner can reset, and whose nova-compute is not root.

The cleaners are those of the example distribution (``tests/vendor_cleaner``): GPUs have a file,
virtual functions a program. The process of the services starts the real privileged helper while
it is root, and is then another user, who can write neither the sysfs nor start the program as
root. So every reset is the helper's, and outlives a kill in a process of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import nova.conf
from oslo_privsep import priv_context
from oslo_serialization import jsonutils

from nova_hpc import conf as hpc_conf
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.ledger import LedgerFile
from tests.functional import fixtures
from tests.functional.driver_fixtures import FakeSysfs
from tests.functional.kills.agent import AGENT
from tests.functional.not_root import USER, become_another_user
from virt_driver_patches import privileged

#: Of a device of the vendor's.
FILE: Final = "acme/reset_engines"
CLEANERS: Final = {"gpu": "acme", "vf": "acme-tool"}
_PACKAGE: Final = Path(__file__).parents[2] / "vendor_cleaner"
#: A reset that is long enough to be interrupted.
_PROGRAM: Final = """#!/bin/sh
sleep 0.2
echo 1 >{}/sys/bus/pci/devices/$2/{}
"""


def make_node(tree: FakeSysfs, program: Path) -> None:
    """Take the kernel's resets from a new node, and give it the vendor's.

    Root owns it, and any user may write what stands for the hardware.
    """
    if program.exists():
        return
    for function in tree.shape.functions():
        if function.kind not in CLEANERS:
            continue
        device = tree.devices / function.address
        for name in ("reset", "reset_method"):
            (device / name).unlink()
        (device / "acme").mkdir()
        (device / FILE).write_text("")
        (device / FILE).chmod(0o666)
    (tree.root / "proc").mkdir()
    (tree.root / "proc/meminfo").touch()
    (tree.root / "proc/meminfo").chmod(0o666)
    program.write_text(_PROGRAM.format(tree.root, FILE))
    program.chmod(0o755)


class Vendor:
    """A world's beginning, before it has threads."""

    folder: Path

    def vendor_ledger(self) -> Path:
        """The service's own directory has it, as ``/var/lib/nova`` does."""
        return self.folder / "state/ledger"

    def begin_vendor(self, tree: FakeSysfs, more: Mapping[str, Any]) -> dict[str, Any]:
        """Start the helper, and be root no more.

        :param tree: the node.
        :param more: options of ``[hpc]`` that the world has beside these.
        :returns: options of ``[hpc]``.
        """
        # Not in the world itself, where the service may write.
        program = self.folder.parent / f"{self.folder.name}-acme-reset"
        make_node(tree, program)
        self.vendor_ledger().parent.mkdir(exist_ok=True)
        for path in (self.folder, *_below(self.folder, tree.root)):
            os.chown(path, USER, USER)
        os.environ["ACME_RESET"] = str(program)
        sys.path.insert(0, str(_PACKAGE))
        options = {
            "sysfs_root": str(tree.root),
            "ledger_file": str(self.vendor_ledger()),
            "cleaners": CLEANERS,
            **more,
        }
        _start_helper(options, tree.shape)
        become_another_user()
        return options


def _below(folder: Path, but: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path == but or path.is_symlink():
            continue
        yield path
        if path.is_dir():
            yield from _below(path, but)


def _start_helper(options: Mapping[str, Any], shape: fixtures.Shape) -> None:
    """Fork the daemon, which finds these options as those of its files."""
    conf = nova.conf.CONF
    hpc_conf.register_all_options(conf)
    conf([], project="nova", default_config_files=[], default_config_dirs=[])
    specs = [jsonutils.dumps(each) for each in shape.device_spec()]
    for name, value in options.items():
        conf.set_override(name, value, group="hpc")
    conf.set_override("device_spec", specs, group="pci")
    service = os.getpid()
    try:
        privileged.default.start(priv_context.Method.FORK)
    finally:
        if os.getpid() != service:
            # The daemon, whose service was killed while it waited for an answer.
            os._exit(1)
    for name in options:
        conf.clear_override(name, group="hpc")
    conf.clear_override("device_spec", group="pci")
    conf.reset()


def install(ledger: Path) -> None:
    """Make a request for a reset two steps: before it is sent, and while the reset is made."""
    plain, locks = privileged._reset_in_helper, LedgerFile(ledger).locks

    def ask(address: str, name: str | None = None) -> Any:
        AGENT.step("reset a device", anywhere=True)
        answers: list[Any] = []

        def wait() -> None:
            try:
                answers.append(plain(address, name))
            except Exception as error:
                answers.append(error)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        while waiter.is_alive() and address not in hygiene_reset.list_busy_resets(locks):
            time.sleep(0.001)
        AGENT.step("a device is being reset", anywhere=True)
        waiter.join()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    privileged._reset_in_helper = ask
