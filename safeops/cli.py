"""The safeops command: scan, replay, demo and doctor."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ._reports import for_json
from ._version import __version__


class _Parser(argparse.ArgumentParser):
    """Errors of one line; argparse puts the usage above them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to 2^63 - 1, got {text!r}"
        )
    return int(text)


def _page(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"expected the path of a file in a directory that exists, got {text!r}"
        )
    return path


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="safeops", description="Numeric safety for PyTorch.")
    parser.add_argument("--version", action="version", version=f"safeops {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser(
        "doctor", help="show versions and kernels, and test the ops on this machine"
    )
    demo = commands.add_parser(
        "demo", help="train a model that dies of NaN; name the line, guard the run, cure it"
    )
    demo.add_argument(
        "--seed", type=_seed, default=0, help="of split, weights, batches (default 0)"
    )
    demo.add_argument("--epochs", type=_count, default=30, help="default 30")
    demo.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="for the plot")
    demo.add_argument("--no-plot", action="store_true", help="train only; needs no matplotlib")
    _add_scan(commands)
    _add_replay(commands)
    return parser


def _add_scan(commands: argparse._SubParsersAction) -> None:
    scan = commands.add_parser(
        "scan",
        help="find NaN, Inf and subnormals in .pt, .safetensors, .npy and .npz files",
        description="Read every tensor of the files in chunks; nothing in them is run. Text and "
        "images beside them, as config.json, are skipped. The status is 0 if all is finite, 1 if "
        "something is not, 2 if a tensor file cannot be read or nothing was.",
    )
    scan.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="file, directory or *.index.json"
    )
    scan.add_argument("--all", action="store_true", help="list the healthy tensors, too")
    scan.add_argument("--json", action="store_true", help="print JSON with every tensor")
    scan.add_argument("--html", type=_page, metavar="PATH", help="write a page with a plot")


def _add_replay(commands: argparse._SubParsersAction) -> None:
    replay = commands.add_parser(
        "replay",
        help="run the bad step of a dump that a Guard wrote again, and name the culprit",
        description="FUNCTION in SCRIPT is called without arguments and gives (model, step) or "
        "(model, step, optimizer): the model as it was built for training, and a function of a "
        "batch that gives the loss. Weights, optimizer states, random numbers and batch are those "
        "of the dump. The status is 0 if all is finite this time, 1 if a culprit was found, 2 if "
        "the step could not be run.",
    )
    replay.add_argument("file", type=Path, metavar="FILE", help="the dump, as the event names it")
    replay.add_argument("setup", type=_function, metavar="SCRIPT:FUNCTION", help="train.py:setup")
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.add_argument("--html", type=_page, metavar="PATH", help="write a page with a plot")


def _function(text: str) -> tuple[Path, str]:
    script, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier() or not Path(script).is_file():
        raise argparse.ArgumentTypeError(
            f"expected a Python file and a function in it, as train.py:setup, got {text!r}"
        )
    return Path(script), name


def _replay(options: argparse.Namespace) -> int:
    from .guard.replaying import function_in, replay

    try:
        report = replay(options.file, function_in(*options.setup))
    except (OSError, TypeError, ValueError) as error:
        print(f"safeops replay: {error}", file=sys.stderr)
        return 2
    if not _show(report, options, "replay"):
        return 2
    return int(not report)


def _show(report: Any, options: argparse.Namespace, command: str) -> bool:
    """Whether it could be written where it was wanted."""
    print(json.dumps(for_json(report.to_dict()), allow_nan=False) if options.json else report)
    try:
        if options.html is not None:
            report.to_html(options.html)
    except OSError as error:
        print(f"safeops {command}: --html {options.html}: {error}", file=sys.stderr)
        return False
    return True


def _scan(options: argparse.Namespace) -> int:
    from .diagnose.scanning.scan import scan

    report = scan(*options.files)
    report.show_all = options.all
    if not _show(report, options, "scan"):
        return 2
    return 2 if report.errors or report.finite is None else int(bool(report.bad))


def _run(options: argparse.Namespace) -> int:
    if options.command == "doctor":
        from . import doctor

        return doctor.main()
    if options.command == "scan":
        return _scan(options)
    if options.command == "replay":
        return _replay(options)
    from . import demo

    return demo.main(options.seed, options.epochs, None if options.no_plot else options.output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0, 1 for a failure or 2 for bad input."""
    parser = _parser()
    try:
        options = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("safeops: interrupted", file=sys.stderr)
        return 130
