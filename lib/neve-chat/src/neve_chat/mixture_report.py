"""
What a planned mixture holds, for plan.json and for the user's eyes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neve_chat.fitting import FittedRows
from neve_chat.row_plan import PlannedTraining, RowPlan

__all__ = ["mixture_facts", "mixture_table", "rows_facts"]


def rows_facts(plan: RowPlan, seq_len: int) -> dict[str, Any]:
    """
    Rows, segments, tokens, and the share of positions that hold a token (fill) or none (padding).
    """
    tokens, positions = int(plan.segments["length"].sum()), plan.num_rows * seq_len
    fill = tokens / positions if positions else 0.0
    return {
        "num_rows": plan.num_rows,
        "num_segments": len(plan.segments),
        "tokens": tokens,
        "fill": round(fill, 6),
        "padding": round(1 - fill, 6),
    }


def mixture_facts(planned: PlannedTraining, fitted: list[FittedRows]) -> list[dict[str, Any]]:
    """
    Per data set: the counts of its fit, and what of it the training draws.

    drawn: conversations, each as often as it comes; passes: drawn / used; row_share: share of all
    that are drawn; share: share of all trained tokens that are drawn.
    """
    segments = planned.rows.segments
    facts = []
    for index, used in enumerate(fitted):
        drawn = segments[segments["source"] == index]
        at = np.searchsorted(used.rows, drawn["row"])
        facts.append(
            used.counts
            | {
                "drawn": len(drawn),
                "passes": round(len(drawn) / len(used.rows), 4),
                "drawn_tokens": int(drawn["length"].sum()),
                "drawn_trained_tokens": int(used.trained[at].sum()),
            }
        )
    num_drawn = sum(fact["drawn"] for fact in facts)
    num_trained = sum(fact["drawn_trained_tokens"] for fact in facts)
    for fact in facts:
        fact["row_share"] = round(fact["drawn"] / num_drawn, 6)
        fact["share"] = round(fact["drawn_trained_tokens"] / num_trained, 6) if num_trained else 0.0
    return facts


def mixture_table(plan: dict[str, Any]) -> str:
    """
    plan.json as lines: a row per data set, what each loses, and the train steps.
    """
    header = ("data set", "rows", "tokens", "trained", "row share", "share", "passes")
    rows = [
        (
            source["name"],
            f"{source['used']:,}",
            f"{source['tokens']:,}",
            f"{source['trained_tokens']:,}",
            f"{source['row_share']:.1%}",
            f"{source['share']:.1%}",
            f"{source['passes']:.2f}",
        )
        for source in plan["sources"]
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in [header, *rows]
    ]
    for source in plan["sources"]:
        lines += _losses(source, plan["seq_len"])
        if not source["drawn"]:
            lines.append(f"{source['name']}: NOTHING of it is in these train steps")
    for source in plan["validation"]["sources"]:
        lines += _losses(source, plan["seq_len"])
    return "\n".join([*lines, *_totals(plan)])


def _losses(source: dict[str, Any], seq_len: int) -> list[str]:
    """
    One line for each way in which conversations of a data set are lost or cut.
    """
    lines = []
    total = f"of {source['conversations']:,} conversations"
    for reason, count in source["dropped"].items():
        if count:
            longer = f" (seq_len {seq_len:,}, longest {source['longest']:,})"
            detail = longer if reason.startswith("too long") else ""
            lines.append(f"{source['name']}: {count:,} {total} dropped, {reason}{detail}")
    if source["cut"]:
        lines.append(
            f"{source['name']}: {source['cut']:,} {total} cut to {seq_len:,} tokens, "
            f"{source['cut_inside_an_answer']:,} of them before their last trained token: "
            "end of turn lost"
        )
    if source["tokens_lost"]:
        lines.append(
            f"{source['name']}: {source['tokens_lost']:,} tokens lost, "
            f"{source['trained_tokens_lost']:,} of them trained"
        )
    return lines


def _totals(plan: dict[str, Any]) -> list[str]:
    lines = [
        f"{plan['num_segments']:,} conversations in {plan['num_rows']:,} rows of "
        f"{plan['seq_len']:,} tokens ({plan['packing']}): {plan['fill']:.1%} full, "
        f"{plan['padding']:.1%} padding"
    ]
    held_out = plan["validation"]
    if held_out["num_rows"]:
        lines.append(
            f"held out: {held_out['num_segments']:,} conversations in {held_out['num_rows']:,} rows"
        )
    lines.append(
        f"{plan['num_train_steps']:,} train steps of {plan['batch_size']:,} rows x "
        f"{plan['seq_len']:,} tokens, {plan['num_train_epochs']:.2f} epochs ({plan['mixing']})"
    )
    return lines
