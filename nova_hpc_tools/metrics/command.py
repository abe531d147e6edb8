# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc metrics``: the facts of a node, a cloud or a fabric, for Prometheus."""

from __future__ import annotations

import argparse
import re
import sys
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand
from nova_hpc_tools.device.command import ERRORS
from nova_hpc_tools.fabric.check_command import CheckFabric
from nova_hpc_tools.metrics import cloud_facts, exposition, fabric_facts, node_facts
from nova_hpc_tools.metrics.catalogue import MetricScope
from nova_hpc_tools.metrics.exposition import (
    ListenAddress,
    MetricsKeeper,
    ReadSamples,
    TransportKeys,
)
from nova_hpc_tools.metrics.samples import MetricSample
from nova_hpc_tools.site import source_options
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers

_COLUMNS: Final = ("Metric", "Labels", "Value")
_LISTEN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([\w.-]+)):([0-9]{1,5})", re.ASCII)
_LAST_PORT: Final = 65535
#: Each makes as many series as a cloud has levels, and more.
_MOST_FLAVORS: Final = 32
_MOST_SIZES: Final = 8


def parse_listen_address(text: str) -> ListenAddress:
    """Parse ``ADDRESS:PORT`` as argparse's type; an IPv6 address is in brackets."""
    match = _LISTEN.fullmatch(text)
    if match is None or not 0 < int(match[3]) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not ADDRESS:PORT, like 127.0.0.1:9911 or [::1]:9911"
        )
    return ListenAddress(match[1] or match[2], int(match[3]))


