"""The hash of every row of the corpus, by transformers, in calls of 64 conversations; untimed."""

import itertools
import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.tokenize_peers.clock import row_hash


def main() -> None:
    """Writes job["result"] for the first job["rows"] rows of job["corpus"]."""
    job = json.loads(Path(sys.argv[1]).read_text())
    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"])
    hashes = []
    with Path(job["corpus"]).open("rb") as lines:
        for batch in itertools.batched(itertools.islice(lines, job["rows"]), 64):
            made = tokenizer.apply_chat_template(
                [json.loads(line)["messages"] for line in batch],
                chat_template=job["template"],
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            rows = zip(made["input_ids"], made["assistant_masks"], strict=True)
            hashes += [row_hash(ids, mask) for ids, mask in rows]
    Path(job["result"]).write_text(json.dumps({"row_hashes": hashes}))


if __name__ == "__main__":
    main()
