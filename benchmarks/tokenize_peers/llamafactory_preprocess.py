"""LLaMA-Factory: what its training does to the data before the first step; its template llama3."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forked workers, one text a call

from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
from llamafactory.hparams import get_train_args
from llamafactory.model import load_tokenizer

from benchmarks.tokenize_peers.clock import Entrant, Row, run_entrant

_ENTRY = {
    "formatting": "sharegpt",
    "columns": {"messages": "messages"},
    "tags": {
        "role_tag": "role", "content_tag": "content", "user_tag": "user",
        "assistant_tag": "assistant", "system_tag": "system",
    },
}  # fmt: skip


def make_entrant(job: dict[str, Any]) -> Entrant:
    """Returns load, align and tokenize with a process per core, written to Arrow."""

    def run(files: list[str], out: str) -> Callable[[], Iterator[Row]]:
        [file] = files
        registry = {"corpus": {"file_name": file, **_ENTRY}}
        Path(out, "dataset_info.json").write_text(json.dumps(registry))
        model_args, data_args, training_args, _, _ = get_train_args({
            "stage": "sft", "do_train": True, "finetuning_type": "full", "template": "llama3",
            "model_name_or_path": job["tokenizer"], "cache_dir": f"{out}/cache",
            "dataset": "corpus", "dataset_dir": out, "cutoff_len": 131_072,
            "preprocessing_num_workers": len(job["cores"]), "overwrite_cache": True,
            "output_dir": f"{out}/run", "report_to": "none", "use_cpu": True, "bf16": False,
        })  # fmt: skip
        module = load_tokenizer(model_args)
        template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
        made = get_dataset(template, model_args, data_args, training_args, stage="sft", **module)
        return lambda: (_row(row) for row in made["train_dataset"])

    return run


def _row(row: dict[str, Any]) -> Row:
    return row["input_ids"], [label != -100 for label in row["labels"]]


if __name__ == "__main__":
    run_entrant(make_entrant, "llamafactory", "transformers", "datasets", "tokenizers")
