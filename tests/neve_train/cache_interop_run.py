"""A program of the cache tests: Levanter builds, loads and reads; one process, for its imports.

    python cache_interop_run.py FOLDER

FOLDER holds tokenizer/, template.jinja, in/*.jsonl, ours/ (a finished cache of them), lengths/ (the
rows of fixed lengths, in both layouts) and eos/ (three rows with end tokens inside). Levanter's
caches are written to theirs/, theirs_sharded/ and theirs_flat/. Prints one JSON object.
"""

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from haliax import Axis
from levanter.data.text.datasets import DatasetComponent, LmDataConfig, UrlDatasetSourceConfig
from levanter.data.text.formats import ChatLmDatasetFormat
from levanter.store.cache import (
    CacheMetadata,
    SerialCacheWriter,
    TreeCache,
    consolidate_shard_cache_ledgers,
)
from neve_chat.cache_reader import CacheReader
from neve_chat.row_plan import SEGMENT, RowPlan
from neve_train.planned_rows import PlannedRows

from tests.neve_train.results import tell


class Messages(logging.Handler):
    """Keeps what the program logs as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def data_config(
    folder: Path,
    cache: str,
    *,
    urls: list[str],
    pack: Any = 1,
    slices: str = "drop",
    suffix: str = "",
) -> LmDataConfig:
    """Returns Levanter's config of a cache; with urls it would build what it can't load."""
    form = ChatLmDatasetFormat(
        chat_template=(folder / "template.jinja").read_text() + suffix,
        pack=pack,
        slice_strategy=slices,  # type: ignore[arg-type]
    )
    component = DatasetComponent(
        source=UrlDatasetSourceConfig(train_urls=urls),
        cache_dir=str(folder / cache),
        format=form,
        pack=pack,
    )
    return LmDataConfig(
        tokenizer=str(folder / "tokenizer"),
        components={"c": component},
        train_weights={"c": 1.0},
        auto_build_caches=bool(urls),
        shuffle=False,
    )


def rows_of(cache: TreeCache) -> list[list[list[int]]]:
    """Returns [ids, mask] of every row."""
    rows = cache.get_batch_sync(list(range(len(cache))))
    return [[row["input_ids"].tolist(), row["assistant_masks"].tolist()] for row in rows]


def files(folder: Path) -> dict[str, int]:
    """Returns every file with its time of change."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def build(folder: Path, urls: list[str]) -> dict[str, Any]:
    """Lets Levanter build its own cache, and join its shards without a copy of the arrays."""
    config = data_config(folder, "theirs", urls=urls)
    built = config.build_caches("train")["c"]
    metadata = CacheMetadata(built.ledger.metadata.preprocessor_metadata)
    sharded = folder / "theirs_sharded" / "train"
    shards = sorted(path for path in (folder / "theirs/train").iterdir() if path.name[:5].isdigit())
    for shard in shards:
        shutil.copytree(shard, sharded / shard.name)
    exemplar = built[0]
    paths = [str(sharded / shard.name) for shard in shards]
    consolidate_shard_cache_ledgers(paths, str(sharded), exemplar, metadata)
    flat = folder / "theirs_flat"
    with SerialCacheWriter(str(flat), exemplar, metadata=metadata) as writer:
        writer.write_batch(built.get_batch_sync(list(range(len(built)))))
    return {"rows": rows_of(built), "layout": built.ledger.layout, "num_shards": len(shards)}


def load(folder: Path, urls: list[str], messages: Messages) -> dict[str, Any]:
    """Opens our cache as Levanter would its own, with building on and off."""
    before, told = files(folder / "ours"), len(messages.texts)
    found = []
    for sources in ([], urls):
        cache = data_config(folder, "ours", urls=sources).build_caches("train")["c"]
        found.append(rows_of(cache))
    return {
        "rows": found,
        "layout": cache.ledger.layout,
        "is_untouched": files(folder / "ours") == before,
        "messages": messages.texts[told:],
    }


def load_as_other(folder: Path, messages: Messages) -> list[str]:
    """Opens our cache with another template; returns what Levanter says to it."""
    told = len(messages.texts)
    config = data_config(folder, "ours", urls=[], suffix="{# another #}")
    config.build_caches("train")
    return messages.texts[told:]


def weights(folder: Path) -> dict[str, Any]:
    """Sums the loss weights of the rows that Levanter makes of conversations of fixed lengths."""
    found: dict[str, Any] = {}
    for layout in ("consolidated", "sharded"):
        for pack, slices in ((True, "left"), (True, "right"), (True, "drop"), (1, "drop")):
            config = data_config(folder, f"lengths/{layout}", urls=[], pack=pack, slices=slices)
            dataset = config.train_sets(Axis("position", 128), key=None)["c"].as_sync_dataset()
            sums = [float(dataset[index].loss_weight.sum()) for index in range(len(dataset))]
            found[f"{layout} {pack} {slices}"] = sums
    return found


def packed(folder: Path) -> list[list[Any]]:
    """Returns tokens and loss weights of two planned rows: conversations 0 and 1, and 2."""
    rows = [(0, 0, 0, 5), (0, 1, 0, 3), (0, 2, 0, 6)]
    plan = RowPlan(np.array(rows, SEGMENT), np.array([2, 3]))
    readers = [CacheReader(str(folder / "eos/train"))]
    planned = PlannedRows(plan, readers, Axis("position", 8)).as_sync_dataset()
    return [
        [planned[index].tokens.array.tolist(), planned[index].loss_weight.array.tolist()]
        for index in range(2)
    ]


def main(folder: Path) -> dict[str, Any]:
    """Returns what the tests compare."""
    messages = Messages()
    # Not on the root logger: building a cache sets that one up anew.
    logging.getLogger("levanter").addHandler(messages)
    urls = sorted(str(path) for path in (folder / "in").glob("*.jsonl"))
    return {
        "built": build(folder, urls),
        "loaded": load(folder, urls, messages),
        "other_template": load_as_other(folder, messages),
        "weights": weights(folder),
        "packed": packed(folder),
    }


if __name__ == "__main__":
    result = main(Path(sys.argv[1]))
    tell(result)
