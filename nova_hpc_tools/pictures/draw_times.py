# SPDX-License-Identifier: Apache-2.0
"""Draws hosts over time: their servers until these end, then the request that fits."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Final
from xml.etree.ElementTree import Element

import attrs

from nova_hpc_common.output.canvas import (
    Block,
    add_element,
    add_text,
    add_tooltip,
    estimate_text_width,
)
from nova_hpc_common.wire.planned_work import format_planned_time

#: Hosts that are drawn, and servers of each; the others are counted.
MOST_HOSTS: Final = 24
MOST_SERVERS: Final = 8
_PAD: Final = 6
_LANE: Final = 18
_BAR: Final = 14
_GAP: Final = 4
#: The column of names, and the lines above the first host.
_LEFT: Final = 130
_HEAD: Final = 36
_MOST_TICKS: Final = 7
_SECOND: Final = datetime.timedelta(seconds=1)
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
#: Seconds between two ticks.
_STEPS: Final = (
    *(300, 900, 1800, _HOUR, 2 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY),
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LATEST: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)


@attrs.frozen
class ServerBar:
    """A server that has devices of a host, until it ends."""

    name: str
    uuid: str
    #: None if unknown.
    end: datetime.datetime | None = None
    #: The source of the end, such as ``hpc:until``.
    source: str = ""


@attrs.frozen
class HostTimes:
    """A host on which members of the request will fit, with its servers, the first to end first."""

    name: str
    members: int
    servers: tuple[ServerBar, ...] = ()


@attrs.frozen
class TimePicture:
    """The hosts of a request over time; none if no time is known at which it fits."""

    title: str
    facts: tuple[str, ...]
    #: Name of the flavor.
    flavor: str
    start: datetime.datetime
    #: The time from which on the request fits.
    fits: datetime.datetime
    hosts: tuple[HostTimes, ...] = ()
    problems: tuple[str, ...] = ()


@attrs.frozen
class _Axis:
    start: datetime.datetime
    #: It may be longer than the rest of time.
    span: datetime.timedelta
    right: int

    def place(self, moment: datetime.datetime) -> float:
        """Return the x of a moment; of a later one than the last, the right edge."""
        return _LEFT + min(1, (moment - self.start) / self.span) * (self.right - _LEFT)

    def list_ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the x and the text of each tick that has room for its text."""
        seconds = min(self.span, _LATEST - self.start) // _SECOND
        step = next((step for step in _STEPS if seconds <= step * _MOST_TICKS), _STEPS[-1])
        while seconds > step * _MOST_TICKS:
            step *= 2
        first = (self.start - _EPOCH) // _SECOND
        for second in range(-first % step, seconds + 1, step):
            moment = self.start + second * _SECOND
            text = f"{moment:%Y-%m-%d}" if step >= _DAY else f"{moment:%m-%d %H:%M}"
            x = self.place(moment)
            if x + estimate_text_width(text) <= self.right:
                yield x, text


def draw_times(picture: TimePicture, width: int) -> Block:
    """Draw the hosts of a request, one below the other, as an SVG group; return it with its size.

    :param width: in pixels.
    """
    group = add_element(None, "g")
    axis = _Axis(picture.start, _choose_span(picture), width - _PAD)
    shown = picture.hosts[:MOST_HOSTS]
    tops: list[int] = []
    bottom = _HEAD
    for host in shown:
        tops.append(bottom)
        height = _LANE * _count_lanes(host) + _GAP
        add_element(group, "rect", y=bottom, width=width, height=height, rx=4, class_="card")
        bottom += height + _GAP
    _draw_axis(group, axis, picture.fits, bottom - _GAP)
    for host, top in zip(shown, tops, strict=True):
        _draw_host(group, axis, host, picture, top + _GAP)
    left_out = len(picture.hosts) - len(shown)
    if left_out:
        add_text(group, f"and {left_out} more host{'s' * (left_out > 1)}", _PAD, bottom + 12, "dim")
        bottom += _LANE
    return Block(width, bottom, group)


