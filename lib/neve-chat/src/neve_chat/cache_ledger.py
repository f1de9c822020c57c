"""
The ledger of a TreeCache: which parts it has, and whether its numbers agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError

__all__ = ["LEDGER_NAME", "CachePart", "read_ledger", "split_path"]

LEDGER_NAME = "shard_ledger.json"
_LAYOUTS = ("consolidated", "sharded")


@dataclass(frozen=True, kw_only=True)
class CachePart:
    """
    One set of arrays of a cache.
    """

    path: str
    """Folder that holds `<field>/data` and `<field>/offsets`."""
    num_rows: int
    """Rows, 0 or more."""
    field_counts: dict[str, int]
    """Elements of each field; a consolidated cache may not tell them."""


def split_path(cache: str, split: str) -> str:
    """
    The folder of a split: below the cache, or the cache itself where that is one split, "flat".

    Args:
        cache: folder of a cache, what Levanter calls cache_dir.
        split: train or validation; a flat cache has only the first.
    """
    is_flat = split == "train" and storage.exists(storage.join(cache, LEDGER_NAME))
    return cache if is_flat else storage.join(cache, split)


def read_ledger(split_path: str, fields: tuple[str, ...]) -> tuple[int, list[CachePart]]:
    """
    The rows in all and the parts in their order; only the ledger is read.

    Args:
        split_path: folder of one split.
        fields: names of the arrays that the parts must have.

    Raises:
        ChatInputError: there is no finished cache, or the ledger contradicts itself.
    """
    path = storage.join(split_path, LEDGER_NAME)
    ledger = storage.read_json(path) if storage.exists(path) else {}
    if not ledger.get("is_finished"):
        found = "an unfinished one" if ledger else f"no {LEDGER_NAME}"
        raise ChatInputError(
            f"token cache {split_path}: must be a finished cache, got {found}. "
            "Run its tokenize step again."
        )
    layout = ledger.get("layout", "consolidated")
    if layout not in _LAYOUTS:
        raise _contradiction(path, f"layout must be one of {', '.join(_LAYOUTS)}", repr(layout))
    total = int(ledger["total_num_rows"])
    rows: dict[str, int] = ledger.get("shard_rows") or {}
    names: list[str] = ledger.get("finished_shards") or []
    if layout == "consolidated":
        if rows and sum(rows.values()) != total:
            raise _contradiction(
                path, f"shard_rows must sum to {total:,}", f"{sum(rows.values()):,}"
            )
        counts = ledger.get("field_counts") or {}
        return total, [CachePart(path=split_path, num_rows=total, field_counts=counts)]
    _check_sharded(path, ledger, total, rows, names, fields)
    by_shard = ledger["field_counts_by_shard"]
    return total, [
        CachePart(
            path=storage.join(split_path, name),
            num_rows=int(rows[name]),
            field_counts=by_shard.get(name, {}),
        )
        for name in names
    ]


def _check_sharded(
    path: str,
    ledger: dict[str, Any],
    total: int,
    rows: dict[str, int],
    names: list[str],
    fields: tuple[str, ...],
) -> None:
    if len(set(names)) < len(names):
        raise _contradiction(path, "finished_shards must differ", f"{len(names)} with doubles")
    for name in names:
        if not name or name.startswith("/") or "://" in name or ".." in name.split("/"):
            raise _contradiction(path, "finished_shards must be relative paths below it", name)
        if name not in rows:
            raise _contradiction(path, f"shard_rows must tell the rows of {name}", "none")
    found = sum(rows[name] for name in names)
    if found != total:
        raise _contradiction(
            path, f"rows of the finished shards must sum to {total:,}", f"{found:,}"
        )
    counts, by_shard = ledger.get("field_counts") or {}, ledger.get("field_counts_by_shard") or {}
    for field in fields if total else ():
        summed = sum(by_shard.get(name, {}).get(field, 0) for name in names)
        if field not in counts or summed != counts[field]:
            raise _contradiction(
                path,
                f"field_counts_by_shard of {field} must sum to field_counts",
                f"{summed:,} and {counts.get(field)}",
            )
        for name in names:
            if rows[name] and field not in by_shard.get(name, {}):
                raise _contradiction(
                    path, f"field_counts_by_shard must tell {field} of {name}", "none"
                )


def _contradiction(path: str, rule: str, got: str) -> ChatInputError:
    return ChatInputError(
        f"ledger {path}: {rule}, got {got}. It is damaged: run its tokenize step again."
    )
