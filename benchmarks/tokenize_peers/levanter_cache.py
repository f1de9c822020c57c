"""Levanter: ChatProcessor and its own cache build over zephyr's local backend.

It builds one shard per file, in threads, so its corpus stands in one file per core.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from levanter.data.text.datasets import DatasetComponent, LmDataConfig, UrlDatasetSourceConfig
from levanter.data.text.formats import ChatLmDatasetFormat

from benchmarks.tokenize_peers.clock import Entrant, Row, run_entrant


def make_entrant(job: dict[str, Any]) -> Entrant:
    """Returns what training on the files with auto_build_caches would do before its first step."""
    logging.getLogger().setLevel(logging.ERROR)
    chat_format = ChatLmDatasetFormat(chat_template=job["template"])

    def run(files: list[str], out: str) -> Callable[[], Iterator[Row]]:
        component = DatasetComponent(
            source=UrlDatasetSourceConfig(train_urls=files), cache_dir=out, format=chat_format
        )
        config = LmDataConfig(
            tokenizer=job["tokenizer"],
            components={"chat": component},
            train_weights={"chat": 1.0},
            auto_build_caches=True,
        )
        cache = config.build_caches("train")["chat"]
        return lambda: _rows(cache)

    return run


def _rows(cache: Any) -> Iterator[Row]:
    for first in range(0, len(cache), 256):
        for row in cache.get_batch_sync(range(first, min(first + 256, len(cache)))):
            yield row["input_ids"], row["assistant_masks"]


if __name__ == "__main__":
    run_entrant(make_entrant, "marin-levanter", "marin-zephyr", "tokenizers")
