# SPDX-License-Identifier: Apache-2.0
"""The gate in front of every function of Nova that this project wraps or overrides.

Both plug-in packages go through it.

A plug-in or a subclass is preferred to a wrap. If Nova has neither, the process's one object
of Nova (never its class, except for the claims of moves) gets a wrapped method,
only on nodes that use this project. Each wrap has a :class:`Patch`, which lists its
requirements and its reason; ``docs/source/contributor/gated-patches.rst`` shows them.
All are checked before the first is installed. The service does not start if the release of
Nova is unknown, or if a function lacks a required parameter.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from inspect import Signature
from pathlib import Path
from typing import Any, Final

import attrs
import nova
from nova import exception, safe_utils
from oslo_log import log as logging

from nova_hpc.from_nova import nova_sources
from nova_hpc.from_nova.cache import Once
from nova_hpc.from_nova.contract import SUPPORTED, running_nova_release

LOG = logging.getLogger(__name__)

_ONCE: Final = Once()

#: Used by both plug-in packages: one has filters to remove, the other the driver.
_CURE: Final = (
    "Install releases that fit together. Until then, in nova-scheduler take the Hpc filters out of "
    "[filter_scheduler]enabled_filters; in nova-compute set "
    "[DEFAULT]compute_driver = libvirt.LibvirtDriver."
)


@attrs.frozen
class Patch:
    """One function of Nova that nova-hpc wraps or overrides, and the reason."""

    #: ``nova.compute.manager:ComputeManager.reboot_instance``; without a class, a function
    #: of the module.
    target: str
    #: Parameters whose names are relied on.
    parameters: tuple[str, ...]
    #: Release -> first and last line, decorators included, in the source of
    #: :data:`nova_hpc.from_nova.nova_sources.READ`.
    lines: Mapping[int, tuple[int, int]]
    #: The behaviour of Nova that makes it necessary.
    why: str
    #: The condition for its removal.
    until: str
    #: Nova's bug; None if no filed bug is known.
    bug: str | None = None
    #: Whether it is a method of the driver's own class, and not a wrap.
    overridden: bool = False

    @property
    def module(self) -> str:
        """The name of Nova's module that contains the function."""
        return self.target.partition(":")[0]

    @property
    def file(self) -> str:
        """The path of Nova's file, from the top of its source."""
        return self.module.replace(".", "/") + ".py"

    @property
    def owner(self) -> str:
        """The name of the function's class; for a function without a class the name of its
        module.
        """
        owner, _, name = self.target.partition(":")[2].rpartition(".")
        return owner if owner and name else self.module.rpartition(".")[2]

    @property
    def name(self) -> str:
        """Name of Nova's function, without its class and module."""
        return self.target.partition(":")[2].rpartition(".")[2]

    def function(self) -> Callable[..., Any]:
        """Return the original function of Nova, without the decorators around it.

        :raises nova.exception.InvalidConfiguration: it is missing, or lacks one of
            the :attr:`parameters`.
        """
        nova_function = inspect.unwrap(getattr(self.of(), self.name, _stand_for_missing))
        if "args" in inspect.signature(nova_function).parameters:
            # One of Nova's decorators hides the wrapped function.
            nova_function = safe_utils.get_wrapped_function(nova_function)
        if not inspect.signature(nova_function).parameters.keys() >= set(self.parameters):
            raise exception.InvalidConfiguration(
                f"This Nova's {self.owner}.{self.name} is not as nova-hpc needs it. {_CURE}"
            )
        plain: Callable[..., Any] = nova_function
        return plain

    def of(self) -> Any:
        """Return Nova's class that has the function, or the module; None if it is missing."""
        module = importlib.import_module(self.module)
        inside = "." in self.target.partition(":")[2]
        return getattr(module, self.owner, None) if inside else module


def _stand_for_missing() -> None:
    """Do nothing: this function has no parameters and stands for one that Nova does not have."""


class Call:
    """One call of a wrapped function of Nova. Calling the object calls Nova's function."""

    def __init__(
        self, plain: Callable[..., Any], signature: Signature, args: Any, kwargs: Any
    ) -> None:
        self._plain, self._args, self._kwargs = plain, args, kwargs
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self._bound = bound
        #: Name -> argument, defaults included.
        self.given: Mapping[str, Any] = bound.arguments

    def __call__(self, **changed: Any) -> Any:
        """Call Nova's function, with these arguments changed."""
        if not changed:
            return self._plain(*self._args, **self._kwargs)
        self._bound.arguments.update(changed)
        return self._plain(*self._bound.args, **self._bound.kwargs)


#: The replacement for a function of Nova.
Around = Callable[[Call], Any]


def check_release() -> None:
    """Refuse to start with a release of Nova that is not supported.

    :raises nova.exception.InvalidConfiguration: it is not one of SUPPORTED.
    """
    running_release = running_nova_release()
    if running_release not in SUPPORTED:
        supported = ", ".join(map(str, SUPPORTED))
        raise exception.InvalidConfiguration(
            f"nova-hpc supports Nova {supported}, and this is Nova {running_release}. {_CURE}"
        )


#: Reading Nova's sources takes a third of a second, and a running process does not reload them.
_find_changed_functions: Final = functools.cache(nova_sources.find_changed_functions)


def warn_of_changes(targets: Iterable[str]) -> None:
    """Log which wrapped functions differ from the sources that nova-hpc was written for, once.

    A difference never stops the service: distributions patch Nova, and can judge better than a
    digest whether it matters.

    :param targets: as :attr:`Patch.target`; the release is a supported one.
    """
    folder, running = Path(nova.__file__).parent, running_nova_release()
    if running is None or running not in nova_sources.READ:
        return
    for change in _find_changed_functions(folder, running, tuple(targets)):
        if _ONCE.first(str(change)):
            LOG.warning(
                "Nova's %s, with which nova-hpc was written and tested. It is used anyway: read "
                "the changes, and run the functional tests with this Nova (contributor guide, "
                "Gated patches)",
                change,
            )


def wrap_method(owner: Any, patch: Patch, around: Around) -> None:
    """Replace a method of *owner* by *around*.

    :param owner: Nova's object, or the class itself.
    :raises nova.exception.InvalidConfiguration: the method is not as expected, or
        *owner* is not an object of Nova's class.
    """
    signature, whole = inspect.signature(patch.function()), owner is patch.of()
    if not whole and not isinstance(owner, patch.of()):
        raise exception.InvalidConfiguration(f"This process has no {patch.owner}. {_CURE}")
    plain = getattr(owner, patch.name)
    of_class = whole and inspect.ismethod(plain)
    if not whole or of_class:
        _, *parameters = signature.parameters.values()
        signature = signature.replace(parameters=parameters)

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(Call(plain, signature, args, kwargs))

    setattr(owner, patch.name, staticmethod(wrapper) if of_class else wrapper)


def manager_of(virtapi: Any) -> Any:
    """Return the compute manager of this process; None if there is none."""
    return getattr(virtapi, "_compute", None)
