"""The command line: `zoneledger COMMAND`. Exit codes: 0 done, 1 the data failed a check, 2 wrong use or configuration."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

from connectors.errors import ConnectorError
from models.engine.warehouse import Window
from pipelines.settings import SettingsError, config_path

EPILOG = """exit codes: 0 done; 1 the data failed a check, nothing was published; 2 wrong use or configuration

try:  zoneledger demo                                    no data, no credentials: see what it does
      zoneledger run --from 2026-11-23 --to 2026-11-30   your data, as named in zoneledger.toml
      zoneledger explain resnet-50                       why was this job idle, and what did it cost?"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run one command, translate errors into plain words and an exit code."""
    # Dagster announces on every start that partition settings are in beta: nothing that a reader can act on
    warnings.filterwarnings("ignore", message="(Parameter|Function|Class) .* is currently in beta")
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (SettingsError, ConnectorError) as error:
        print(f"zoneledger: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        print("zoneledger: stopped; what was published before is untouched", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zoneledger",
        description="Where pods are, which doors are closed, what crossed availability zones, and what it cost.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], text: str, **more: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=text, description=more.get("about", text), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(command=function)
        return added

    demo = command("demo", _demo, "a simulated cluster end to end: raw files, warehouse, parquet, weekly report")
    demo.add_argument("--dir", type=Path, default=Path("demo"), help="folder to work in (default: demo)")
    demo.add_argument("--seed", type=int, default=1, help="another seed is another cluster (default: 1)")

    run = command("run", _run, "ingest, attribute, check, publish and report a window of days")
    _config_options(run)
    run.add_argument("--from", dest="from_date", type=_day, required=True, help="first day, like 2026-11-23 (UTC)")
    run.add_argument("--to", dest="to_date", type=_day, required=True, help="day after the last one (exclusive)")

    report = command("report", _report, "write the weekly report from what is published")
    _config_options(report)
    report.add_argument("--week", type=_week, required=True, help="ISO week, like 2026-W47")

    publish = command("publish", _publish, "check the warehouse and publish its mart tables again")
    _config_options(publish)

    check = command("check", _check, "run every check on the warehouse; publishes nothing")
    _config_options(check)

    explain = command(
        "explain", _explain, "why were a job's GPUs idle, what crossed zones, what did it cost, what helps"
    )
    _config_options(explain)
    explain.add_argument("job", help="job name, or namespace/name, or a part of it")

    doctor = command("doctor", _doctor, "what is configured, found, fresh and missing, and what each gap costs")
    _config_options(doctor)

    simulate = command("simulate", _simulate, "write a simulated cluster's raw inputs, with the truth beside them")
    simulate.add_argument("dir", type=Path, help="folder to write to; must be empty or absent")
    _scenario_options(simulate)

    verify = command("verify", _verify, "run simulated clusters and compare every number with the truth")
    verify.add_argument("--seeds", type=int, default=20, help="how many clusters (default: 20)")
    verify.add_argument("--first-seed", type=int, default=1, help="seed of the first one (default: 1)")
    verify.add_argument("--days", type=int, default=1, help="days of each (default: 1)")
    verify.add_argument("--nodes", type=int, default=10, help="nodes of each (default: 10)")
    verify.add_argument(
        "--dir", type=Path, default=None, help="keep the clusters in this folder (default: a temporary one)"
    )
    return parser


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="configuration file (default: $ZONELEDGER_CONFIG, else zoneledger.toml)")
    parser.add_argument("--home", type=Path, help="where results live; overrides `home` of the configuration")


def _scenario_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="the same seed writes the same bytes (default: 1)")
    parser.add_argument("--start", type=_day, default=date(2026, 11, 23), help="first day (default: 2026-11-23)")
    parser.add_argument("--days", type=int, default=2, help="number of days (default: 2)")
    parser.add_argument("--nodes", type=int, default=10, help="number of nodes (default: 10)")
    parser.add_argument("--jobs", type=int, default=9, help="number of training jobs (default: 9)")
    parser.add_argument(
        "--event-loss", type=float, default=0.0, help="share of Hubble events lost, 0 to 1 (default: 0)"
    )
    parser.add_argument("--no-vpc-flow-logs", action="store_true", help="write no VPC flow logs: no bytes are known")
    parser.add_argument(
        "--flow-records", type=int, default=0, help="benchmarks: also this many Hubble records, in bulk/hubble"
    )
    parser.add_argument(
        "--connections", type=int, default=0, help="benchmarks: also this many connections, in bulk/*.parquet"
    )
    parser.add_argument("--healthy", action="store_true", help="plant no failure: nothing may be found")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day; write it like 2026-11-23") from None


