# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of a command on standard error, if it is wanted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_client.cluster.members.server_state import Standing
from nova_hpc_common.output.printing import InertConsole

Counts = Callable[[Cluster, ClusterMember], bool]


def is_active(cluster: Cluster, member: ClusterMember) -> bool:
    """Return whether a member of a cluster runs."""
    return member.standing is Standing.RUNS


@contextlib.contextmanager
def show_member_progress(
    total: int, wanted: bool, word: str = "active", counts: Counts = is_active
) -> Iterator[Callable[[Cluster, str], None]]:
    """Show a bar of the members that are done, on standard error.

    :param total: the number of members in the end.
    :param wanted: False to show nothing.
    :param word: the word for members that are done.
    :param counts: returns whether a member of a cluster is done.
    :returns: a function to call with each reading of the cluster and the present work.
    """
    if not wanted:
        yield lambda cluster, text: None
        return
    console = InertConsole(file=sys.stderr)
    columns = (
        TextColumn(f"{{task.completed:.0f}} of {{task.total:.0f}} members {word}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def say(cluster: Cluster, text: str) -> None:
            done = sum(counts(cluster, member) for member in cluster.members)
            bar.update(task, completed=min(done, total), description=text)

        yield say


@contextlib.contextmanager
def show_text_progress(wanted: bool) -> Iterator[Callable[[str], None]]:
    """Show the present work of a command, on standard error.

    :param wanted: False to show nothing.
    :returns: a function to call with each sentence.
    """
    if not wanted:
        yield lambda text: None
        return
    console = InertConsole(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)


@contextlib.contextmanager
def show_step_progress(wanted: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar of the steps of a phase, on standard error.

    :param wanted: False to show nothing.
    :returns: a function to call with each step: its text, the number of steps done, and of all.
    """
    if not wanted:
        yield lambda what, done, total: None
        return
    console = InertConsole(file=sys.stderr)
    columns = (
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def say(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield say
