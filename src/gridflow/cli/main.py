"""`gridflow VERB …`: finds the verb's module, and turns our errors into one line and an exit code."""

from __future__ import annotations

import importlib
import io
import signal
import sys
from collections.abc import Sequence

import click

from gridflow.errors import GridflowError

#: Each verb's one-line help stands here, so that `gridflow --help` loads none of their modules.
VERBS = {
    "run": "Run a job and follow it to its end.",
    "submit": "Start a job in the background and print its run id.",
    "render": "Print what a platform would be asked to do, and do nothing.",
    "status": "Show a run and its tasks.",
    "logs": "Print a task's output.",
    "cancel": "Stop a run.",
    "list": "List runs.",
    "gpus": "Show this host's GPUs, who holds them and who waits.",
    "tfrecord": "Look into TFRecord files, check and convert them.",
    "predict": "Predict for files of rows with a saved model.",
    "doctor": "Show what is installed and which platforms can be used from here.",
}


class _Verbs(click.Group):
    """Verbs that are loaded when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"gridflow.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gridflow", message="gridflow %(version)s")
def gridflow() -> None:
    """Run TensorFlow programs on shared clusters.

    \b
    gridflow run train.py --workers 2 -- --epochs 3
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A program's output may hold what this terminal's encoding cannot.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(_invoke(argv))


def _invoke(argv: Sequence[str] | None) -> int:
    try:
        result = gridflow.main(args=None if argv is None else list(argv), prog_name="gridflow", standalone_mode=False)
    except GridflowError as error:
        click.echo(f"gridflow: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        _show_usage_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except SystemExit:
        # Click's way to say that whoever read our output has left, as in `gridflow logs … | head`.
        return 128 + signal.SIGPIPE
    return result if isinstance(result, int) else 0


def _show_usage_error(error: click.ClickException) -> None:
    message = error.format_message()
    if "\n" in message:
        # Nothing was asked for: Click's message is the whole help.
        error.show()
        return
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "gridflow"
    click.echo(f"gridflow: {message} (see `{command} --help`)", err=True)
