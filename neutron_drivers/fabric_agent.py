# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-fabric-agent``: the process beside the subnet manager.

It is one process without workers, because its work is sequential, and a worker that outlives its
parent would be a second agent. The main thread waits for signals. The rounds, the heartbeat and
the alarms have a thread each, because each of them may wait for an unreachable broker. SIGTERM ends
the process within seconds; SIGHUP makes it read its options again.

Exit status: 0 after SIGTERM; 78 (EX_CONFIG) if its options cannot be used or the fabric is open;
1 otherwise.
"""

# Before all of oslo's: it chooses threads instead of eventlet.
import neutron  # noqa: F401, I001

import logging as python_logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Final, NoReturn

import attrs
import oslo_messaging
from neutron.agent import rpc as agent_rpc
from neutron.common import config as common_config
from neutron.conf.agent import common as agent_conf
from neutron_lib import context as neutron_context
from neutron_lib import rpc as n_rpc
from neutron_lib.agent import topics
from oslo_config import cfg
from oslo_log import log
from oslo_service import loopingcall, systemd

from neutron_drivers import rpc_names
from nova_hpc.conf import partitions as partition_options
from nova_hpc.fabric.partitions import hardening
from nova_hpc.fabric.partitions.agent_round import AgentStatus, PartitionAgent
from nova_hpc.fabric.partitions.backends.base import SubnetManager, SubnetManagerError
from nova_hpc.fabric.partitions.backends.choice import make_subnet_manager
from nova_hpc.fabric.partitions.keys import format_guid, format_pkey
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc.fabric.partitions.report_choice import MemberReports, ReportOptions
from nova_hpc.fabric.partitions.watched_files import WATCH_INTERVAL, WatchedFiles
from nova_hpc.wire import partitions as partition_wire

LOG: Final = log.getLogger(__name__)

#: Seconds within which Neutron's server has to answer.
_CALL_TIMEOUT: Final = 10.0
#: Further seconds after which the broker counts as unreachable.
_CALL_MARGIN: Final = 2.0
#: Number of tries to give a message to the broker.
_CALL_TRIES: Final = 1
#: Seconds for which the rounds may go on after SIGTERM.
_PATIENCE: Final = 3.0
#: The most characters of a heartbeat's faults: Neutron's column has 4,095 for the whole.
_MOST_FAULT_TEXT: Final = 1300
#: The most P_Keys of a heartbeat. The agent itself refuses the others, when a port is bound.
_MOST_FOREIGN: Final = 200
#: GUIDs of managers, and of full ports, that it may have. The agent itself refuses the others.
_MOST_MANAGERS: Final = 16
#: Alarms that wait for a broker; older ones stand in the log.
_MOST_ALARMS: Final = 256

#: The event types of notifications.
ALARM_EVENT: Final = "hpc_fabric.partition.alarm"
CLEAR_EVENT: Final = "hpc_fabric.partition.clear"
#: How a line of the log with an alarm begins.
ALARM_TEXT: Final = "Partition alarm on fabric"


class RemoteServer:
    """Neutron's server, called by RPC.

    See :class:`~nova_hpc.fabric.partitions.agent_round.PartitionServer`.
    """

    def __init__(self, fabric: str, agent: str) -> None:
        """Open nothing yet.

        :param agent: name of this agent in logs of the server.
        """
        self._names = {"fabric": fabric, "agent": agent}
        target = oslo_messaging.Target(
            topic=rpc_names.SERVER_TOPIC, version=rpc_names.SERVER_VERSION
        )
        self._client = n_rpc.get_client(target)
        self._caller = futures.ThreadPoolExecutor(1, "calls")
        self._pending: futures.Future[Any] | None = None

    def read_desired(self, meanwhile: Callable[[], None]) -> DesiredPartitions:
        """Read the desired partitions of this fabric from Neutron's server by RPC.

        :param meanwhile: called while the agent waits for the answer.
        """
        return partition_wire.read_desired(self._call("read_desired", meanwhile))

    def report_members(
        self, ticket: int, reports: MemberReports, meanwhile: Callable[[], None]
    ) -> None:
        """Report the states of member rows by RPC.

        A server of the release before has no lost rows: it gets them as failed ones.
        """
        words: dict[str, Any] = {
            "ticket": ticket,
            "present": list(reports.present),
            "gone": list(reports.gone),
            "repeat": list(reports.repeat),
        }
        lost, failed = (list(map(list, rows)) for rows in (reports.lost, reports.failed))
        if lost:
            try:
                version = rpc_names.LOST_VERSION
                self._call("report_members", meanwhile, version, **words, failed=failed, lost=lost)
            except (oslo_messaging.UnsupportedVersion, oslo_messaging.RemoteError) as error:
                if not _is_unsupported(error):
                    raise
                failed += lost
            else:
                return
        self._call("report_members", meanwhile, **words, failed=failed)

    def _call(
        self,
        method: str,
        meanwhile: Callable[[], None],
        version: str | None = None,
        **words: Any,
    ) -> Any:
        """Call in a thread of its own: oslo.messaging waits for a broker without a limit.

        :raises TimeoutError: no answer in time, or the call before still waits.
        """
        if self._pending is not None and not self._pending.done():
            raise TimeoutError("the message broker has not taken the question before this one")
        client = self._client.prepare(timeout=_CALL_TIMEOUT, retry=_CALL_TRIES, version=version)
        context = neutron_context.get_admin_context_without_session()
        self._pending = self._caller.submit(client.call, context, method, **self._names, **words)
        end = time.monotonic() + _CALL_TIMEOUT + _CALL_MARGIN
        while not self._pending.done():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"no message broker takes {method} (transport_url); it is tried again"
                )
            futures.wait([self._pending], WATCH_INTERVAL)
            meanwhile()
        return self._pending.result()


def _is_unsupported(error: Exception) -> bool:
    """Whether the server has an earlier version of its interface."""
    kind = getattr(error, "exc_type", type(error).__name__)
    return bool(kind == "UnsupportedVersion")


class WakeEndpoint:
    """The RPC methods of the agent that Neutron's server calls on all agents."""

    target = oslo_messaging.Target(version=rpc_names.AGENT_VERSION)

    def __init__(self, fabric: str, wake: threading.Event) -> None:
        self._fabric = fabric
        self._wake = wake

    def wake(self, context: object, fabric: str) -> None:
        """Wake the agent, because member rows of its fabric have changed."""
        if fabric == self._fabric:
            self._wake.set()


