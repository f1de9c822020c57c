"""From a recipe's command line to a run: options, overrides, preflight, and what is told at the end."""

import dataclasses
import sys

from neve import InputError, Options, make_plan, parse_options, read_results, run_steps
from neve.entry import exit_code_of
from neve.plan import state_home

from experiments.sft.graph import SFTSteps, sft_steps
from experiments.sft.overrides import FLAG, apply_overrides
from experiments.sft.preflight import is_to_be_trained, run_preflight, take_flag
from experiments.sft.spec import SFTSpec

__all__ = ["SFTSteps", "run_sft_cli", "sft_steps"]


def run_sft_cli(spec: SFTSpec, default_accelerator: str | None = None) -> None:
    """Runs a recipe from its command line and exits; `--spec.<field> VALUE` changes a field.

    Exit codes: 0 done, 1 a step failed, 2 the input is wrong, 75 preempted, 130 interrupted.
    """

    def run() -> int:
        options, rest = parse_options(sys.argv[1:], description=_description(spec))
        is_preflight = take_flag(rest, options)
        changed = apply_overrides(spec, rest)
        accelerator = options.accelerator or default_accelerator
        if accelerator is None:
            raise InputError(
                f"spec {spec.name!r}: --accelerator must be given, got none. "
                "Pass for example --accelerator 32xH100."
            )
        steps = sft_steps(changed, accelerator)
        if is_preflight or is_to_be_trained(steps.checkpoint, steps.last, options):
            code = run_preflight(changed, steps.tokenizer, accelerator, options, is_preflight)
            if code or is_preflight:
                return code
        code = run_steps([steps.last], options, description=changed.name)
        # With --only there may be no checkpoint to point at; with --json a program reads.
        if code == 0 and not (options.dry_run or options.only or options.json):
            print(_where_everything_is(steps, options))  # noqa: T201  what the user came for
        return code

    sys.exit(exit_code_of(run))


def _description(spec: SFTSpec) -> str:
    fields = ", ".join(field.name for field in dataclasses.fields(spec))
    return (
        f"Fine-tune {spec.name}. {FLAG}<field> VALUE changes a field of the recipe, such as {FLAG}seq_len 8192, "
        f"{FLAG}optimizer.learning_rate 1e-5 or {FLAG}datasets.0.repeat 2; docs/reference/sft_spec.md tells "
        "them all. --preflight tells whether the training fits its accelerator, and runs nothing else. "
        f"Fields: {fields}."
    )


def _where_everything_is(steps: SFTSteps, options: Options) -> str:
    """Returns the closing lines of a run: its loss, the places to look at, and the next command."""
    plan = make_plan([steps.last], options.resolved_prefix())
    paths = {row.name: row.output_path for row in plan.rows}
    checkpoint = paths[steps.checkpoint.name]
    trained = read_results(checkpoint)
    lines = []
    if trained.get("heldout_loss") is not None:
        homes = {row.name: state_home(row.identity, plan.prefix) for row in plan.rows}
        baselines = [read_results(homes[step.name])["baselines"] for step in steps.tokenized]
        known = [
            f"unigram {row['unigram_loss']:.3f}, bigram {row['bigram_loss']:.3f}"
            for row in baselines
            if row.get("unigram_loss") is not None
        ]
        against = f"; baselines: {'; '.join(known)}" if known else ""
        lines.append(
            f"held-out loss {trained['heldout_loss']:.3f} nats per trained token, before training "
            f"{trained['heldout_loss_first']:.3f}{against}"
        )
    places = [
        ("checkpoint", f"{checkpoint}/checkpoints"),
        ("loss curve", f"{checkpoint}/loss.png"),
        ("HF folder", paths[steps.export.name]),
        *([("samples", f"{paths[steps.samples.name]}/samples.txt")] if steps.samples else []),
        *([("upload", f"{paths[steps.upload.name]}/certificate.json")] if steps.upload else []),
        ("logs", f"{checkpoint}/.neve/attempts"),
        ("next", f"neve show {checkpoint}"),
    ]
    return "\n".join([*lines, *(f"{label:<11} {value}" for label, value in places)])
