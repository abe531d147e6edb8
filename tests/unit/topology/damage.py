# SPDX-License-Identifier: Apache-2.0
"""Ways in which a file of sysfs can be broken."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

GARBAGE = (
    b"",
    b"\n",
    b"\0" * 64,
    b"\0" * 5000,
    b"\xff" * 4096,
    b"\xfe\xff\x00\x01\x80",
    b"0x",
    b"0xffffffffffffffffffffffff\n",
    b"99999999999999999999999999\n",
    b"-7\n",
    b"-1\n",
    b"0-99999999999\n",
    b"3-1\n",
    b"ffffffff," * 600 + b"ffffffff\n",
    b"nan\n",
    b"1e9\n",
    "\u0661\u0662\n".encode(),
    b"\x1b[2J\x07",
    b"0000:00:00.0\n",
    b"Node 0 MemTotal: 999999999999999999999 kB\n",
    b"A" * 1_000_000,
)


def remove(path: Path) -> None:
    """Take away whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def delete(path: Path, _chance: random.Random) -> None:
    remove(path)


def truncate(path: Path, chance: random.Random) -> None:
    if path.is_file():
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(data[: chance.randrange(len(data) + 1)])


def garbage(path: Path, chance: random.Random) -> None:
    remove(path)
    path.write_bytes(chance.choice(GARBAGE))


def noise(path: Path, chance: random.Random) -> None:
    remove(path)
    path.write_bytes(chance.randbytes(chance.choice((1, 3, 16, 64, 256, 4096))))


def flip(path: Path, chance: random.Random) -> None:
    if path.is_file() and (data := bytearray(path.read_bytes())):
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        remove(path)
        path.write_bytes(data)


def loop(path: Path, chance: random.Random) -> None:
    remove(path)
    path.symlink_to(chance.choice((path.name, f"./{path.name}", "..", "../..", ".")))


def stray(path: Path, chance: random.Random) -> None:
    """A link to nothing, to another device, or out of the capture."""
    remove(path)
    targets = ("nowhere", "/etc/passwd", "../../../../../../../../../etc", "/sys", "\xff/x", "/")
    path.symlink_to(chance.choice(targets))


def folder(path: Path, chance: random.Random) -> None:
    remove(path)
    path.mkdir()
    if chance.random() < 0.5:
        (path / "0").write_bytes(b"1\n")


def pipe(path: Path, _chance: random.Random) -> None:
    remove(path)
    os.mkfifo(path)


def closed(path: Path, _chance: random.Random) -> None:
    """Nobody may read it; has no effect on root."""
    if path.exists() and not path.is_symlink():
        path.chmod(0)


def extra(path: Path, chance: random.Random) -> None:
    """Something beside it that does not belong there."""
    name = chance.choice(
        ("virtfn0", "node7", "cpu9", "10000:00:00.0", "0000:ff:1f.7", "\udcff", "99")
    )
    target = path.parent / name
    if not os.path.lexists(target):
        target.write_bytes(b"1\n")


Damage = Callable[[Path, random.Random], None]
ALL: tuple[Damage, ...] = (
    delete, truncate, garbage, noise, flip, loop, stray, folder, pipe, closed, extra,
)  # fmt: skip


def apply(top: Path, paths: list[Path], count: int, chance: random.Random) -> list[str]:
    """Break *count* of *paths*; what was done, for the message of a failure."""
    done = []
    for _ in range(count):
        path = chance.choice(paths)
        damage = chance.choice(ALL)
        # An earlier damage may have taken its directory away, or put a link
        # that leads out of the capture in its place.
        parent = Path(os.path.realpath(path.parent))
        if not parent.is_dir() or not parent.is_relative_to(os.path.realpath(top)):
            continue
        damage(path, chance)
        done.append(f"{damage.__name__} {path.relative_to(top)}")
    return done
