"""Entry points: from steps and options to an exit code."""

import datetime
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from neve.codec import readable
from neve.options import (
    Options,
    check_accelerator,
    check_backend,
    check_writable,
    parse_options,
    refuse_unknown,
    resolve_prefix,
)
from neve.plan import Plan, make_plan
from neve.secrets import Redactor
from neve.step import ExecutorStep

Steps = Iterable[ExecutorStep] | Callable[[Options], Iterable[ExecutorStep]]


def executor_main(
    steps: Steps, description: str = "", argv: Sequence[str] | None = None
) -> NoReturn:
    """Run steps as the command line says and exit with its code.

    Args:
        steps: The steps that are asked for, or a function from Options to them.
        description: What the recipe is, for --help and the run's document.
        argv: Words of the command line, by default this process's.
    """

    def run() -> int:
        options, rest = parse_options(sys.argv[1:] if argv is None else argv, description)
        refuse_unknown(rest)
        return _run(steps, options, description)

    sys.exit(exit_code_of(run))


def run_steps(steps: Steps, options: Options, description: str = "") -> int:
    """Plan and run steps; return 0, 1 (a step failed), 2 (wrong input), 75, 130, 138 or 143 (stopped).

    75: by SIGTERM or SIGUSR1, and a resumable step goes on from what it saved when run again.
    """
    return exit_code_of(lambda: _run(steps, options, description))


def exit_code_of(run: Callable[[], int]) -> int:
    """Return what `run` returns; a mistake of the user's becomes one sentence and 2.

    An error is the user's where its class says `exit_code = 2`; any other is raised.
    """
    try:
        return run()
    except Exception as error:  # any class may say that it is the user's; the rest is raised again
        if getattr(type(error), "exit_code", None) != 2:
            raise
        sys.stderr.write(Redactor().text(f"error: {error}") + "\n")
        return 2


def _run(steps: Steps, options: Options, description: str) -> int:
    prefix = resolve_prefix(options)
    listed = list(steps(options) if callable(steps) else steps)
    plan = make_plan(listed, prefix, force=options.force, only=options.only)
    if options.dry_run:
        _show_plan(plan, options)
        return 0
    check_backend(options)
    for row in plan.rows:
        if row.action in ("run", "resume"):
            check_accelerator(row.step.resources.accelerator, f"step {row.name!r}: accelerator")
    check_writable(prefix)
    return _execute(plan, options, description)


def _show_plan(plan: Plan, options: Options) -> None:
    if options.json:
        document = plan_document(plan)
        for row, planned in zip(document["steps"], plan.rows, strict=True):
            # A step in a config stands as its fingerprint.
            row["config"] = readable(planned.identity.encoded.get("config"))
        sys.stdout.write(Redactor().text(json.dumps(document, indent=1)) + "\n")
    else:
        from neve.display import Display  # the page of text is only for people

        Display().plan(plan)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    keys = ("name", "fingerprint", "output_path", "action", "why")
    rows = [
        {key: getattr(row, key) for key in keys} | {"deps": list(row.deps)} for row in plan.rows
    ]
    return {"prefix": plan.prefix, "steps": rows}


def _execute(plan: Plan, options: Options, description: str) -> int:
    from neve.display import Display  # not needed for a plan as JSON
    from neve.executor import Executor
    from neve.runs import new_run_id, write_run

    run_id = new_run_id()
    started_at = datetime.datetime.now(datetime.UTC).isoformat()
    display = Display(sys.stderr) if options.json else Display()
    display.plan(plan)
    facts = {"run_id": run_id, "started_at": started_at, "description": description}
    write_run(plan, None, **facts)
    executor = Executor(plan, display, run_id=run_id, max_concurrent=options.max_concurrent)
    try:
        summary = executor.run()
        write_run(plan, summary, **facts)
        display.summary(summary)
    finally:
        display.close()
    if options.json:
        document = plan_document(plan)
        for row in document["steps"]:
            row["status"] = summary.statuses.get(row["fingerprint"])
        document |= {"run_id": run_id, "exit_code": summary.exit_code}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return summary.exit_code
