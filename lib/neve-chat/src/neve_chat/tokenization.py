"""
Canonical conversations to Levanter token caches with loss masks.

Each shard of the input becomes one part of the caches, in whatever process; the bytes do not depend
on who does what. Memory depends on the largest conversation, not on the number of tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from neve import storage

from neve_chat.baselines import count_baselines
from neve_chat.cache import PART_PATTERN, write_split_ledger
from neve_chat.errors import ChatInputError
from neve_chat.parts import Part, Tasks, forget_parts, run_parts
from neve_chat.pool import num_cores
from neve_chat.preview import example_json, example_text
from neve_chat.quarantine import Refusals, refuse_if_too_many
from neve_chat.row_tokens import open_template
from neve_chat.shards import list_shards
from neve_chat.statistics import SplitCounts
from neve_chat.terminator import Terminator
from neve_chat.tokenize_options import TokenizeOptions
from neve_chat.tokenize_part import (
    EncoderDiffers,
    PartConfig,
    is_validation,
    make_worker,
    read_example,
)
from neve_chat.tokens import ChatTokenizer
from neve_chat.transform import SUMMARY_NAME

__all__ = ["TokenizeOptions", "is_validation", "tokenize_conversations"]

_PREVIEW_CHARS = 600
SPLITS = ("train", "validation")


def tokenize_conversations(
    *,
    input_path: str,
    output_path: str,
    options: TokenizeOptions,
    tasks: Tasks | None = None,
    on_progress: Callable[[int, int | None, dict[str, Any]], None] | None = None,
    on_example: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """
    `train/` and, if any, `validation/` are complete caches; beside them statistics and an example.

    Run again after it was stopped or killed, it keeps the parts that are finished.

    Args:
        input_path: output of the transform.
        output_path: where the caches go.
        options: tokenizer, template and split.
        tasks: who does which part; None: this process and its children do all.
        on_progress: called with (rows done, rows in all or None, facts to show).
        on_example: called once with the first conversation, trained tokens marked and in color.

    Returns:
        Counts of both splits, baselines, refused rows by reason; empty for a task other than 0.

    Raises:
        ChatInputError: wrong template, tokenizer or data; no ledger is written then.
    """
    tasks = tasks or Tasks()
    opened = open_template(options)
    template, tokenizer = opened.text, opened.tokenizer
    parts, total = _parts(input_path)
    config = PartConfig(
        options=options,
        template=template,
        input_path=input_path,
        output_path=output_path,
        num_parts=len(parts),
        num_threads=1 if min(tasks.num_processes or num_cores(), len(parts)) > 1 else None,
        metadata=_preprocessor_metadata(options, template, tokenizer),
    )
    done: Counter[str] = Counter()

    def on_part(facts: dict[str, Any]) -> None:
        done["rows"] += facts["rows_in"]
        done["tokens"] += sum(split["tokens"] for split in facts["splits"].values())
        if on_progress is not None:
            on_progress(done["rows"], total, {"tokens": done["tokens"]})
        if on_example is not None and facts["has_example"] and not done["examples"]:
            done["examples"] += 1
            _, tokens = read_example(output_path, facts["index"])
            on_example(example_text(tokens, tokenizer, max_chars=_PREVIEW_CHARS))

    run = functools.partial(run_parts, make_worker, parts=parts, output_path=output_path)
    try:
        all_facts = run(config, tasks=tasks, on_part=on_part)
    except EncoderDiffers as error:
        if tasks.count > 1:  # the others' parts are suspect too, and they may be writing them
            raise ChatInputError(
                f"tokens of {input_path}: fastokens must give what tokenizers gives, got: {error}. "
                "Remove the output and run the step as one task, which then does without it."
            ) from error
        # Nothing that fastokens encoded is kept.
        config = dataclasses.replace(config, encoder="tokenizers")
        forget_parts(output_path)
        all_facts = run(config, tasks=Tasks(num_processes=tasks.num_processes))
    if not all_facts:
        return {}
    return _complete(config, all_facts, tokenizer, opened.terminator)


def _parts(input_path: str) -> tuple[list[Part], int | None]:
    """
    One part for each shard, and the rows in all where the transform counted them.
    """
    summary = storage.join(input_path, SUMMARY_NAME)
    counted = storage.read_json(summary) if storage.exists(summary) else {}
    rows = {shard["name"]: shard["rows"] for shard in counted.get("shards", ())}
    names = [path.rpartition("/")[2] for path in list_shards(input_path)]
    if rows and set(names) != set(rows):
        raise ChatInputError(
            f"conversations of {input_path}: the shards must be the {len(rows)} that "
            f"{SUMMARY_NAME} counts, got {len(names)} others. Transform again."
        )
    parts = [
        Part(index, {"name": name, "rows": rows.get(name)}) for index, name in enumerate(names)
    ]
    return parts, counted.get("rows_out")


def _preprocessor_metadata(
    options: TokenizeOptions, template: str, tokenizer: ChatTokenizer
) -> dict[str, Any]:
    """
    The keys and values that Levanter's ChatProcessor reports, so that it finds no mismatch.
    """
    return {
        "tokenizer": options.tokenizer_path,
        "vocab_size": tokenizer.vocab_size,
        "chat_template": template,
        "messages_field": "messages",
        "system_prompt_field": None,
        "chat_template_kwargs_field": "chat_template_kwargs",
    }


def _complete(
    config: PartConfig,
    all_facts: list[dict[str, Any]],
    tokenizer: ChatTokenizer,
    terminator: Terminator,
) -> dict[str, Any]:
    """
    Check the sums, write statistics, example and, last, the ledgers.
    """
    options, output_path = config.options, config.output_path
    counts = {split: _sum_splits(facts["splits"][split] for facts in all_facts) for split in SPLITS}
    refusals = Refusals(path=storage.join(output_path, "rejected"))
    for facts in all_facts:
        refusals.merge(facts["rejected"], facts["first_rejected"])
    unclosed = sum(facts["unclosed"] for facts in all_facts)
    _check(config, refusals, sum(facts["rows_in"] for facts in all_facts), counts, unclosed)
    results: dict[str, Any] = {split: counts[split].as_json() for split in SPLITS}
    results["rejected"] = dict(sorted(refusals.counts.items()))
    results["notes"] = _sum(facts["notes"] for facts in all_facts) | {
        "unclosed conversations": unclosed
    }
    for split in SPLITS:
        parts = {
            PART_PATTERN.format(facts["index"], config.num_parts): (
                facts["splits"][split]["rows"],
                facts["splits"][split]["tokens"],
            )
            for facts in all_facts
            if facts["splits"][split]["rows"]
        }
        if parts:
            write_split_ledger(storage.join(output_path, split), parts, config.metadata)
    results["baselines"] = count_baselines(output_path, tokenizer.id_limit)
    first = next(facts["index"] for facts in all_facts if facts["has_example"])
    row, tokens = read_example(output_path, first)
    text = example_text(tokens, tokenizer, use_color=False)
    example = example_json(row, tokens, tokenizer)
    storage.write_bytes(storage.join(output_path, "first_example.txt"), text.encode("utf-8"))
    storage.write_json(storage.join(output_path, "first_example.json"), example, indent=None)
    identity = {
        "tokenizer_digest": hashlib.sha256(tokenizer.json_bytes).hexdigest(),
        "template_digest": hashlib.sha256(config.template.encode("utf-8")).hexdigest(),
        "template_name": options.template_name,
        "template": config.template,
        "vocab_size": tokenizer.vocab_size,
        "terminator": {"text": terminator.text, "ids": list(terminator.ids)},
    }
    storage.write_json(storage.join(output_path, "stats.json"), {**results, **identity})
    return results | {"encoder": _encoder_facts(all_facts)}


def _check(
    config: PartConfig,
    refusals: Refusals,
    num_rows: int,
    counts: dict[str, SplitCounts],
    unclosed: int,
) -> None:
    """
    Refuse a source that would train nothing, or not what was meant.
    """
    options = config.options
    roles = options.loss.train_roles
    trained = "" if roles == ("assistant",) else f", and that they have turns of {', '.join(roles)}"
    refuse_if_too_many(
        refusals,
        num_rows,
        max_fraction=options.max_rejected_fraction,
        what=f"tokens of {config.input_path}",
        advice=f"Check that the template {options.template_name!r} fits these conversations{trained}",
    )
    kept = sum(split.num_rows for split in counts.values())
    trains_ends = options.loss.train_end_of_turn and "assistant" in options.loss.train_roles
    if trains_ends and unclosed == kept:
        raise ChatInputError(
            f"template {options.template_name!r}: the last trained token of a conversation must "
            f"end the turn, got another one in all {kept:,} conversations, so the model will not "
            "learn to stop. Put the end-of-turn token inside the generation block, and check that "
            "the tokenizer has it."
        )
    if not counts["train"].num_rows:
        raise ChatInputError(
            f"tokens of {config.input_path}: the train split needs at least one conversation, got none "
            f"of {kept:,} with validation_fraction {options.validation_fraction}. Lower it or add "
            "data."
        )


def _encoder_facts(all_facts: list[dict[str, Any]]) -> dict[str, Any]:
    """
    What the encoders of this run did: parts that an earlier attempt finished are not counted.
    """
    reports = [facts["encoder"] for facts in all_facts if "encoder" in facts]
    return {
        "fast": sum(report["num_fast"] for report in reports),
        "refereed": sum(report["num_refereed"] for report in reports),
        "differences": sum(report["num_differences"] for report in reports),
        "messages": sorted({report["message"] for report in reports if report["message"]}),
    }


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def _sum_splits(all_counts: Iterable[dict[str, Any]]) -> SplitCounts:
    total = SplitCounts()
    for counts in all_counts:
        total.merge(SplitCounts.from_json(counts))
    return total