def describe_configurations(
    options: Any, manager: SubnetManager | None, status: AgentStatus
) -> dict[str, Any]:
    """Build the configurations of this agent's heartbeat, see ``openstack network agent show``.

    Faults that would not fit into Neutron's column are counted.

    :param manager: None if the subnet manager could not be loaded.
    """
    count = len(status.foreign_pkeys)
    managers = None if status.managers is None else status.managers[:_MOST_MANAGERS]
    told = status.faults
    if count > _MOST_FOREIGN:
        left_out = f"only {_MOST_FOREIGN} of {count} P_Keys of own partitions fit into a heartbeat"
        told = (f"{left_out}: a network may get one of the others, and its ports fail", *told)
    faults: list[str] = []
    room = _MOST_FAULT_TEXT
    for number, fault in enumerate(told):
        text = fault if len(fault) <= 400 else f"{fault[:399]}…"
        room -= len(text)
        if room < 0:
            faults.append(f"and {len(told) - number} more: see the agent's log")
            break
        faults.append(text)
    return {
        "fabric": options.fabric,
        "subnet_manager": options.subnet_manager,
        "capabilities": {} if manager is None else attrs.asdict(manager.capabilities),
        "foreign_pkeys": [format_pkey(pkey) for pkey in status.foreign_pkeys[:_MOST_FOREIGN]],
        "faults": faults,
        "ticket": status.ticket,
        # Missing: unknown.
        **({} if managers is None else {"manager_guids": list(map(format_guid, managers))}),
        "full_guids": list(map(format_guid, status.full[:_MOST_MANAGERS])),
    }


