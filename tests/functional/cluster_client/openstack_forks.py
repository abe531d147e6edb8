# SPDX-License-Identifier: Apache-2.0
"""Runs the ``openstack`` command many times without starting Python anew each time.

It imports the client once; each line on its standard input, ``FOLDER NUMBER``, makes it
fork a child that runs the words in ``FOLDER/NUMBER.json``. Beside it lie then the child's
``.out``, ``.err``, ``.pid`` and at last ``.status``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from openstackclient import shell
from openstackclient.compute import client as _compute  # noqa: F401  imported once for all
from openstackclient.image import client as _image  # noqa: F401
from openstackclient.network import client as _network  # noqa: F401

from nova_hpc_client.openstack.v1 import cluster_changes as _life  # noqa: F401
from nova_hpc_client.openstack.v1 import gpu_slots as _gpu  # noqa: F401


def main() -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        folder, number = line.split()
        base = Path(folder) / number
        pid = os.fork()
        if not pid:
            _child(base)
        base.with_suffix(".pid").write_text(str(pid))
        _, status = os.waitpid(pid, 0)
        done = base.with_suffix(".done")
        done.write_text(str(os.waitstatus_to_exitcode(status)))
        done.rename(base.with_suffix(".status"))


def _child(base: Path) -> None:
    call = json.loads(base.with_suffix(".json").read_text())
    outputs = [(".out", 1), (".err", 2)]
    if call.get("closed"):
        # Its reader has gone before it says anything.
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        base.with_suffix(".out").touch()
        outputs = outputs[1:]
    for suffix, number in outputs:
        file = os.open(base.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(call["environment"])
    # A shell that starts the tests in its background has Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        status = shell.main(call["words"]) or 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        status = 130
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