def _week(text: str) -> str:
    try:
        year, week = text.upper().split("-W")
        date.fromisocalendar(int(year), int(week), 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no ISO week; write it like 2026-W47") from None
    return f"{int(year):04d}-W{int(week):02d}"


class Progress:
    """One line a step on stderr, with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:7.1f} s  {text}", file=sys.stderr, flush=True)


def _window(options: argparse.Namespace) -> Window:
    if options.to_date <= options.from_date:
        raise SettingsError(
            f"--to {options.to_date} is not after --from {options.from_date}\n"
            f"  fix:   --to is exclusive; for that one day write --to {options.from_date + timedelta(days=1)}"
        )
    return Window(options.from_date, options.to_date)


# Each command imports what it needs: `zoneledger --help` should not wait for Dagster.
def _run(options: argparse.Namespace) -> int:
    from pipelines.run import run_window

    return run_window(config_path(options.config), options.home, _window(options), Progress())


def _demo(options: argparse.Namespace) -> int:
    from pipelines.demo import run_demo

    return run_demo(options.dir, options.seed, Progress())


def _report(options: argparse.Namespace) -> int:
    from pipelines.run import report_week

    return report_week(config_path(options.config), options.home, options.week, Progress())


def _publish(options: argparse.Namespace) -> int:
    from pipelines.run import publish_again

    return publish_again(config_path(options.config), options.home, Progress())


def _check(options: argparse.Namespace) -> int:
    from pipelines.run import check_warehouse

    return check_warehouse(config_path(options.config), options.home)


def _explain(options: argparse.Namespace) -> int:
    from pipelines.explain import explain_job

    return explain_job(config_path(options.config), options.home, options.job)


def _doctor(options: argparse.Namespace) -> int:
    from pipelines.doctor import examine

    return examine(config_path(options.config), options.home)


def _simulate(options: argparse.Namespace) -> int:
    from connectors.simulated.bulk import write_connections, write_flow_records
    from connectors.simulated.simulate import simulate
    from connectors.simulated.world import Scenario

    if options.dir.exists() and any(options.dir.iterdir()):
        raise SettingsError(f"{options.dir} is not empty\n  fix:   name a new folder, or empty it yourself")
    scenario = Scenario(
        seed=options.seed,
        start=options.start,
        days=options.days,
        nodes=options.nodes,
        jobs=options.jobs,
        event_loss=options.event_loss,
        vpc_flow_logs=not options.no_vpc_flow_logs,
        planted=not options.healthy,
    )
    say = Progress()
    simulate(options.dir, scenario, say)
    start_ns = Window(scenario.start, scenario.start + timedelta(days=1)).from_ns
    if options.flow_records:
        write_flow_records(
            options.dir / "bulk" / "hubble",
            options.flow_records,
            nodes=options.nodes,
            seed=options.seed,
            start_ns=start_ns,
            say=say,
        )
    if options.connections:
        target = options.dir / "bulk" / "connections.parquet"
        write_connections(
            target, options.connections, pods=options.nodes * 20, seed=options.seed, start_ns=start_ns, say=say
        )
    print(
        f"wrote {options.dir}; run it with: zoneledger run --config {options.dir / 'zoneledger.toml'}"
        f" --from {options.start} --to {options.start + timedelta(days=options.days)}"
    )
    return 0


def _verify(options: argparse.Namespace) -> int:
    from pipelines.verify import verify_seeds

    seeds = range(options.first_seed, options.first_seed + options.seeds)
    return verify_seeds(seeds, days=options.days, nodes=options.nodes, folder=options.dir, say=Progress())


if __name__ == "__main__":
    sys.exit(main())
