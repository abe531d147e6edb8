"""The cache: whole entries only, whatever interrupts or damages them."""

import json
import multiprocessing

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