class AlarmSender:
    """Logs alarms at once, and sends them as notifications when the broker accepts them."""

    def __init__(self, fabric: str, host: str) -> None:
        self._fabric = fabric
        self._host = host
        self._waiting: queue.Queue[tuple[str, Sequence[str]]] = queue.Queue(_MOST_ALARMS)
        self._thread: threading.Thread | None = None

    def tell(self, new: Sequence[str], gone: Sequence[str]) -> None:
        """Send an alarm for each sentence in *new*, and an all-clear for each in *gone*. Never
        waits.
        """
        for fault in new:
            LOG.error("%s %s: %s", ALARM_TEXT, self._fabric, fault)
        for fault in gone:
            LOG.info("No more on fabric %s: %s", self._fabric, fault)
        for event, sentences in ((ALARM_EVENT, new), (CLEAR_EVENT, gone)):
            if sentences:
                self._put(event, sentences)

    def _put(self, event: str, sentences: Sequence[str]) -> None:
        if self._thread is None:
            self._thread = start_thread("alarms", self._send_all)
        try:
            self._waiting.put_nowait((event, tuple(sentences)))
        except queue.Full:
            LOG.warning("A notification is dropped: the broker has taken none for long")

    def _send_all(self) -> None:
        notifier = n_rpc.get_notifier(service=rpc_names.AGENT_BINARY, host=self._host)
        context = neutron_context.get_admin_context_without_session()
        while True:
            event, sentences = self._waiting.get()
            tell = notifier.error if event == ALARM_EVENT else notifier.info
            try:
                tell(context, event, build_alarm(self._fabric, self._host, sentences))
            except Exception:
                LOG.exception("No client was notified of %s", event)


def build_alarm(fabric: str, host: str, sentences: Sequence[str]) -> Mapping[str, object]:
    """Build the payload of an alarm notification. Its version changes with its form."""
    return {
        "version": "1.0",
        "fabric": fabric,
        "agent": rpc_names.AGENT_BINARY,
        "host": host,
        "faults": list(sentences),
    }


class Heartbeat:
    """Sender of the agent's faults to Neutron every ``[AGENT]report_interval`` seconds."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._reporter = agent_rpc.PluginReportStateAPI(topics.REPORTS)
        self._started = False
        self.configurations: Mapping[str, Any] = {}

    def send(self) -> None:
        """Send one heartbeat; if the broker or server cannot be reached, only this one is lost."""
        state = {
            "agent_type": rpc_names.AGENT_TYPE,
            "binary": rpc_names.AGENT_BINARY,
            "host": self._host,
            "topic": rpc_names.AGENT_TOPIC,
            "configurations": dict(self.configurations),
            **({} if self._started else {"start_flag": True}),
        }
        context = neutron_context.get_admin_context_without_session()
        try:
            self._reporter.report_state(context, state, use_call=True)
            self._started = True
        except Exception as error:
            LOG.warning("Neutron did not hear the heartbeat: %s", error)


@attrs.define
class AgentProcess:
    """The agent's process: its threads, signals and exit status. Each SIGHUP starts new rounds."""

    host: str
    stopped: threading.Event = attrs.field(factory=threading.Event)
    reloading: threading.Event = attrs.field(factory=threading.Event)
    wake: threading.Event = attrs.field(factory=threading.Event)
    agent: PartitionAgent | None = None
    ended: threading.Event = attrs.field(factory=threading.Event)
    #: Exit status.
    status: int = 1

    def run_rounds(self) -> None:
        """Run rounds until SIGTERM; the main function of the thread of the rounds."""
        try:
            self.status = self._run_rounds()
        except Exception:
            LOG.exception("The fabric agent gives up")
        finally:
            self.ended.set()

    def _run_rounds(self) -> int:
        """Start the rounds again after each SIGHUP; returns the exit status.

        Only the first start is audited, and may refuse to work. Later the agent waits for another
        signal if the subnet manager cannot be used.
        """
        first = True
        heartbeat = Heartbeat(self.host)
        looping = loopingcall.FixedIntervalLoopingCall(lambda: self._beat(heartbeat))
        while not self.stopped.is_set():
            self.reloading.clear()
            options = cfg.CONF.hpc_fabric_agent
            try:
                agent = self._make_agent(options)
                rows = agent.check_start() if first else ()
            except SubnetManagerError as error:
                LOG.error("The subnet manager cannot be used: %s", error)
                if first:
                    self._beat_last(heartbeat, AgentStatus(faults=(str(error),)))
                    return os.EX_CONFIG
                self._wait_for_signal()
                continue
            self.agent = agent
            if rows:
                for row in rows:
                    LOG.error("The agent does not begin: %s", hardening.format_open_row(row))
                LOG.error(
                    "%s is not begun: change these lines in the files of the subnet manager, "
                    "restart it, and start the agent again",
                    rpc_names.AGENT_BINARY,
                )
                agent.manager.close()
                self._beat_last(heartbeat, agent.status)
                return os.EX_CONFIG
            if first:
                start_thread("messages", self._listen, options.fabric)
                looping.start(cfg.CONF.AGENT.report_interval, stop_on_exception=False)
                systemd.notify_once()
            first = False
            agent.run(lambda: self.stopped.is_set() or self.reloading.is_set())
        return 0

    def _make_agent(self, options: Any) -> PartitionAgent:
        if not options.fabric:
            raise SubnetManagerError("[hpc_fabric_agent]fabric is not set: name the fabric")
        manager = make_subnet_manager(options.subnet_manager, options)
        return PartitionAgent(
            manager=manager,
            server=RemoteServer(options.fabric, self.host),
            tell_alarms=AlarmSender(options.fabric, self.host).tell,
            wake=self.wake,
            files=WatchedFiles(manager.watched_files),
            now=time.monotonic,
            pause=self.stopped.wait,
            poll_interval=options.poll_interval,
            report_options=ReportOptions(
                cfg.CONF.hpc_partitions.member_timeout,
                cfg.CONF.hpc_partitions.activate_absent_ports,
            ),
        )

    def _listen(self, fabric: str) -> None:
        """Listen to Neutron's server; waits for a broker that cannot be reached."""
        target = oslo_messaging.Target(topic=rpc_names.AGENT_TOPIC, server=self.host)
        while not self.stopped.is_set():
            try:
                n_rpc.get_server(target, [WakeEndpoint(fabric, self.wake)]).start()
            except Exception:
                LOG.exception("Nothing is heard of Neutron's server; it is tried again")
                self.stopped.wait(_CALL_TIMEOUT)
            else:
                return

    def _beat(self, heartbeat: Heartbeat) -> None:
        agent = self.agent
        heartbeat.configurations = describe_configurations(
            cfg.CONF.hpc_fabric_agent,
            None if agent is None else agent.manager,
            AgentStatus() if agent is None else agent.status,
        )
        heartbeat.send()

    @staticmethod
    def _beat_last(heartbeat: Heartbeat, status: AgentStatus) -> None:
        """Report why the agent ends; waits only a short time for an unreachable broker."""
        options = cfg.CONF.hpc_fabric_agent
        heartbeat.configurations = describe_configurations(options, None, status)
        start_thread("last heartbeat", heartbeat.send).join(_PATIENCE)

    def _wait_for_signal(self) -> None:
        while not (self.stopped.is_set() or self.reloading.is_set()):
            self.wake.wait(1.0)
            self.wake.clear()

    def stop(self) -> None:
        """End the rounds; a round that waits for another process is abandoned.

        The reader of the fabric ends when its input ends, at the latest with this process.
        """
        self.stopped.set()
        self.wake.set()
        if not self.ended.wait(_PATIENCE):
            LOG.warning("A round has not ended in %.0f seconds and is left alone", _PATIENCE)
            self.status = 0

    def reload(self) -> None:
        """Read the options again, and start new rounds with them."""
        cfg.CONF.reload_config_files()
        self.reloading.set()
        self.wake.set()


