# SPDX-License-Identifier: Apache-2.0
"""Placement's data about all providers, from Nova's query for candidates.

Nova's scheduler sends one query for each request (``get_allocation_candidates``). The answer
contains, beside the candidates, the inventory and usage of each provider of their trees
(``provider_summaries``, all resource classes since microversion 1.27; Nova uses
1.36 or later). Filters do not see it. The wrap of ``_select_destinations`` stores it
on the request specification, which all filters get. So the free amounts cost no further
query, for any number of servers, and only the hosts in question are read.

The claims of the request's own servers since then are subtracted here.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects

from nova_hpc.from_nova.providers import DeviceKind

#: Attribute of a request specification.
_ANSWER: Final = "_hpc_placement_answer"
#: Attribute of a host state.
_VIEW: Final = "_hpc_view"

#: Provider -> ``{"resources": {class: {"capacity": n, "used": n}}, "traits": [...],
#: "root_provider_uuid": ...}``.
Summaries = Mapping[str, Mapping[str, Any]]


class PlacementAnswer:
    """The provider summaries of one answer of Placement, with the amounts still free."""

    def __init__(self, summaries: Summaries) -> None:
        self._summaries = dict(summaries)
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._trees: dict[str, list[str]] | None = None

    def free(self, provider: str, resource_class: str) -> int:
        """Return the free amount of a resource class at a provider; 0 without the provider."""
        amounts = self._amounts(provider, resource_class)
        if amounts is None:
            return 0
        taken = self._taken[provider, resource_class] if self._taken else 0
        return int(amounts["capacity"]) - int(amounts["used"]) - taken

    def capacity(self, provider: str, resource_class: str) -> int:
        """Return a provider's total amount of a resource class, used or free; 0 if it has none."""
        amounts = self._amounts(provider, resource_class)
        return 0 if amounts is None else int(amounts["capacity"])

    def resources(self, provider: str) -> Iterable[str]:
        """Return the resource classes of a provider in the answer."""
        return self._summaries[provider]["resources"]  # type: ignore[no-any-return]

    def has_traits(self, provider: str, traits: Iterable[str]) -> bool:
        """Whether a provider has all of these traits."""
        provider_traits = self._summaries.get(provider, {}).get("traits") or ()
        return all(trait in provider_traits for trait in traits)

    def tree(self, root: str) -> Sequence[str]:
        """Return UUIDs of all providers of the host with root provider *root*; () if missing."""
        if self._trees is None:
            trees: dict[str, list[str]] = {}
            for provider, summary in self._summaries.items():
                trees.setdefault(summary.get("root_provider_uuid") or provider, []).append(provider)
            self._trees = trees
        return self._trees.get(root, ())

    def take(self, allocations: Mapping[str, Mapping[str, Any]]) -> None:
        """Subtract the allocations of a server that was just scheduled.

        :param allocations: provider -> ``{"resources": {class: amount}}``.
        """
        for provider, allocation in allocations.items():
            for resource_class, amount in allocation["resources"].items():
                self._taken[provider, resource_class] += int(amount)

    def renew(self, root: str, summaries: Summaries) -> None:
        """Replace the answer's data about one host by newer data of Placement.

        :param summaries: of the host's providers; empty if none of the requested devices is
            free. They include the claims of the request's own servers.
        """
        for provider in self.tree(root):
            self._summaries.pop(provider, None)
        for key in [key for key in self._taken if key[0] in {*summaries, *self.tree(root)}]:
            del self._taken[key]
        self._summaries.update(summaries)
        self._trees = None

    def _amounts(self, provider: str, resource_class: str) -> Mapping[str, Any] | None:
        try:
            amounts: Mapping[str, Any] = self._summaries[provider]["resources"][resource_class]
        except KeyError:
            return None
        return amounts


@attrs.frozen
class AnsweredAmounts:
    """The free devices of one kind in an answer of Placement.

    It has the methods of :class:`nova_hpc.from_nova.providers.Free`, which queries Placement
    instead.
    """

    answer: PlacementAnswer
    kind: DeviceKind

    def has(self, provider: str | None) -> bool:
        """Whether *provider* has a free device of this kind."""
        return (
            provider is not None
            and self.answer.free(provider, self.kind.resource_class) > 0
            and self.answer.has_traits(provider, self.kind.traits)
        )

    def of(self, provider: str | None, counted: int) -> int:
        """Count the free devices of *provider*: the smaller of the answer's and *counted*.

        0 if the answer has no such device at the provider.
        """
        if not self.has(provider):
            return 0
        return min(counted, self.answer.free(str(provider), self.kind.resource_class))


def keep_answer(spec: objects.RequestSpec, summaries: Summaries | None) -> None:
    """Store Placement's answer on *spec*; None removes it."""
    setattr(spec, _ANSWER, None if summaries is None else PlacementAnswer(summaries))


def answer_of(spec: objects.RequestSpec) -> PlacementAnswer | None:
    """Return the answer of Placement that was stored on *spec*; None if there is none."""
    answer: PlacementAnswer | None = getattr(spec, _ANSWER, None)
    return answer


def subtract_consumed(spec: objects.RequestSpec, host: Any) -> None:
    """Subtract the devices of the chosen candidate of *host* from the answer stored on *spec*.

    Nova does this at ``_consume_selected_host``.
    """
    forget_view(host)
    answer = answer_of(spec)
    offered = getattr(host, "allocation_candidates", None)
    if answer is not None and offered:
        answer.take(offered[0]["allocations"])


def keep_view(host: Any, same: tuple[PlacementAnswer, int] | None, view: Any) -> None:
    """Store the host view on a host state, for the other servers of the request.

    Nova filters the same host states again for each of them, and only the hosts that
    have got a server have changed.

    :param same: other inputs of the view: the answer, and the kinds of wanted
        devices. None if there are further inputs, so that it is not kept.
    """
    if same is not None:
        # The host state may be kept for the next request, but the answer must not.
        answer, matching = same
        setattr(host, _VIEW, (weakref.ref(answer), matching, view))


def recall_view(host: Any, same: tuple[PlacementAnswer, int] | None) -> Any:
    """Return the host view stored on a host state; None if there is none for these inputs.

    :param same: Placement's answer, and the number of the request's aliases.
    """
    kept = getattr(host, _VIEW, None)
    if same is None or kept is None:
        return None
    answer, matching, view = kept
    if answer() is not same[0] or matching != same[1]:
        return None
    return view


def forget_view(host: Any) -> None:
    """Drop the placement engine's view stored on a host state, because its inputs have changed."""
    if getattr(host, _VIEW, None) is not None:
        setattr(host, _VIEW, None)
