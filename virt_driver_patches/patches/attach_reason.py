"""A gated patch: tell why a port was not attached.

When the driver refuses to attach an interface, Nova tells the user that it
failed, and leaves the reason in the log. The reason is still the context of the
error that Nova raises, and is put into its text.
"""

from __future__ import annotations

import functools
from typing import Any

from nova import exception

from virt_driver_patches.errors import ClaimRefused, DeviceFault
from virt_driver_patches.patches import compat

_METHOD = "_attach_interface"


def keep(virtapi: Any) -> None:
    """Wrap the compute manager behind *virtapi*.

    :raises nova.exception.InvalidConfiguration: it is not as expected.
    """
    manager = compat.manager_of(virtapi)
    plain, _ = compat.expect(manager, _METHOD, "context", "instance", "port_id")

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except exception.InterfaceAttachFailed as error:
            reason = error.__context__
            if not isinstance(reason, (ClaimRefused, DeviceFault)):
                raise
            text = f"{error.format_message()}: {reason.format_message()}"
            # Nova's own class: the API knows no other.
            raise exception.InterfaceAttachFailed(text) from reason

    setattr(manager, _METHOD, wrapper)