def start_thread(name: str, work: Any, *words: object) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, args=words, name=name, daemon=True)
    thread.start()
    return thread


def read_agent_options(words: Sequence[str]) -> None:
    """Register and read the agent's options, and set up the log."""
    common_config.register_common_config_options()
    agent_conf.register_agent_state_opts_helper(cfg.CONF)
    partition_options.register_agent_options(cfg.CONF)
    partition_options.register_server_options(cfg.CONF)
    common_config.init(
        list(words),
        default_config_files=cfg.find_config_files("neutron", rpc_names.AGENT_BINARY),
        prog=rpc_names.AGENT_BINARY,
    )
    common_config.setup_logging()
    python_logging.captureWarnings(True)


def main(words: Sequence[str] | None = None) -> int:
    """Run the fabric agent until SIGTERM.

    :returns: the exit status.
    """
    read_agent_options(sys.argv[1:] if words is None else words)
    process = AgentProcess(cfg.CONF.host)
    #: A signal handler may put an item into it at any point of the main thread.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(handled, lambda number, _: signals.put(number))
    start_thread("rounds", process.run_rounds)
    while not process.ended.is_set():
        try:
            number = signals.get(timeout=0.5)
        except queue.Empty:
            continue
        LOG.info("%s", signal.Signals(number).name)
        if number == signal.SIGHUP:
            process.reload()
        else:
            process.stop()
            break
    return process.status


def run_agent() -> NoReturn:
    """Run the agent as the console script, and end the process with its status.

    Threads that wait for a broker do not keep the process alive: it ends at once.
    """
    status = main()
    python_logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    run_agent()
