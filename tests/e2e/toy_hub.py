"""The repositories of snowball_h100 in the real layouts, holding a small model and a few conversations."""

import json
from pathlib import Path

from experiments.sft.configs.snowball_h100 import SPEC
from experiments.sft.configs.snowball_tiny import CONVERSATIONS
from experiments.sft.sources import HubDataset, HubModel
from steps.make_snowball_base import MakeSnowballBaseConfig, make_snowball_base
from steps.make_tokenizer import MakeTokenizerConfig, make_tokenizer
from tests.hub.server import LocalHub


def add_h100_repositories(hub: LocalHub, folder: Path, private: bool = False) -> tuple[int, ...]:
    """Puts the recipe's model and data set on the hub at the revisions that it pins.

    Returns:
        Ids of <|end_of_text|> and <|eot_id|> in the small tokenizer.
    """
    model, source = SPEC.model, SPEC.datasets[0].source
    assert isinstance(model, HubModel)
    assert isinstance(source, HubDataset)
    corpus = Path(CONVERSATIONS.path)
    make_tokenizer(
        MakeTokenizerConfig(
            corpus=str(corpus), vocab_size=512, hidden_size=64, num_layers=5, num_heads=4,
            num_kv_heads=2, head_dim=16, num_experts=8, expert_width=32, shared_width=64,
        ),
        str(folder / "tokenizer"),
    )  # fmt: skip
    make_snowball_base(
        MakeSnowballBaseConfig(input=str(folder / "tokenizer")), str(folder / "model")
    )
    files = {path.name: path for path in (folder / "model").iterdir() if path.is_file()}
    hub.add_repo(model.repo, "model", files, revision=model.revision, private=private)
    data = {f"data/{path.name}": path for path in sorted(corpus.glob("*.parquet"))}
    hub.add_repo(source.repo, "dataset", data, revision=source.revision, private=private)
    tokens = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in tokens}
    return ids["<|end_of_text|>"], ids["<|eot_id|>"]
