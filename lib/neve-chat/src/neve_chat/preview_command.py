"""
`neve preview`: conversations as the model sees them, on the terminal or as a page.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.preview_target import Place, find_places

if TYPE_CHECKING:
    from neve_chat.preview_rows import PreviewSource, Refused, Shown

__all__ = ["preview_command"]

_PART_CHARS = 2_000
_BAR_WIDTH = 40


@click.command(
    "preview",
    context_settings={"ignore_unknown_options": True},
    short_help="Show conversations as the model sees them, trained tokens marked.",
)
@click.argument("target", metavar="PATH|RECIPE")
@click.argument("recipe_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--source", metavar="NAME", help="Data set of a recipe [default: all].")
@click.option("--recipe", metavar="RECIPE", help="Show PATH as this recipe would train it.")
@click.option("-n", "num_rows", default=3, type=click.IntRange(1), help="How many [default: 3].")
@click.option("--start", default=None, type=click.IntRange(0), help="First row, from 0.")
@click.option("--row", default=None, type=click.IntRange(0), help="This row alone, from 0.")
@click.option("--split", default="train", help="Split of the cache [default: train].")
@click.option("--ids", "with_ids", is_flag=True, help="A line for each token, with its id.")
@click.option("--full", is_flag=True, help="Shorten nothing.")
@click.option("--stats", is_flag=True, help="Counts and lengths instead of conversations.")
@click.option("--html", metavar="FILE", help="Write a page to look at in a browser.")
@click.option("--tokenizer", metavar="FOLDER", help="Folder with tokenizer.json.")
@click.option("--template", metavar="NAME", help="Chat template, for conversations.")
@click.option("--prefix", metavar="URL", help="Folder of all outputs [default: MARIN_PREFIX].")
def preview_command(
    target: str,
    recipe_options: tuple[str, ...],
    source: str | None,
    recipe: str | None,
    num_rows: int,
    start: int | None,
    row: int | None,
    split: str,
    with_ids: bool,
    full: bool,
    stats: bool,
    html: str | None,
    tokenizer: str | None,
    template: str | None,
    prefix: str | None,
) -> None:
    """
    Show conversations as the model sees them: decoded from token ids, trained tokens marked.

    PATH is the output of a tokenize step, any Levanter chat cache, a split of either, or canonical
    conversations (these need --tokenizer and --template, or --recipe). RECIPE is a module whose data
    sets are shown, from their tokens, or from their conversations before they are tokenized; options
    of its own, such as --accelerator 32xH100, may follow. What a recipe would not train of them is
    shown with the reason.
    """
    if row is not None:
        if start is not None:
            raise ChatInputError(
                f"--row {row}: must stand alone, got --start {start} too. Drop one of them."
            )
        start, num_rows = row, 1
    places = find_places(
        target, recipe_options=recipe_options, wanted=source, prefix=prefix, recipe=recipe
    )
    sources = [_opened(place, split, tokenizer, template) for place in places]
    if html is not None:
        _write_page(html, target, sources, start or 0, num_rows, stats)
        return
    use_color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for opened in sources:
        if stats:
            _say(_stats_text(opened))
            continue
        if len(sources) > 1:
            _say(f"{opened.name}  {opened.path}\n")
        _say_conversations(opened, start or 0, num_rows, with_ids, full, use_color)


def _opened(place: Place, split: str, tokenizer: str | None, template: str | None) -> PreviewSource:
    from neve_chat.preview_rows import RowLimit
    from neve_chat.preview_source import open_source  # heavy: tensorstore, tokenizers

    limit = place.seq_len and RowLimit(seq_len=place.seq_len, rule=place.long_conversations)
    return open_source(
        place.path,
        split=split,
        tokenizer=tokenizer,
        template=template,
        name=place.name,
        config=place.config,
        limit=limit or None,
    )


def _say_conversations(
    source: PreviewSource, start: int, num_rows: int, with_ids: bool, full: bool, use_color: bool
) -> None:
    from neve_chat.preview_rows import Refused

    left_out: Counter[str] = Counter()
    for shown in source.conversations(start, num_rows):
        if isinstance(shown, Refused):
            left_out[shown.reason] += 1
            _say(_refusal(shown, use_color) + "\n")
        else:
            _say(_header(shown, source, use_color))
            _say(_body(shown, source, with_ids, full, use_color) + "\n")
    for what, counts in (
        ("Left out here", left_out.most_common()),
        ("Refused in all", _counts(source, "rejected")),
    ):
        if counts:
            _say(f"{what}: " + ", ".join(f"{reason} {count:,}" for reason, count in counts))


def _say(text: str) -> None:
    click.echo(text, color=None)


def _header(shown: Shown, source: PreviewSource, use_color: bool) -> str:
    from neve_chat.preview import visible

    num_tokens, num_trained = len(shown.tokens.ids), shown.tokens.num_trained
    counts = source.known_counts()
    facts = [
        f"row {shown.row:,}" + (f" of {counts.num_rows:,}" if counts else ""),
        f"{num_tokens:,} tokens, {num_trained:,} trained ({num_trained / max(num_tokens, 1):.1%})",
        *(
            f"{key} {value}"
            for key, value in (("id", shown.row_id), ("from", shown.source))
            if value
        ),
        *([shown.note] if shown.note else []),
    ]
    text = visible("--- " + " | ".join(facts) + " ---")
    return click.style(text, bold=True) if use_color else text


def _refusal(refused: Refused, use_color: bool) -> str:
    from neve_chat.preview import visible

    facts = [
        f"row {refused.row:,}",
        f"left out: {refused.reason}",
        *(
            f"{key} {value}"
            for key, value in (("id", refused.row_id), ("from", refused.source))
            if value
        ),
    ]
    head = visible("--- " + " | ".join(facts) + " ---")
    head = click.style(head, bold=True) if use_color else head
    return f"{head}\n{visible(refused.detail)}"


def _body(shown: Shown, source: PreviewSource, with_ids: bool, full: bool, use_color: bool) -> str:
    from neve_chat.preview import example_text, token_table

    if with_ids:
        return token_table(shown.tokens, source.tokenizer, use_color=use_color, show_all=full)
    return example_text(
        shown.tokens,
        source.tokenizer,
        use_color=use_color,
        max_chars=None if full else _PART_CHARS,
    )


def _stats_text(source: PreviewSource) -> str:
    from neve_chat.statistics import length_classes

    counts = source.counts()
    share = counts.num_trained_tokens / max(counts.num_tokens, 1)
    rows = [
        ("conversations", f"{counts.num_rows:,}"),
        ("tokens", f"{counts.num_tokens:,}"),
        ("trained tokens", f"{counts.num_trained_tokens:,} ({share:.1%})"),
        ("tokens per row", f"{counts.num_tokens / max(counts.num_rows, 1):,.1f} on average"),
        ("longest", f"{counts.max_tokens:,} tokens"),
        ("tokenizer", source.tokenizer.path),
        ("template", str(source.facts.get("template_name", "unknown"))),
        *((f"rejected: {reason}", f"{n:,}") for reason, n in _counts(source, "rejected")),
        *((f"note: {note}", f"{n:,}") for note, n in _counts(source, "notes")),
    ]
    lines = [f"{source.name}  {source.path}", *(f"  {key:<18} {value}" for key, value in rows)]
    classes = length_classes(counts)
    width = max((len(f"{c.last:,}") for c in classes), default=0)
    lines += ["", "  tokens per conversation"]
    for c in classes:
        bar = "█" * max(round(c.height * _BAR_WIDTH), 1 if c.num_rows else 0)
        label = f"{c.first:>{width},} - {c.last:>{width},}"
        lines.append(f"  {label}  {bar:<{_BAR_WIDTH}} {c.num_rows:,} ({c.share_of_rows:.1%})")
    return "\n".join(lines) + "\n"


def _counts(source: PreviewSource, key: str) -> list[tuple[str, int]]:
    return [(name, count) for name, count in (source.facts.get(key) or {}).items() if count]


def _write_page(
    file: str,
    target: str,
    sources: Sequence[PreviewSource],
    start: int,
    num_rows: int,
    count_all: bool,
) -> None:
    from neve_chat.preview_page import page_html

    html = page_html(
        title=target,
        sources=[(source, list(source.conversations(start, num_rows))) for source in sources],
        count_all=count_all,
    ).encode("utf-8")
    storage.write_bytes(file, html)
    _say(f"{file}: {len(html):,} bytes, open it in a browser.")
