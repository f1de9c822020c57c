"""`--preflight`: whether a recipe's training fits its accelerator, before anything runs there."""

import contextlib
import dataclasses
import json
import subprocess
import sys
from typing import Any

from neve import ExecutorStep, InputError, Options, make_plan, run_steps
from neve.options import check_backend

from experiments.sft.devices import check_devices
from experiments.sft.sources import LocalModel
from experiments.sft.spec import SFTSpec

FLAG = "--preflight"

_PROGRAM = "neve_train.preflight"  # a process of its own: it fixes jax's number of devices
_SHOWN_ERROR_LINES = 20


def take_flag(rest: list[str], options: Options) -> bool:
    """Removes `--preflight` from the words that are left; returns whether it was there.

    Raises:
        InputError: `--dry_run` was given too, which may write nothing.
    """
    if FLAG not in rest:
        return False
    rest.remove(FLAG)
    if options.dry_run:
        raise InputError(
            f"{FLAG}: must be given without --dry_run, which writes nothing, got both. Drop one of "
            f"them: {FLAG} fetches the model's config and runs no other step."
        )
    return True


def is_to_be_trained(checkpoint: ExecutorStep, last: ExecutorStep, options: Options) -> bool:
    """Whether a run would train on an accelerator that costs, so that preflight comes first.

    Raises:
        InputError: Backend or accelerator aren't here, which needs no preflight to be told.
    """
    accelerator = checkpoint.resources.accelerator
    if options.dry_run or accelerator is None or accelerator.endswith("xcpu"):
        return False
    check_backend(options)
    plan = make_plan([last], options.resolved_prefix(), force=options.force, only=options.only)
    rows = [row for row in plan.rows if row.name == checkpoint.name]
    return any(row.action in ("run", "resume") for row in rows)


def run_preflight(
    spec: SFTSpec,
    tokenizer: ExecutorStep,
    accelerator: str,
    options: Options,
    is_all: bool,
) -> int:
    """Prints the report; returns 0 if the training fits, 2 if it doesn't, 1 if preflight failed.

    The model's config comes from the step `tokenizer`, which runs if it hasn't yet. Nothing else does.

    Args:
        spec: The recipe.
        tokenizer: The model's light step, whose output has config.json.
        accelerator: Count and kind.
        options: Execution options; with json the report is printed as JSON.
        is_all: Whether the report is all that was asked for; else it goes to stderr.
    """
    folder, code = _model_folder(spec, tokenizer, options)
    if code:
        sys.stderr.write(
            f"error: preflight of {spec.name!r}: the model's config.json must be there, got none: "
            f"{tokenizer.name} failed. Repair that, or run it where the model can be reached.\n"
        )
        return code
    done = subprocess.run(
        [sys.executable, "-m", _PROGRAM],
        input=json.dumps(_request(spec, folder, accelerator)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 2):
        tail = "\n".join(done.stderr.splitlines()[-_SHOWN_ERROR_LINES:])
        sys.stderr.write(f"{tail}\nerror: preflight of {spec.name!r}: {_PROGRAM} broke down.\n")
        return 1
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise InputError(f"preflight of {spec.name!r}: {answer['error']}")
    if is_all and options.json:
        sys.stdout.write(json.dumps(answer["report"], indent=1) + "\n")
    else:
        (sys.stdout if is_all else sys.stderr).write(answer["text"] + "\n")
    return done.returncode


def _model_folder(spec: SFTSpec, tokenizer: ExecutorStep, options: Options) -> tuple[str, int]:
    """Returns the folder with config.json, and the exit code of the step that brings it."""
    if isinstance(spec.model, LocalModel):  # its step would copy the weights too
        return spec.model.path.removeprefix("file://"), 0
    plan = make_plan([tokenizer], options.resolved_prefix())
    row = next(row for row in plan.rows if row.name == tokenizer.name)
    if row.action == "hit":
        return row.output_path, 0
    light = dataclasses.replace(options, accelerator=None, only=(), force=(), json=False)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the report's
        code = run_steps([tokenizer], light, description=f"config of {spec.name}'s model")
    return row.output_path, code


def _request(spec: SFTSpec, folder: str, accelerator: str) -> dict[str, Any]:
    return {
        "name": spec.name,
        "model": folder,
        "accelerator": accelerator,
        "mesh": check_devices(spec, accelerator),
        "seq_len": spec.seq_len,
        "batch_size": spec.batch_size,
        "per_device_batch_size": spec.per_device_batch_size,
        "precision": spec.precision,
        "capacity_factor": spec.capacity_factor,
        "optimizer": dataclasses.asdict(spec.optimizer),
        "adapter": None if spec.adapter is None else dataclasses.asdict(spec.adapter),
        "num_train_steps": spec.num_train_steps,
    }
