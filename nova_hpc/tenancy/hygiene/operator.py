"""What an operator asks of single devices: check, accept, release."""

from __future__ import annotations

from nova_hpc.tenancy import quarantine
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Difference
from nova_hpc.tenancy.hygiene.bench import Bench, Candidate, idle
from nova_hpc.tenancy.hygiene.state import Record
from nova_hpc.tenancy.locked_file import StateError


def check(bench: Bench, candidate: Candidate) -> list[Difference]:
    """How a device differs from its baseline, without touching it."""
    address = candidate.function.address
    record = bench.state().record(address)
    look = bench.look([candidate])[address]
    return bench.differences(record, look, candidate.function)


def accept(bench: Bench, candidate: Candidate) -> None:
    """Record a device as it is now.

    :raises StateError: a server has it, it does not answer, or nothing can
        be remembered.
    """
    address = candidate.function.address
    with bench.locks([address], 1.0):
        _nobodys(bench, address)
        look = bench.look([candidate])[address]
        for difference in baseline.wrong(look, idle(candidate.function)):
            raise StateError(f"{address}: {difference.text}")
        bench.change(lambda records: {address: Record(look)})


def release(bench: Bench, candidate: Candidate) -> str | None:
    """Clean and check a device, and end its quarantine if it is well.

    :returns: why it stays in quarantine; None: it is released.
    :raises StateError: a server has it, or nothing can be remembered.
    :raises QuarantineError: the file cannot be written.
    """
    address = candidate.function.address
    with bench.locks([address], bench.timeout + 10):
        _nobodys(bench, address)
        _, dirty = bench.clean({address: candidate.role})
        if dirty:
            return dirty[address]
        quarantine.release(bench.quarantine_file, address)
        return None


def _nobodys(bench: Bench, address: str) -> None:
    server = bench.state().record(address).server
    if server is not None:
        raise StateError(
            f"{address} is with server {server}, or has not been cleaned since: nova-compute "
            "does that when the server is gone, at the latest at its next periodic update"
        )
