# SPDX-License-Identifier: Apache-2.0
"""Each server can write all of the memory: damage costs a job at most, never another process."""

import random
import subprocess

from tests.shm.stand import LIMIT, MPICH, PART_MIB, PARTS_AT, SHM


def test_directories_and_hostile_bytes_under_sanitizers(programs):
    words = ["make", "check", f"BUILD={programs}"]
    done = subprocess.run(words, cwd=SHM, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks hold" in done.stdout
    assert "beside an enemy" in done.stdout


def _spoil(stand, part, chance):
    """Noise over the directory of a part, whose layout stays readable."""
    with stand.device.open("r+b") as stream:
        stream.seek(PARTS_AT + part * (PART_MIB << 20) + 48)
        stream.write(chance.randbytes((1 << 20) - 48))


def test_a_job_is_right_after_noise_in_all_directories(stand):
    chance = random.Random(1)
    stand.run(MPICH, 2, "one-way", "8000")
    for _ in range(2):
        _spoil(stand, 0, chance)
        _spoil(stand, 1, chance)
        assert "correct" in stand.run(MPICH, 2, "one-way", "80000")


def test_programs_outlive_an_enemy_of_their_server(guarded):
    chance = random.Random(2)
    with guarded.alone(0, "churn", "0", "1000000", "1") as process:
        for _ in range(30):
            if process.poll() is not None:
                break
            _spoil(guarded, chance.randrange(2), chance)
        process.terminate()
        said, _ = process.communicate(timeout=LIMIT)
    # It may see words of the enemy and end by itself; it never steps outside.
    assert process.returncode in (1, -15), said
    assert "Sanitizer" not in said, said
    assert guarded.device.stat().st_size == PARTS_AT + 2 * (PART_MIB << 20)
