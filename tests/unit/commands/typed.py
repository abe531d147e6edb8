# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc`` as a command of a shell, without the second that Python and its imports take.

One process has imported it all and forks for each call: :class:`Server`, which runs this file
with the name of a socket; the command itself is this file, too, with the words of the call.
"""

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

_MOST = 1 << 20

COMMAND = """\
#!/bin/sh
case "$1" in
    configure) case "$*" in
        *--declaration*) ;;
        *--write*) more=${{DECLARATION:+--declaration $DECLARATION}};;
    esac;;
    prepare|doctor|status) more=${{DECLARATION:+--declaration $DECLARATION}};;
esac
case "$*" in "device "*) ROOT=;; esac
{python} -I -S {here} {socket} nova-hpc "$@" ${{ROOT:+--root "$ROOT"}} $more
status=$?
echo "$status ${{NODE:-deploy}} $*" >>{calls}
exit $status
"""


class Server:
    """The process; several nodes can have commands that ask it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "socket"
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._path],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout.readline() == b"ready\n"

    def write_command(self, calls: Path) -> str:
        """Text of a command that asks the process.

        It adds ``--root $ROOT``, and ``--declaration $DECLARATION`` to commands that read or
        write it, where these are set: a node of files stands for the machine. It writes its exit
        status, ``$NODE`` and its words into the file *calls*.
        """
        return COMMAND.format(python=sys.executable, here=__file__, socket=self._path, calls=calls)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._process.stdout.close()


def blocks(page: Path) -> list[str]:
    """The command blocks of a page of the documentation, in their order."""
    found = re.findall(
        r"(?<!\.\. warning)(?<!\.\. note)::\n\n((?:   .*\n|\n)+)", page.read_text(encoding="utf-8")
    )
    return [textwrap.dedent(each).strip() for each in found]


def yaml_blocks(page: Path) -> list[str]:
    """The blocks of YAML of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^( *)\.\. code-block:: yaml\n\n((?:\1   .*\n|\n)+)", text, re.M)
    return [f"{textwrap.dedent(each).strip()}\n" for _, each in found]


def ask(path, words):
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        text = json.dumps([words, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(there, [text], [0, 1, 2])
        there.shutdown(socket.SHUT_WR)
        return int(there.recv(16))


def serve(path):
    from nova_hpc_tools.main import main

    for name in ("adopt.configure", "doctor", "inventory.fleet_comparison"):
        importlib.import_module(f"nova_hpc_tools.{name}")

    with socket.socket(socket.AF_UNIX) as here:
        here.bind(path)
        here.listen()
        print("ready", flush=True)
        while True:
            there, _ = here.accept()
            with there:
                text, files, _, _ = socket.recv_fds(there, _MOST, 3)
                while more := there.recv(_MOST):
                    text += more
                words, folder, environment = json.loads(text)
                child = os.fork()
                if not child:
                    status = 70
                    try:
                        for number, file in enumerate(files):
                            os.dup2(file, number)
                        os.chdir(folder)
                        os.environ.clear()
                        os.environ.update(environment)
                        status = main(words[1:])
                        sys.stdout.flush()
                    except SystemExit as end:
                        status = end.code
                    finally:
                        sys.stderr.flush()
                        os._exit(status)
                for file in files:
                    os.close(file)
                _, status = os.waitpid(child, 0)
                there.sendall(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
