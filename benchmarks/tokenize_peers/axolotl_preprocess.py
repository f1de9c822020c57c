"""axolotl: what `axolotl preprocess` does, with our template as its Jinja chat template."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1", "WANDB_MODE": "disabled"}
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forked workers, one text a call

from axolotl.cli.config import load_cfg
from axolotl.common.datasets import load_datasets
from axolotl.utils.trainer import disable_datasets_caching

from benchmarks.tokenize_peers.clock import Entrant, Row, run_entrant


def make_entrant(job: dict[str, Any]) -> Entrant:
    """Returns load, tokenize with a process per core, drop what is too long (nothing), save."""

    def run(files: list[str], out: str) -> Callable[[], Iterator[Row]]:
        [file] = files
        config = {
            "base_model": job["tokenizer"], "chat_template": "jinja",
            "chat_template_jinja": job["template"],
            "datasets": [{
                "path": file, "ds_type": "json", "type": "chat_template",
                "field_messages": "messages", "roles_to_train": ["assistant"],
                "message_property_mappings": {"role": "role", "content": "content"},
            }],
            "dataset_prepared_path": f"{out}/prepared", "output_dir": f"{out}/run",
            "dataset_num_proc": len(job["cores"]), "sequence_len": 131_072, "val_set_size": 0,
            "micro_batch_size": 1, "gradient_accumulation_steps": 1, "max_steps": 1,
            "learning_rate": 1e-5, "optimizer": "adamw_torch", "lr_scheduler": "constant",
            "bf16": False, "fp16": False, "tf32": False, "use_cpu": True,
            "attn_implementation": "sdpa",
            "special_tokens": {"pad_token": "<|end_of_text|>"},
        }  # fmt: skip
        path = Path(out, "config.yaml")
        path.write_text(json.dumps(config))  # JSON is YAML
        cfg = load_cfg(str(path))
        cfg.is_preprocess = True
        with disable_datasets_caching():
            made = load_datasets(cfg=cfg).train_dataset
        return lambda: (_row(row) for row in made)

    return run


def _row(row: dict[str, Any]) -> Row:
    return row["input_ids"], [label != -100 for label in row["labels"]]


if __name__ == "__main__":
    run_entrant(make_entrant, "axolotl", "transformers", "datasets", "tokenizers")
