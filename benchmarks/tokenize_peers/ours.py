"""neve: the two step functions, from the JSONL file to the finished cache."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neve_chat.cache_reader import CacheReader
from neve_chat.schemas import ConversationSchema

from benchmarks.tokenize_peers.clock import Entrant, Row, run_entrant
from steps.tokenize_chat import TokenizeChatConfig, tokenize_chat
from steps.transform_conversations import TransformConversationsConfig, transform_conversations


def make_entrant(job: dict[str, Any]) -> Entrant:
    """Returns transform_conversations followed by tokenize_chat, with their defaults."""

    def run(files: list[str], out: str) -> Callable[[], Iterator[Row]]:
        [file] = files
        conversations, tokens = f"{out}/conversations", f"{out}/tokens"
        transform_conversations(
            TransformConversationsConfig(
                input=str(Path(file).parent),
                schema=ConversationSchema(kind="messages", id_column="id"),
                files=(Path(file).name,),
            ),
            conversations,
        )
        tokenize_chat(
            TokenizeChatConfig(
                input=conversations,
                tokenizer=job["tokenizer"],
                template=job["template"],
                template_name=job["template_name"],
            ),
            tokens,
        )
        return lambda: _rows(f"{tokens}/train")

    return run


def _rows(split_path: str) -> Iterator[Row]:
    for _, lengths, ids, mask in CacheReader(split_path).blocks():
        start = 0
        for length in lengths:
            yield ids[start : start + length], mask[start : start + length]
            start += length


if __name__ == "__main__":
    run_entrant(make_entrant, "fastokens", "tokenizers", "tensorstore")
