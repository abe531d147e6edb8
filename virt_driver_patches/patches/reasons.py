# SPDX-License-Identifier: Apache-2.0
"""The reason of a refusal or a failure reaches the user, without a name of the host.

When a build fails and no other host is left, Nova's conductor replaces the reason by
"Exhausted all hosts available". For flavors with ``hpc:`` keys this module lets the compute
service skip the reschedule if no host is left: it then keeps the reason
of the last host, exactly as it does for a forced host. The same applies if other servers have
taken the alternates (:mod:`virt_driver_patches.patches.alternates`).
:mod:`virt_driver_patches.errors` writes the text of the reason.

When the driver refuses to attach an interface, Nova reports only the failure to the user, and
leaves the reason in the log. The reason is still the context of Nova's error.

Report: ``docs/source/contributor/upstream/index.rst`` (reschedule-lost: the conductor itself fails
if every alternate is lost). The rest works as Nova intends; no bug is known to be filed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nova import exception

from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.placement import flavor
from virt_driver_patches import errors
from virt_driver_patches.errors import ClaimRefused, DeviceFault
from virt_driver_patches.patches import alternates, ports

_MANAGER: Final = "nova.compute.manager:ComputeManager"
LAST_HOST: Final = Patch(
    f"{_MANAGER}._do_build_and_run_instance",
    parameters=("instance", "filter_properties", "host_list"),
    lines={32: (2466, 2576), 33: (2595, 2705), 34: (2495, 2605)},
    why='When no other host is left, the conductor replaces the reason by "Exhausted all hosts '
    'available"; when it finds that out by losing the claims, it fails itself.',
    until="Nova keeps the last host's reason in the server's fault",
)
BUILD: Final = Patch(
    f"{_MANAGER}._build_and_run_instance",
    parameters=("context", "instance"),
    lines={32: (2615, 2834), 33: (2744, 2964), 34: (2644, 2864)},
    why="The reason is str() of whatever was raised: libvirt's and os-vif's words name the host's "
    "devices, interfaces and files; and the request id is not in it.",
    until="Nova tells users kinds of failures and keeps the rest in its log",
)
ATTACH: Final = Patch(
    f"{_MANAGER}._attach_interface",
    parameters=("context", "instance", "port_id"),
    lines={32: (8819, 8941), 33: (8986, 9108), 34: (8580, 8702)},
    why="Nova leaves the reason why a port is not attached in the log.",
    until="InterfaceAttachFailed says why",
)


def keep_user_reasons(manager: Any) -> None:
    """Wrap the compute manager.

    :raises nova.exception.InvalidConfiguration: a method is not as expected.
    """
    keep_start_reasons(manager)
    wrap_method(manager, ATTACH, _name_reason)


def keep_start_reasons(manager: Any) -> None:
    """Wrap the compute manager's methods that start servers, so that a user gets the real reason.

    :raises nova.exception.InvalidConfiguration: a method is not as expected.
    """
    wrap_method(manager, LAST_HOST, _stay_at_last_host)
    wrap_method(manager, BUILD, _word_failure)


def _has_our_wishes(specs: Mapping[str, str]) -> bool:
    return flavor.has_hpc_keys(specs) or flavor.has_shared_memory_keys(specs)


def _stay_at_last_host(call: Call) -> Any:
    """Remove Nova's data for a retry if no other host is left; remember the alternates if any."""
    wanted = call.given["instance"].flavor.extra_specs or {}
    hosts = call.given["host_list"]
    # None if the list is unknown; empty if the scheduler named no other host.
    if not _has_our_wishes(wanted) or hosts is None:
        return call()
    properties = dict(call.given["filter_properties"] or {})
    if not hosts:
        properties.pop("retry", None)
    with alternates.remember_alternates(properties, hosts):
        return call(filter_properties=properties)


def _word_failure(call: Call) -> Any:
    """Replace the reason of a failed build by the text for the user.

    If Nova would try another host, alternates that are taken are dropped first.
    """
    instance, request = call.given["instance"], call.given["context"].request_id
    try:
        return call()
    except (exception.RescheduledException, exception.BuildAbortException) as error:
        if not _has_our_wishes(instance.flavor.extra_specs or {}):
            raise
        # Nova has logged the cause, with its traceback.
        if isinstance(error, exception.RescheduledException):
            alternates.forget_lost_alternates(instance)
            reason = str(error.kwargs.get("reason", ""))
            error.kwargs["reason"] = errors.word_start_failure(error.__context__, reason, request)
            raise
        reason = errors.word_build_abort(error, request)
        raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=reason) from error


def _name_reason(call: Call) -> Any:
    """Add the reason of the driver, or of the port's claim, to Nova's error."""
    instance = call.given["instance"]
    try:
        with ports.claim_port_adapters(instance, instance.flavor, running=True) as claim:
            try:
                return call()
            except exception.InterfaceAttachPciClaimFailed as error:
                # The port is not bound yet, and Nova returns its allocation to Placement.
                if claim is None or claim.refused is None:
                    raise
                text = (
                    f"{error.format_message()}: {ports.word_port_refusal(claim.refused, instance)}"
                )
                raise exception.InterfaceAttachPciClaimFailed(text) from error
    except exception.InterfaceAttachFailed as error:
        reason = error.__context__
        if not isinstance(reason, (ClaimRefused, DeviceFault)):
            raise
        text = f"{error.format_message()}: {reason.format_message()}"
        # Nova's own class, because the API handles no other.
        raise exception.InterfaceAttachFailed(text) from reason
