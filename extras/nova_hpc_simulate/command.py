# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc simulate``: the effect of placement policies on a cloud."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand

if TYPE_CHECKING:
    from nova_hpc_simulate.scenario import Scenario

_EPILOG: Final = """
Policies: nova-spread (stock Nova with its weighers as they are by default),
nova-pack (its RAM and CPU weighers turned round), nova-hpc (ours); only if
named, nova:ram=N,cpu=N,pci=N,subset=N (stock Nova with your multipliers).
"""


class SimulatePolicies(ListCommand):
    """Replay requests over nodes with several placement policies side by side.

    Takes nodes and requests from the openb trace, from CSV files or from a
    snapshot of a cloud, and changes nothing anywhere. Needs numpy,
    and matplotlib for pictures (the extra simulate of the wheel).
    """

    acts_with = ("svg",)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.epilog = _EPILOG
        inputs = parser.add_argument_group("input")
        inputs.add_argument("--nodes", type=Path, metavar="FILE", help="CSV of nodes; .gz is read")
        inputs.add_argument(
            "--requests", type=Path, metavar="FILE", help="CSV of requests; .gz is read"
        )
        inputs.add_argument(
            "--snapshot",
            type=Path,
            metavar="FILE",
            help="snapshot of a cloud: its nodes, and, without --requests, its servers' flavors",
        )
        inputs.add_argument(
            "--role",
            default="gpu",
            help="with --snapshot: role of the devices that are simulated (default: gpu)",
        )
        inputs.add_argument(
            "--nodes-add",
            type=Count(1),
            default=0,
            metavar="N",
            help="assume N more nodes. The demand stays as it is without them",
        )
        inputs.add_argument(
            "--nodes-add-type", metavar="TYPE", help="their type (default: the most frequent one)"
        )
        inputs.add_argument(
            "--topology",
            action="append",
            default=[],
            metavar="dgx|TYPE=FILE|TYPE=dgx",
            help="where GPUs sit: dgx for a built-in host with two sockets and four switches, "
            "or, for nodes of TYPE, the XML of lstopo; may be repeated (default: unknown)",
        )
        inputs.add_argument(
            "--levels",
            type=_parse_percent,
            default=0,
            metavar="PERCENT",
            help="part of the requests for several GPUs that needs them together. The seed draws "
            "half of these under one switch and half on one NUMA node (default: 0)",
        )
        share = inputs.add_mutually_exclusive_group()
        share.add_argument(
            "--rounded",
            action="store_true",
            help="round shares of a GPU up to whole GPUs, as PCI passthrough does (default)",
        )
        share.add_argument(
            "--fractions", action="store_true", help="let requests share a GPU, as in the trace"
        )
        run = parser.add_argument_group("simulation")
        run.add_argument(
            "--policy",
            action="append",
            metavar="NAME",
            help="policy to simulate, see below; may be repeated (default: the first three)",
        )
        amount = run.add_mutually_exclusive_group()
        amount.add_argument(
            "--demand",
            type=Count(1),
            default=130,
            metavar="PERCENT",
            help="let requests arrive in random order, and none leave, until they have requested "
            "so many per cent of the free GPUs (default: 130)",
        )
        amount.add_argument(
            "--replay",
            action="store_true",
            help="let the requests arrive and leave at their own times",
        )
        run.add_argument(
            "--seeds",
            type=Count(1),
            default=3,
            metavar="N",
            help="repeat with so many seeds, from 0 on (default: 3)",
        )
        run.add_argument(
            "--jobs",
            type=Count(1),
            default=0,
            metavar="N",
            help="processes to use (default: one for each CPU)",
        )
        output = parser.add_argument_group("output")
        output.add_argument(
            "--svg", type=Path, metavar="FILE", help="draw the curves into this file"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Simulate the policies; draw the results if --svg is given."""
        args = parsed_args
        _require_libraries(args.svg is not None)
        from nova_hpc_simulate import results
        from nova_hpc_simulate.policies import choose_policies
        from nova_hpc_simulate.scenario import build_simulation_document, summarise_outcomes

        try:
            chosen = choose_policies(args.policy or ())
            scenario, left_out = _read_scenario(args)
        except ValueError as error:
            raise CommandError(str(error)) from error
        if args.svg is not None and not args.svg.absolute().parent.is_dir():
            raise CommandError(f"--svg {args.svg}: there is no such directory")
        outcomes = results.play_all(scenario, chosen, range(args.seeds), args.jobs)
        summaries = summarise_outcomes(outcomes)
        if args.svg is not None:
            from nova_hpc_simulate import figures

            try:
                figures.draw_curves(scenario, summaries, args.svg)
            except OSError as error:
                raise CommandError(f"--svg {args.svg}: {error.strerror or error}") from error
        columns, rows = results.result_cells_of(summaries)
        return CommandAnswer(
            columns,
            rows,
            show=lambda: results.print_result_table(scenario, summaries, args.seeds, left_out),
            document=lambda: (
                json.dumps(
                    build_simulation_document(scenario, outcomes, _describe_run(args, left_out)),
                    indent=1,
                )
                + "\n"
            ),
        )


def _require_libraries(drawing: bool) -> None:
    """Check the libraries first, so that the error contains the install command."""
    try:
        import numpy  # noqa: F401

        if drawing:
            import matplotlib  # noqa: F401
    except ImportError as error:
        raise CommandError(
            f"{error.name} is not installed: pip install numpy matplotlib ({error})"
        ) from error


def _parse_percent(text: str) -> int:
    value = Count(0)(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 100")
    return value


def _read_scenario(args: argparse.Namespace) -> tuple[Scenario, tuple[str, ...]]:
    """Read the scenario, and the parts of the input that are not simulated."""
    from nova_hpc_simulate import model, results
    from nova_hpc_simulate.scenario import prepare_scenario

    if args.snapshot is None and (args.nodes is None or args.requests is None):
        raise ValueError("give --nodes and --requests, or --snapshot")
    if args.snapshot is not None and args.nodes is not None:
        raise ValueError("--nodes and --snapshot exclude each other: a snapshot has nodes")
    machines, tasks, left_out = results.read_simulation_inputs(
        args.nodes, args.requests, args.snapshot, args.role
    )
    if args.nodes_add_type is not None and not args.nodes_add:
        raise ValueError("--nodes-add-type needs --nodes-add")
    if args.nodes_add:
        machines = model.add_machines(machines, args.nodes_add, args.nodes_add_type)
    machines = results.with_topology(machines, args.topology)
    scenario = prepare_scenario(
        machines,
        tasks,
        whole=not args.fractions,
        demand=None if args.replay else args.demand,
        levels=args.levels / 100,
        added=args.nodes_add,
    )
    return scenario, left_out


def _describe_run(args: argparse.Namespace, left_out: tuple[str, ...]) -> dict[str, Any]:
    from nova_hpc_simulate import results

    inputs = {
        name: getattr(args, name).name
        for name in ("nodes", "requests", "snapshot")
        if getattr(args, name) is not None
    }
    return {
        **inputs,
        **({"not_simulated": list(left_out)} if left_out else {}),
        "seeds": list(range(args.seeds)),
        "shares": "fractions" if args.fractions else "rounded",
        "topology": [Path(text).name if "/" in text else text for text in args.topology],
        **results.describe_provenance(),
    }
