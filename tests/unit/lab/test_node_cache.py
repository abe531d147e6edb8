# SPDX-License-Identifier: Apache-2.0
"""The cache: whole entries only, whatever interrupts or damages them."""

import hashlib
import json
import multiprocessing
import os
import pty
import subprocess
import sys

import pytest

from nova_hpc_lab.node import cache


def writer(text):
    def make(folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text)

    return make


def forbidden(folder):
    raise AssertionError("the entry is there already")


def test_an_entry_is_made_once(tmp_path):
    made = cache.entry(tmp_path, "a", writer("x"))
    assert (made / "sub" / "file").read_text() == "x"
    assert cache.entry(tmp_path, "a", forbidden) == made


def test_a_damaged_entry_is_made_again(tmp_path):
    made = cache.entry(tmp_path, "a", writer("x"))
    (made / "sub" / "file").write_text("y")
    assert not cache.intact(made)
    cache.entry(tmp_path, "a", writer("x"))
    assert (made / "sub" / "file").read_text() == "x"


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: (made / "sub" / "file").unlink(),
        lambda made: (made / "manifest.json").unlink(),
        lambda made: (made / "manifest.json").write_text("{"),
        lambda made: (made / "manifest.json").write_text("[]"),
        lambda made: (made / "manifest.json").write_text('{"sha256": 1}'),
    ],
)
def test_what_is_missing_or_nonsense_is_not_intact(tmp_path, damage):
    made = cache.entry(tmp_path, "a", writer("x"))
    damage(made)
    assert not cache.intact(made)
    assert cache.intact(cache.entry(tmp_path, "a", writer("x")))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing_that_looks_like_an_entry(tmp_path, error):
    def interrupted(folder):
        (folder / "file").write_text("half")
        raise error

    with pytest.raises(error):
        cache.entry(tmp_path, "a", interrupted)
    assert not (tmp_path / "a").exists()
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def test_what_a_killed_process_left_is_cleaned_away(tmp_path):
    left = tmp_path / ".new-a-x1y2"
    left.mkdir()
    (left / "disk").write_text("half")
    cache.entry(tmp_path, "a", writer("x"))
    assert not left.exists()


def test_other_versions_are_removed_on_request(tmp_path):
    for name in ("image-1", "image-2", "guest-1"):
        cache.entry(tmp_path, name, writer(name))
    cache.remove_others(tmp_path, "image-", "image-2")
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"image-2", "guest-1"}


def _count(folder, queue):
    def make(target):
        queue.put("made")
        (target / "file").write_text("x")

    cache.entry(folder, "a", make)


def test_processes_that_ask_at_once_share_one(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_count, args=(tmp_path, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert queue.get() == "made"
    assert queue.empty()


def test_keys_tell_contents_apart():
    keys = [cache.key_of(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), (b"ab", "d"))]
    assert len(set(keys)) == 4
    assert cache.key_of("a", "b") == cache.key_of(b"a", b"b")


def test_the_manifest_lists_every_file(tmp_path):
    made = cache.entry(tmp_path, "a", writer("x"))
    assert list(json.loads((made / "manifest.json").read_text())["sha256"]) == ["sub/file"]


# Debian's unpacked /dev has such links: they lead to what the reading process itself writes.
ASK = """\
import sys
from pathlib import Path
from nova_hpc_lab.node import cache

def make(folder):
    (folder / "made").write_text("x")
    (folder / "stderr").symlink_to("/proc/self/fd/2")
    (folder / "stdout").symlink_to("/proc/self/fd/1")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to("..")
    with Path(sys.argv[1], "makes").open("a") as stream:
        stream.write("x")

print("some output", file=sys.stderr, flush=True)
cache.entry(Path(sys.argv[1], "cache"), "a", make)
print("more output", file=sys.stderr, flush=True)
"""


def _to_file(run, folder):
    with (folder / "log").open("ab") as log:
        run(stdout=log, stderr=log)


def _to_pipe(run, folder):
    # The parent holds both ends, so a reader of the pipe would wait for ever.
    reading, writing = os.pipe()
    try:
        run(stdout=writing, stderr=writing)
    finally:
        os.close(reading)
        os.close(writing)


def _to_terminal(run, folder):
    master, terminal = pty.openpty()
    try:
        run(stdin=terminal, stdout=terminal, stderr=terminal)
    finally:
        os.close(master)
        os.close(terminal)


def _to_nowhere(run, folder):
    # Not even open: a file that is opened next gets the number of standard error.
    run(preexec_fn=lambda: [os.close(number) for number in (0, 1, 2)])


OUTPUTS = {"file": _to_file, "pipe": _to_pipe, "terminal": _to_terminal, "nowhere": _to_nowhere}


@pytest.mark.parametrize(
    "order",
    [
        "file pipe terminal nowhere",
        "pipe file nowhere terminal pipe",
        "terminal nowhere file pipe file",
        "nowhere terminal pipe file",
    ],
)
def test_wherever_the_output_goes_an_entry_with_links_is_made_once(tmp_path, order):
    def run(**streams):
        subprocess.run(
            [sys.executable, "-c", ASK, str(tmp_path)], check=True, timeout=60, **streams
        )

    for output in order.split():
        OUTPUTS[output](run, tmp_path)
    assert (tmp_path / "makes").read_text() == "x"


def links(folder):
    outside = folder.parent.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "file").write_text("x")
    (folder / "folder").symlink_to(outside)
    (folder / "file").symlink_to(outside / "file")
    (folder / "nothing").symlink_to("/nowhere")


def test_a_link_is_recorded_as_a_link_and_nothing_behind_it_is_read(tmp_path):
    made = cache.entry(tmp_path / "cache", "a", links)
    manifest = json.loads((made / "manifest.json").read_text())
    outside = str(tmp_path / "outside")
    assert manifest["sha256"] == {}
    assert manifest["links"] == {
        "file": f"{outside}/file",
        "folder": outside,
        "nothing": "/nowhere",
    }
    (tmp_path / "outside" / "file").write_text("y")
    assert cache.intact(made)


def test_a_link_that_leads_elsewhere_is_damage(tmp_path):
    made = cache.entry(tmp_path / "cache", "a", links)
    (made / "file").unlink()
    (made / "file").symlink_to("/elsewhere")
    assert not cache.intact(made)


def test_a_link_in_the_place_of_a_file_is_damage_and_is_not_read(tmp_path):
    made = cache.entry(tmp_path, "a", writer("x"))
    same = tmp_path / "same"
    same.write_text("x")
    (made / "sub" / "file").unlink()
    (made / "sub" / "file").symlink_to(same)
    assert not cache.intact(made)


def test_pipes_and_sockets_in_an_entry_are_left_alone(tmp_path):
    def make(folder):
        (folder / "file").write_text("x")
        os.mkfifo(folder / "pipe")

    assert cache.intact(cache.entry(tmp_path, "a", make))


def test_the_manifest_of_an_earlier_release_that_took_links_for_files_is_not_intact(tmp_path):
    made = cache.entry(tmp_path / "cache", "a", links)
    document = {"sha256": {"file": hashlib.sha256(b"x").hexdigest()}}
    (made / "manifest.json").write_text(json.dumps(document))
    assert not cache.intact(made)
