# SPDX-License-Identifier: Apache-2.0
"""The verdicts on the requirements of single VMs, from the output of steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from nova_hpc_requirements.guest_shell import CLOUD_INIT_UNFINISHED
from nova_hpc_requirements.verdicts import (
    EvidenceError,
    RequirementEvidence,
    RequirementVerdict,
    judge_met,
    judge_not_met,
    judge_unknown,
)

RUNNING: Final = "running"
STOPPED: Final = "stopped"
_LOGIN: Final = "name a --network that this machine reaches, and the image's --ssh-user"
_TAGS: Final = ("Name", "CreatedBy")
_CONSOLE_TESTS: Final = {
    "denied_principal_cannot_access_console": "a user of another project is not refused",
    "allowed_principal_can_access_console": "a user with a role in the project is refused",
    "allowed_principal_is_resource_scoped": "the same user has the console with a token for "
    "another project",
}
_DEVICE_TESTS: Final = {
    "usb_devices_disabled": "[DEFAULT]pointer_model = ps2mouse on the compute, and images without "
    "hw_input_bus, hw_pointer_model and hw_disk_bus of USB",
    "clipboard_disabled": "[spice]enabled = false on the compute",
    "unnecessary_virtual_devices_absent": "images without hw_cdrom_bus of drives that stay empty, "
    "and without floppy drives",
}
#: Words for the sources of a server's metadata in cloud-init.
_SOURCES: Final = {"address": "at a link-local address", "device": "on a device"}
_GUEST_COMMAND: Final = (
    "hand in the output of nova-hpc-guest check --format json in the guest: --evidence "
    "guest_check=FILE"
)


def judge_created(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-09: a VM can be created."""
    server = evidence.read_field("launch_instance", "instance_id", str)
    state = evidence.read_field("launch_instance", "state", str)
    if server and state == RUNNING:
        return judge_met(f"server {server} is {state}")
    return judge_not_met(f"server {server or 'without an id'} is {state}", "see its fault in Nova")


