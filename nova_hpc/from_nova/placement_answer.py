# SPDX-License-Identifier: Apache-2.0
"""Placement's word about all providers when Nova asked it for candidates.

Nova's scheduler asks once for each request (``get_allocation_candidates``). The answer
holds, beside the candidates, what each provider of their trees has and how much of it is
in use (``provider_summaries``, all resource classes since microversion 1.27; Nova uses
1.36 or later). Filters do not see it: the wrap of ``_select_destinations`` puts it down
on the request specification, which all filters get. So what is free costs no further
request, for however many servers, and nothing is read of hosts that are not asked about.

What the servers of a request have claimed since is subtracted here.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects

from nova_hpc.from_nova.providers import DeviceKind

#: On a request specification.
_ANSWER: Final = "_hpc_placement_answer"
#: On a host state.
_VIEW: Final = "_hpc_view"

#: Provider -> ``{"resources": {class: {"capacity": n, "used": n}}, "traits": [...],
#: "root_provider_uuid": ...}``.
Summaries = Mapping[str, Mapping[str, Any]]


class PlacementAnswer:
    """The providers of one answer; read where it is asked about, and no further."""

    def __init__(self, summaries: Summaries) -> None:
        self._summaries = dict(summaries)
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._trees: dict[str, list[str]] | None = None

    def free(self, provider: str, resource_class: str) -> int:
        """How much of a resource class a provider has left; 0 where it is not in the answer."""
        amounts = self._amounts(provider, resource_class)
        if amounts is None:
            return 0
        taken = self._taken[provider, resource_class] if self._taken else 0
        return int(amounts["capacity"]) - int(amounts["used"]) - taken

    def capacity(self, provider: str, resource_class: str) -> int:
        """How much a provider has of a resource class, whoever uses it."""
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
        """The providers of one host, its own among them; none where it is not in the answer."""
        if self._trees is None:
            trees: dict[str, list[str]] = {}
            for provider, summary in self._summaries.items():
                trees.setdefault(summary.get("root_provider_uuid") or provider, []).append(provider)
            self._trees = trees
        return self._trees.get(root, ())

    def take(self, allocations: Mapping[str, Mapping[str, Any]]) -> None:
        """Subtract what a server of the request has been given.

        :param allocations: provider -> ``{"resources": {class: amount}}``.
        """
        for provider, allocation in allocations.items():
            for resource_class, amount in allocation["resources"].items():
                self._taken[provider, resource_class] += int(amount)

    def renew(self, root: str, summaries: Summaries) -> None:
        """Put what Placement says now in the place of what it said of one host.

        :param summaries: of the host's providers; none: nothing that is asked for is free.
            They hold the claims of the request's own servers, too.
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
        """Free devices of *provider*, of which the pools count *counted*."""
        if not self.has(provider):
            return 0
        return min(counted, self.answer.free(str(provider), self.kind.resource_class))


def keep_answer(spec: objects.RequestSpec, summaries: Summaries | None) -> None:
    """Put down what Placement answered for *spec*; None: it was not asked."""
    setattr(spec, _ANSWER, None if summaries is None else PlacementAnswer(summaries))


def answer_of(spec: objects.RequestSpec) -> PlacementAnswer | None:
    """The answer that was put down for *spec*; None: none."""
    answer: PlacementAnswer | None = getattr(spec, _ANSWER, None)
    return answer


def subtract_consumed(spec: objects.RequestSpec, host: Any) -> None:
    """A server of *spec* has got what *host* offered first (``_consume_selected_host``)."""
    forget_view(host)
    answer = answer_of(spec)
    offered = getattr(host, "allocation_candidates", None)
    if answer is not None and offered:
        answer.take(offered[0]["allocations"])


def keep_view(host: Any, same: tuple[PlacementAnswer, int] | None, view: Any) -> None:
    """Put down what was read of a host state, for the other servers of the request.

    Nova filters the same host states again for each of them, and all but the hosts that
    have got a server are as they were.

    :param same: what the view depends on beside the host: the answer, and which kinds of
        devices are wanted; None: more than that, so it is not kept.
    """
    if same is not None:
        # The host state may stay for the next request, and the answer must not with it.
        answer, matching = same
        setattr(host, _VIEW, (weakref.ref(answer), matching, view))


def recall_view(host: Any, same: tuple[PlacementAnswer, int] | None) -> Any:
    """What was put down of a host state; None: nothing that holds still."""
    kept = getattr(host, _VIEW, None)
    if same is None or kept is None:
        return None
    answer, matching, view = kept
    if answer() is not same[0] or matching != same[1]:
        return None
    return view


def forget_view(host: Any) -> None:
    """A host state has changed, or what Placement says of it."""
    if getattr(host, _VIEW, None) is not None:
        setattr(host, _VIEW, None)
