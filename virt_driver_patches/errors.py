"""What the driver raises.

The message is the server's fault as its user reads it: counts and levels,
no address and no host name. Those are in the log.
"""

from __future__ import annotations

from nova import exception


class ClaimRefused(exception.GroupAffinityViolation):
    """The claimed devices are not what the flavor asks for; the node is well.

    Nova tries another host after a GroupAffinityViolation and does not count
    it as a failed build, which would make the scheduler avoid the host.
    """

    msg_fmt = "%(reason)s"

    def __init__(self, reason: str):
        super().__init__(reason=reason)


class DeviceFault(exception.NovaException):
    """A claimed device cannot be given; the node is to blame.

    Nova tries another host and counts a failed build of this one.
    """

    msg_fmt = "%(reason)s"

    def __init__(self, reason: str):
        super().__init__(reason=reason)


def rollback(error: exception.NovaException) -> exception.InstanceFaultRollback:
    """Wrap *error* so that Nova gives the server its former state back."""
    return exception.InstanceFaultRollback(inner_exception=error)