def _choose_span(picture: TimePicture) -> datetime.timedelta:
    """Choose the time that the picture shows, so that the bar of the request is seen, too."""
    wait = picture.fits - picture.start
    known = [bar.end for host in picture.hosts for bar in host.servers if bar.end is not None]
    if not wait and known:
        return max(known) - picture.start
    return wait + max(wait * 2 / 5, _HOUR * _SECOND)


def _count_lanes(host: HostTimes) -> int:
    return min(len(host.servers), MOST_SERVERS) + (len(host.servers) > MOST_SERVERS) + 1


def _draw_axis(group: Element, axis: _Axis, fits: datetime.datetime, bottom: int) -> None:
    add_text(group, "UTC", _PAD, 11, "dim")
    add_text(group, format_planned_time(axis.start), _LEFT - _PAD, 29, "dim e")
    for x, text in axis.list_ticks():
        add_element(group, "rect", x=f"{x:.1f}", y=15, width=1, height=bottom - 15, class_="stay")
        add_text(group, text, x, 11, "dim")
    x = axis.place(fits)
    text = f"fits from {format_planned_time(fits)} on"
    add_element(group, "rect", x=f"{x - 1:.1f}", y=18, width=2, height=bottom - 18, class_="ink")
    over = x + estimate_text_width(text, bold=True) + _PAD > axis.right
    add_text(group, text, x - _PAD if over else x + _PAD, 29, "ink b e" if over else "ink b")


def _draw_host(
    group: Element, axis: _Axis, host: HostTimes, picture: TimePicture, top: int
) -> None:
    add_text(group, host.name, _PAD, top + 11, "ink b", _LEFT - 2 * _PAD)
    x = axis.place(picture.fits)
    for bar in host.servers[:MOST_SERVERS]:
        _draw_bar(group, axis, bar, top, x)
        top += _LANE
    left_out = len(host.servers) - MOST_SERVERS
    if left_out > 0:
        text = f"and {left_out} more server{'s' * (left_out > 1)}"
        add_text(group, text, _LEFT + _PAD, top + 11, "dim")
        top += _LANE
    text = f"{host.members} x {picture.flavor}"
    own = _add_bar(group, x, axis.right, top, "free")
    add_tooltip(own, [f"{host.name}: {text} from {format_planned_time(picture.fits)} on"])
    add_text(group, text, x + _PAD, top + 11, "on b", axis.right - x - 2 * _PAD)


def _draw_bar(group: Element, axis: _Axis, bar: ServerBar, top: int, mark: float) -> None:
    until = "no known end" if bar.end is None else f"until {format_planned_time(bar.end)}"
    text = f"{bar.name} · {until}"
    right = axis.right if bar.end is None else axis.place(bar.end)
    shape = _add_bar(group, _LEFT, right, top, "stay" if bar.end is None else "used")
    add_tooltip(shape, [bar.name, bar.uuid, f"{until} ({bar.source})" if bar.source else until])
    wide = estimate_text_width(text)
    inside = right - _LEFT - 2 * _PAD
    if inside >= min(wide, axis.right - right - 2 * _PAD):
        add_text(group, text, _LEFT + _PAD, top + 11, "ink" if bar.end is None else "on", inside)
        return
    x = right + _PAD
    before, after = mark - x - _PAD, axis.right - max(x, mark) - 2 * _PAD
    # The line of the mark crosses no text.
    if before < min(wide, after):
        add_text(group, text, max(x, mark + _PAD), top + 11, "ink", after)
    else:
        add_text(group, text, x, top + 11, "ink", before)


def _add_bar(group: Element, left: float, right: float, top: int, state: str) -> Element:
    return add_element(
        group, "rect", x=f"{left:.1f}", y=top, width=f"{max(2, right - left):.1f}", height=_BAR,
        rx=2, class_=state,
    )  # fmt: skip
