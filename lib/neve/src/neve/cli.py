"""The `neve` command: run recipes, and look at what they left under a prefix."""

import json
import sys
from typing import Any

import click

from neve.errors import NeveError, did_you_mean
from neve.secrets import Redactor

_PLUGIN_GROUP = "neve.commands"
_HOMES = {
    "plan": "neve.cli_recipes",
    "run": "neve.cli_recipes",
    "why": "neve.cli_compare",
    "diff": "neve.cli_compare",
    "ls": "neve.cli_inspect",
    "show": "neve.cli_inspect",
    "verify": "neve.cli_inspect",
    "status": "neve.cli_watch",
    "logs": "neve.cli_watch",
}


class LazyGroup(click.Group):
    """Loads a command's module on first use, and plug-in commands from entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our commands in order of use, then those of plug-ins."""
        return [*_HOMES, *sorted(set(_plugins()) - set(_HOMES))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None where there is none of that name."""
        import importlib  # the two imports below load only what the command needs

        if cmd_name in _HOMES:
            return getattr(importlib.import_module(_HOMES[cmd_name]), f"{cmd_name}_command")
        plugin = _plugins().get(cmd_name)
        return plugin.load() if plugin is not None else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command; an unknown one gets a suggestion."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self.list_commands(ctx)) or " See `neve --help`."
            raise click.UsageError(f"command {args[0]!r}: must be a known one.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _plugins() -> dict[str, Any]:
    from importlib.metadata import entry_points  # 10 ms, only for help and unknown names

    return {point.name: point for point in entry_points(group=_PLUGIN_GROUP)}


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Run recipes, and look at the outputs they leave under a prefix.

    The prefix is MARIN_PREFIX, or --prefix. Where a command takes an OUTPUT, give a whole path, a
    path below the prefix, or the beginning of a name if only one output matches.
    """


def prefix_option(command: Any) -> Any:
    """Add --prefix to a command."""
    return click.option(
        "--prefix", metavar="URL", help="Folder of all outputs [default: MARIN_PREFIX]."
    )(command)


def json_option(command: Any) -> Any:
    """Add --json to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(command)


def print_text(text: str) -> None:
    """Print with secrets of the environment masked; colors only reach terminals."""
    click.echo(Redactor().text(text))


def print_json(value: Any) -> None:
    """Print a JSON document with secrets masked."""
    print_text(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def main(argv: list[str] | None = None) -> None:
    """Run the command line and end the process: 0 done, 1 a step failed, 2 wrong input."""
    try:
        code = group.main(args=argv, prog_name="neve", standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2 if isinstance(error, click.UsageError) else error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader, such as head, has seen enough
        sys.exit(0)
    except Exception as error:  # any class may say that it is the user's; the rest is raised again
        if not isinstance(error, NeveError) and getattr(type(error), "exit_code", None) != 2:
            raise
        click.echo(Redactor().text(f"Error: {error}"), err=True)
        sys.exit(getattr(type(error), "exit_code", 1))
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