class _MetricsCommand(ListCommand):
    """Base class of the metrics commands: read once and print or write a file, or serve scrapes."""

    acts_with = ("textfile", "listen")
    scope: ClassVar[MetricScope]
    #: Seconds between two readings.
    interval: ClassVar[int]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--textfile",
            type=Path,
            metavar="FILE",
            help="write the metrics into this file, whole or not at all, for the textfile "
            "collector of node_exporter. Its name ends with .prom",
        )
        where.add_argument(
            "--listen",
            type=parse_listen_address,
            metavar="ADDRESS:PORT",
            help="answer scrapes there until the process gets a signal to end",
        )
        parser.add_argument(
            "--interval",
            type=Count(5),
            metavar="SECONDS",
            help="--listen: time between two readings. A scrape reads nothing (default: "
            f"{self.interval})",
        )
        for option, text in (
            ("--tls-certificate", "--listen: answer by TLS with this certificate"),
            ("--tls-key", "--listen: the key of the certificate"),
            ("--tls-client-ca", "--listen: answer only who has a certificate of these CAs"),
        ):
            parser.add_argument(option, type=Path, metavar="FILE", help=text)
        return parser

    @abstractmethod
    def make_reader(self, args: argparse.Namespace) -> ReadSamples:
        """Return the function that reads the metrics.

        :raises CommandError: the options contradict themselves.
        """

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Read the metrics; print them, write them to a file, or serve scrapes until a signal."""
        args = parsed_args
        self._check_options(args)
        keeper = MetricsKeeper(self.scope, self.make_reader(args))
        if args.listen is not None:
            keys = TransportKeys(args.tls_certificate, args.tls_key, args.tls_client_ca)
            interval = float(args.interval or self.interval)
            exposition.serve_metrics(keeper, args.listen, interval, keys, self._announce)
            return CommandAnswer(_COLUMNS, ())
        if args.textfile is not None:
            exposition.write_textfile(args.textfile, keeper)
            return _answer_with_samples(keeper)
        keeper.refresh()
        answer = _answer_with_samples(keeper)
        return attrs.evolve(answer, show=lambda: _print_exposition(keeper))

    def _check_options(self, args: argparse.Namespace) -> None:
        keys = (args.tls_certificate, args.tls_key, args.tls_client_ca)
        if args.listen is None and (args.interval is not None or any(keys)):
            raise CommandError("--interval and --tls-... need --listen")
        if (args.tls_certificate is None) != (args.tls_key is None):
            raise CommandError("--tls-certificate and --tls-key go together")
        if args.tls_client_ca is not None and args.tls_certificate is None:
            raise CommandError("--tls-client-ca needs --tls-certificate and --tls-key")

    def _announce(self, text: str) -> None:
        self.say(text)
        sys.stdout.flush()


def _answer_with_samples(keeper: MetricsKeeper) -> CommandAnswer:
    return CommandAnswer(
        _COLUMNS,
        [
            (sample.kind.name, _format_labels(sample), f"{sample.value:.15g}")
            for sample in keeper.list_samples()
        ],
    )


def _format_labels(sample: MetricSample) -> str:
    pairs = zip(sample.kind.labels, sample.labels, strict=True)
    return ", ".join(f"{name}={value}" for name, value in pairs)


def _print_exposition(keeper: MetricsKeeper) -> None:
    print(exposition.write_exposition(keeper.list_samples()).decode(), end="")


class NodeMetrics(_MetricsCommand):
    """Give the metrics of this node: devices, sets that fit, cleanings, peer-to-peer.

    The facts of nova-hpc device list and nova-hpc inventory, as numbers. Shows them, or writes
    them for node_exporter, or answers scrapes. A restart of nova-compute changes nothing,
    because it is not involved. Until it has compared the ledger with Nova's records, it is
    unknown which devices are free, and they have no series. Only root reads whether
    peer-to-peer traffic is redirected. With --gpu-uuids or --gpu-uuid-file, one series for
    each GPU names its UUID and its server. The exit status is 0, or 2 if the node cannot be
    read.

    Example: nova-hpc metrics node --textfile /var/lib/prometheus/node-exporter/nova-hpc.prom
    """

    scope = MetricScope.NODE
    interval = 60
    errors = ERRORS

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--gpu-uuids",
            action="store_true",
            help="name the UUIDs of GPUs that NVIDIA's driver has on this host, to join metrics "
            "of DCGM",
        )
        parser.add_argument(
            "--gpu-uuid-file",
            type=Path,
            metavar="FILE",
            help="name those of GPUs that are in this file, too: lines with the hardware, as "
            "nova-hpc device show has it, and the UUID",
        )
        source_options.add_config_options(parser)
        return parser

    def make_reader(self, args: argparse.Namespace) -> ReadSamples:
        """Return the function that reads the metrics of this node."""
        wish = node_facts.UuidWish(args.gpu_uuids, args.gpu_uuid_file)
        return lambda: node_facts.read_node_samples(args.config, wish)


class CloudMetrics(_MetricsCommand):
    """Give the metrics of the cloud: devices, sets and clusters that still fit, refusals.

    The facts of nova-hpc device list --all-nodes, and of nova-hpc capacity, as numbers; run it on
    a host of Nova's scheduler. Shows them, or writes them for node_exporter, or answers
    scrapes. If only a part of the cloud can be read, there are no numbers: they would be
    wrong. No series names a host or a server. The exit status is 0, or 2 if the cloud
    cannot be read.

    Example: nova-hpc metrics cloud --flavor hpc.gpu8 --members 4 --listen 127.0.0.1:9912
    """

    scope = MetricScope.CLOUD
    interval = 120
    errors = (SnapshotError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--flavor",
            action="append",
            default=[],
            metavar="FLAVOR",
            help="name or ID of a flavor for the metrics of fitting servers, stranded devices "
            f"and refusals by hosts; may be repeated ({_MOST_FLAVORS} times at most)",
        )
        parser.add_argument(
            "--members",
            type=Count(1),
            action="append",
            default=[],
            metavar="N",
            help="--flavor: also how many whole clusters of N servers fit; may be repeated "
            f"({_MOST_SIZES} times at most)",
        )
        cloud_readers.add_snapshot_arguments(parser)
        return parser

    def make_reader(self, args: argparse.Namespace) -> ReadSamples:
        """Return the function that reads the metrics of the cloud."""
        if len(args.flavor) > _MOST_FLAVORS:
            raise CommandError(f"--flavor: at most {_MOST_FLAVORS}, each has series of its own")
        if len(args.members) > _MOST_SIZES:
            raise CommandError(f"--members: at most {_MOST_SIZES}, each has series of its own")
        if args.members and not args.flavor:
            raise CommandError("--members: clusters are of a flavor: give --flavor, too")
        wish = cloud_facts.FlavorWish(tuple(args.flavor), tuple(args.members))
        return lambda: cloud_facts.read_cloud_samples(args.snapshot, args.config, wish)


class FabricMetrics(_MetricsCommand):
    """Give the metrics of the subnet manager on this host: whether partitions are kept apart.

    The rows of nova-hpc fabric check, counted by name and state, and the agents' last
    heartbeats with --os-cloud. Shows them, or writes them for node_exporter, or answers
    scrapes. Needs root, as the agent does. The exit status is 0, or 2 if nothing can be
    checked.

    Example: nova-hpc metrics fabric --textfile /var/lib/prometheus/node-exporter/fabric.prom
    """

    scope = MetricScope.FABRIC
    interval = 300
    errors = CheckFabric.errors

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--os-cloud",
            metavar="NAME",
            help="name in clouds.yaml of the cloud whose agents and ports are looked at, too. "
            "Its user needs the admin role",
        )
        source_options.add_config_options(parser, "the agent beside the subnet manager")
        return parser

    def make_reader(self, args: argparse.Namespace) -> ReadSamples:
        """Return the function that reads the metrics of the subnet manager's fabric."""
        return lambda: fabric_facts.read_fabric_samples(args.config, args.os_cloud)