def judge_listed(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-11: VMs can be listed."""
    servers = evidence.read_rows("list_instances", "instances")
    target = evidence.read_field("list_instances", "target_instance", str)
    ids = [server.get("instance_id") for server in servers]
    if target and target in ids:
        return judge_met(f"server {target} is among {len(ids)} listed")
    return judge_not_met(f"server {target} is not among {len(ids)} listed", "see Nova's API log")


def judge_rebooted(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-13: a VM can be rebooted."""
    step = evidence.read_step("reboot_instance")
    if step.get("reboot_initiated") is not True or step.get("state") != RUNNING:
        return judge_not_met(f"the server is {step.get('state')} after it", "see its fault in Nova")
    if step.get("reboot_confirmed") is True:
        return judge_met(f"the guest is up for {step.get('uptime_seconds')} s since")
    if step.get("console_restarted") is True:
        return judge_met("its console begins again: the machine has started anew")
    return judge_unknown("Nova reports that it is done, and the guest could not be queried", _LOGIN)


def judge_stopped(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-14: a VM can be stopped."""
    step = evidence.read_step("stop_instance")
    if step.get("stop_initiated") is True and step.get("state") == STOPPED:
        return judge_met(f"server {step.get('instance_id')} is {STOPPED} and still there")
    return judge_not_met(f"the server is {step.get('state')}", "see its fault in Nova")


def judge_started(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-15: a VM can be started."""
    step = evidence.read_step("start_instance")
    if step.get("start_initiated") is not True or step.get("state") != RUNNING:
        return judge_not_met(f"the server is {step.get('state')}", "see its fault in Nova")
    if step.get("ssh_ready") is True:
        return judge_met("the guest answers ssh")
    length = step.get("console_length")
    if isinstance(length, int) and not isinstance(length, bool) and length > 0:
        return judge_met(f"the guest has written {length} characters since")
    return judge_unknown("Nova reports running, and the guest has not reported yet", _LOGIN)


def judge_id_kept(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP08-03: a VM keeps its id over stop and start."""
    ids = {
        step: evidence.read_field(step, "instance_id", str)
        for step in ("launch_instance", "stop_instance", "start_instance")
    }
    if "" in ids.values():
        raise EvidenceError("a step does not contain the server's id")
    if len(set(ids.values())) == 1:
        return judge_met(f"{ids['launch_instance']} before and after")
    return judge_not_met(f"ids differ: {', '.join(ids.values())}", "see Nova's API log")


def judge_tags(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP05-02: a VM has tags."""
    tags = evidence.read_field("verify_tags", "tags", dict)
    missing = [tag for tag in _TAGS if not tags.get(tag)]
    if missing:
        return judge_not_met(f"without {', '.join(missing)}", "see the quota of metadata items")
    return judge_met(f"{', '.join(_TAGS)} are in the server's metadata")


def judge_console(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP06-03: a VM has a serial console."""
    length = evidence.read_field("serial_console", "output_length", int)
    if length > 0:
        return judge_met(f"Nova gave {length} characters of it")
    return judge_unknown(
        "the console is there and empty: the guest has written nothing",
        "an image whose kernel has console=ttyS0",
    )


def judge_console_rights(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-16: only permitted users get the console."""
    tests = read_tests(evidence, "console_rbac", _CONSOLE_TESTS)
    wrong = [_CONSOLE_TESTS[name] for name, passed in tests.items() if not passed]
    if wrong:
        return judge_not_met(
            "; ".join(wrong), "Nova's policy compute_extension:console_output, back to its default"
        )
    return judge_met("a user of another project is refused, and with a role here is not")


def judge_hardening(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement CNP01-17: a VM has no unnecessary virtual devices."""
    step = evidence.read_step("virtual_device_hardening")
    if step.get("source") != "libvirt":
        raise EvidenceError("virtual_device_hardening was not judged by libvirt's XML")
    tests = read_tests(evidence, "virtual_device_hardening", _DEVICE_TESTS)
    wrong = [name for name, passed in tests.items() if not passed]
    if not wrong:
        return judge_met("libvirt's XML has no USB, no clipboard and nothing needless")
    found = "; ".join(str(step["tests"][name].get("error") or name) for name in wrong)
    return judge_not_met(found, "; ".join(_DEVICE_TESTS[name] for name in wrong))


def read_tests(evidence: RequirementEvidence, step: str, names: Iterable[str]) -> dict[str, bool]:
    """Return name -> whether it passed, for sub-tests of a step.

    :raises EvidenceError: a sub-test is missing, or is neither passed nor failed.
    """
    tests = evidence.read_step(step).get("tests")
    results = {}
    for name in names:
        test = tests.get(name) if isinstance(tests, dict) else None
        passed = test.get("passed") if isinstance(test, dict) else None
        if not isinstance(passed, bool):
            raise EvidenceError(f"{step} does not contain whether {name} passed")
        results[name] = passed
    return results


def judge_key(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement AUTH02-01: a VM can be made with a key pair of the user's choice."""
    step = evidence.read_step("launch_instance")
    asked, got = step.get("requested_key_name"), step.get("key_name")
    if not asked:
        raise EvidenceError("launch_instance does not contain the requested key")
    if asked != got:
        return judge_not_met(f"requested {asked}, the server has {got}", "see Nova's API log")
    guest = _read_guest(evidence)
    if guest is not None:
        return judge_met(f"key {asked} opens the guest")
    return judge_unknown(f"Nova has recorded {asked}; whether it opens the guest is open", _LOGIN)


def judge_component_key(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement AUTH03-01: the user's key opens the console."""
    if read_tests(evidence, "component_key_access", ("sol_access",))["sol_access"]:
        return judge_met("the console was opened by the key")
    return judge_not_met(
        "Nova opens consoles by its own token for each user who may request one, and never by "
        "an ssh key",
        "your own gateway that takes users' keys and requests the console from Nova",
    )


def judge_cloud_init(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement BOOT02-02: cloud-init completes and reads the metadata."""
    guest = _require_guest(evidence)
    status, answer = guest.get("cloud_init"), guest.get("metadata_http")
    if status is None:
        return judge_not_met("the guest has no cloud-init", "an image with cloud-init")
    if status in CLOUD_INIT_UNFINISHED:
        return judge_unknown(f"cloud-init: {status}", "give the guest more time: --ssh-timeout")
    if status != "done":
        return judge_not_met(
            f"cloud-init: {status}", "cloud-init status --long in the guest shows the fault"
        )
    if answer == 200:
        return judge_met("cloud-init is done, and the metadata service answers")
    if source := _SOURCES.get(str(guest.get("metadata_source"))):
        return judge_met(f"cloud-init is done, with its metadata {source}")
    if answer is None and guest.get("metadata_source") is None:
        return judge_unknown(
            "cloud-init is done; neither curl nor cloud-init query subplatform in the guest "
            "shows the source of its metadata"
        )
    return judge_not_met(
        f"cloud-init is done; the metadata service: {answer or 'no answer'}",
        "neutron-metadata-agent for the network, or --config-drive",
    )


def judge_login(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS01-01: a user can log in to a VM."""
    _require_guest(evidence)
    late = [
        step
        for step in ("start_instance", "reboot_instance")
        if evidence.read_step(step).get("ssh_ready") is not True
    ]
    if late:
        return judge_not_met(
            f"no login after {' and '.join(late)}", "give the guest more time: --timeout"
        )
    return judge_met("ssh runs commands after the server was made, started and rebooted")


def judge_system(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS05-01: a VM runs an accepted operating system."""
    guest = _require_guest(evidence)
    name, accepted = guest.get("os_id"), guest.get("accepted_os")
    if not isinstance(name, str) or not name:
        raise EvidenceError("the guest has no os-release that names its system")
    if not isinstance(accepted, list):
        raise EvidenceError("describe_instance does not contain the accepted systems")
    if name in accepted:
        return judge_met(f"{name} {guest.get('os_version') or ''}".strip())
    return judge_not_met(f"{name} is none of {', '.join(map(str, accepted))}", "--accept-os")


def judge_gpus(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS06-01: a VM has the promised GPUs."""
    report = _read_report(evidence)
    gpus = [device for device in report["devices"] if device.get("role") == "gpu"]
    if not gpus:
        return judge_unknown(
            "the server was promised no GPU", "try a flavor with a GPU: --flavor FLAVOR"
        )
    numbers = {device.get("number") for device in gpus}
    wrong = [
        str(finding.get("text"))
        for finding in report["findings"]
        if finding.get("wrong") is not False and finding.get("device") in numbers
    ]
    if wrong:
        return judge_not_met("; ".join(wrong), "nova-hpc explain, and the driver in the image")
    without = [device for device in gpus if not device.get("driver")]
    if without:
        return judge_not_met(
            f"{len(without)} of {len(gpus)} GPUs have no driver", "the GPU's driver in the image"
        )
    return judge_met(f"{len(gpus)} promised, all there, each with a driver")


def judge_software(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS07-01: kernel and GPU drivers in the VM are the right ones."""
    guest = _require_guest(evidence)
    kernel = guest.get("kernel")
    if not isinstance(kernel, str) or not kernel:
        raise EvidenceError("the guest does not report its kernel")
    report = _read_report(evidence)
    without = [device for device in report["devices"] if not device.get("driver")]
    if without:
        return judge_not_met(
            f"kernel {kernel}; {len(without)} devices have no driver", "drivers in the image"
        )
    if not report["devices"]:
        return judge_unknown(f"kernel {kernel}; no device was promised", "a flavor with devices")
    drivers = sorted({str(device["driver"]) for device in report["devices"]})
    version = guest.get("gpu_driver")
    more = f", GPU driver {version}" if isinstance(version, str) and version else ""
    return judge_met(f"kernel {kernel}, drivers {', '.join(drivers)}{more}")


def judge_pinning(evidence: RequirementEvidence) -> RequirementVerdict:
    """Judge requirement VMAAS09-01: vCPUs are pinned to host CPUs."""
    wrong = _find_wrong_pins(evidence)
    if wrong:
        return judge_not_met("; ".join(wrong), "hw:cpu_policy=dedicated in the flavor")
    report = _read_report(evidence)
    broken = [
        str(finding.get("text"))
        for finding in report["findings"]
        if finding.get("wrong") is not False and finding.get("kind") != "driver"
    ]
    if broken:
        return judge_not_met("; ".join(broken), "nova-hpc doctor, on the node")
    if not report["devices"]:
        return judge_unknown("pinned; no device was promised", "a flavor with devices")
    count = len(evidence.read_field("vcpu_pinning", "pins", dict))
    return judge_met(
        f"{count} vCPUs, each on a host CPU of its own; {len(report['devices'])} devices, NUMA "
        "nodes and tree as promised"
    )


def _find_wrong_pins(evidence: RequirementEvidence) -> list[str]:
    """List the faults of the pinning of a server's vCPUs to host CPUs, as texts."""
    pins = evidence.read_field("vcpu_pinning", "pins", dict)
    vcpus = evidence.read_field("vcpu_pinning", "vcpus", int)
    hosts = {key: _read_host_cpus(value) for key, value in pins.items()}
    loose = [key for key in map(str, range(vcpus)) if len(hosts.get(key, ())) != 1]
    if vcpus < 1:
        raise EvidenceError("vcpu_pinning contains no vCPU of the server")
    if loose:
        return [f"vCPUs {', '.join(loose)} may run on several host CPUs"]
    owned = [min(hosts[str(number)]) for number in range(vcpus)]
    if len(set(owned)) != vcpus:
        return ["two vCPUs share a host CPU"]
    recorded = evidence.read_step("vcpu_pinning").get("recorded")
    if recorded is None:
        return []
    if not isinstance(recorded, dict):
        raise EvidenceError("vcpu_pinning: Nova's record makes no sense")
    return [
        f"vCPU {key} is on host CPU {min(hosts[key])}, and Nova has recorded {host}"
        for key, host in recorded.items()
        if key in hosts and min(hosts[key]) != host
    ]


def _read_host_cpus(value: object) -> list[int]:
    good = isinstance(value, list) and all(
        isinstance(cpu, int) and not isinstance(cpu, bool) for cpu in value
    )
    if not good:
        raise EvidenceError(f"vcpu_pinning: {str(value)[:80]!r} are no host CPUs")
    assert isinstance(value, list)
    return value


def _read_guest(evidence: RequirementEvidence) -> Mapping[str, Any] | None:
    """Return the guest's answer over ssh; None if no login was possible.

    :raises EvidenceError: the answer is no JSON object.
    """
    guest = evidence.read_step("describe_instance").get("guest")
    if guest is None:
        return None
    if not isinstance(guest, dict):
        raise EvidenceError("describe_instance: the guest's report makes no sense")
    return guest


def _require_guest(evidence: RequirementEvidence) -> Mapping[str, Any]:
    guest = _read_guest(evidence)
    if guest is None:
        reason = evidence.read_step("describe_instance").get("ssh_error") or "no answer"
        raise EvidenceError(f"no login to the guest succeeded ({reason}): {_LOGIN}")
    return guest


def _read_report(evidence: RequirementEvidence) -> Mapping[str, Any]:
    """Return the output of ``nova-hpc-guest check --format json``.

    :raises EvidenceError: it is missing or of another form.
    """
    report = evidence.steps.get("guest_check")
    output = None if report is None else report.output
    if output is None:
        reason = "" if report is None else report.reason
        raise EvidenceError(
            f"the guest's own check is missing{f' ({reason})' if reason else ''}: {_GUEST_COMMAND}"
        )
    if output.get("schema") != "nova-hpc/guest-report" or output.get("version") != 1:
        raise EvidenceError("guest_check is no report of nova-hpc-guest check --format json")
    for key in ("devices", "findings"):
        rows = output.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise EvidenceError(f"guest_check: {key} is no list of objects")
    if not isinstance(output.get("good"), bool):
        raise EvidenceError("guest_check does not contain its result")
    return output


#: Id -> function that judges it.
SERVER_JUDGES: Final[Mapping[str, Callable[[RequirementEvidence], RequirementVerdict]]] = {
    "CNP01-09": judge_created,
    "CNP01-11": judge_listed,
    "CNP01-13": judge_rebooted,
    "CNP01-14": judge_stopped,
    "CNP01-15": judge_started,
    "CNP08-03": judge_id_kept,
    "CNP05-02": judge_tags,
    "CNP06-03": judge_console,
    "CNP01-16": judge_console_rights,
    "CNP01-17": judge_hardening,
    "AUTH02-01": judge_key,
    "AUTH03-01": judge_component_key,
    "BOOT02-02": judge_cloud_init,
    "VMAAS01-01": judge_login,
    "VMAAS05-01": judge_system,
    "VMAAS06-01": judge_gpus,
    "VMAAS07-01": judge_software,
    "VMAAS09-01": judge_pinning,
}
