"""TRL's way: datasets.map over apply_chat_template, one conversation a call, written to Arrow."""

import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forked workers, one text a call

import datasets
from transformers import AutoTokenizer

from benchmarks.tokenize_peers.clock import Entrant, Row, run_entrant


def make_entrant(job: dict[str, Any]) -> Entrant:
    """Returns load_dataset and map with a process per core, as SFTTrainer prepares a data set."""
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"])
    template = job["template"]

    def tokenize(example: dict[str, Any]) -> dict[str, Any]:
        made = tokenizer.apply_chat_template(
            example["messages"],
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return {"input_ids": made["input_ids"], "assistant_masks": made["assistant_masks"]}

    def run(files: list[str], out: str) -> Callable[[], Iterator[Row]]:
        rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=out)
        made: Any = rows.map(tokenize, remove_columns=rows.column_names, num_proc=len(job["cores"]))
        return lambda: ((row["input_ids"], row["assistant_masks"]) for row in made)

    return run


if __name__ == "__main__":
    run_entrant(make_entrant, "transformers", "datasets", "tokenizers")
