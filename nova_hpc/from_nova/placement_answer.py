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
    """The providers of one answer; a provider is read only when it is needed."""

    def __init__(self, summaries: Summaries) -> None:
        self._summaries = dict(summaries)
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._trees: dict[str, list[str]] | None = None

    def free(self, provider: str, resource_class: str) -> int:
        """The free amount of a resource class; 0 if the provider is not in the answer."""
        amounts = self._amounts(provider, resource_class)
        if amounts is None:
            return 0
        taken = self._taken[provider, resource_class] if self._taken else 0
        return int(amounts["capacity"]) - int(amounts["used"]) - taken

    def capacity(self, provider: str, resource_class: str) -> int:
        """A provider's total amount of a resource class, used or free."""
        amounts = self._amounts(provider, resource_class)
        return 0 if amounts is None else int(amounts["capacity"])

    def resources(self, provider: str) -> Iterable[str]:
        """The resource classes of a provider."""
        return self._summaries[provider]["resources"]  # type: ignore[no-any-return]

    def has_traits(self, provider: str, traits: Iterable[str]) -> bool:
        """Whether a provider has all of these traits."""
        provider_traits = self._summaries.get(provider, {}).get("traits") or ()
        return all(trait in provider_traits for trait in traits)

    def tree(self, root: str) -> Sequence[str]:
        """The providers of one host, its own among them; none if it is not in the answer."""
        if self._trees is None:
            trees: dict[str, list[str]] = {}
            for provider, summary in self._summaries.items():
                trees.setdefault(summary.get("root_provider_uuid") or provider, []).append(provider)
            self._trees = trees
        return self._trees.get(root, ())

    def take(self, allocations: Mapping[str, Mapping[str, Any]]) -> None:
        """Subtract the allocations of a server of the request.

        :param allocations: provider -> ``{"resources": {class: amount}}``.
        """
        for provider, allocation in allocations.items():
            for resource_class, amount in allocation["resources"].items():
                self._taken[provider, resource_class] += int(amount)

    def renew(self, root: str, summaries: Summaries) -> None:
        """Replace Placement's data about one host by its present data.

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
    """Free devices of one kind, by Placement's answer; as ``providers.Free``."""

    answer: PlacementAnswer
    kind: DeviceKind

    def has(self, provider: str | None) -> bool:
        """Whether a provider has a free device of the kind."""
        return (
            provider is not None
            and self.answer.free(provider, self.kind.resource_class) > 0
            and self.answer.has_traits(provider, self.kind.traits)
        )

    def of(self, provider: str | None, counted: int) -> int:
        """Free devices of *provider*; its pools count *counted*."""
        if not self.has(provider):
            return 0
        return min(counted, self.answer.free(str(provider), self.kind.resource_class))


def keep_answer(spec: objects.RequestSpec, summaries: Summaries | None) -> None:
    """Store Placement's answer for *spec*; None if there is none."""
    setattr(spec, _ANSWER, None if summaries is None else PlacementAnswer(summaries))


def answer_of(spec: objects.RequestSpec) -> PlacementAnswer | None:
    """The answer that was stored for *spec*; None if there is none."""
    answer: PlacementAnswer | None = getattr(spec, _ANSWER, None)
    return answer


def subtract_consumed(spec: objects.RequestSpec, host: Any) -> None:
    """Subtract the first offer of *host* for a server of *spec* (``_consume_selected_host``)."""
    forget_view(host)
    answer = answer_of(spec)
    offered = getattr(host, "allocation_candidates", None)
    if answer is not None and offered:
        answer.take(offered[0]["allocations"])


def keep_view(host: Any, same: tuple[PlacementAnswer, int] | None, view: Any) -> None:
    """Store the view of a host state, for the other servers of the request.

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
    """The stored view of a host state; None if there is no valid one."""
    kept = getattr(host, _VIEW, None)
    if same is None or kept is None:
        return None
    answer, matching, view = kept
    if answer() is not same[0] or matching != same[1]:
        return None
    return view


def forget_view(host: Any) -> None:
    """Drop the view, because the host state or Placement's data about it has changed."""
    if getattr(host, _VIEW, None) is not None:
        setattr(host, _VIEW, None)
