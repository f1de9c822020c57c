"""
Adopted token caches: checked once, read where they lie, refused where they don't fit the recipe.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve import InputError, make_plan
from neve_chat.cache import TreeCacheWriter
from neve_chat.errors import ChatInputError

from experiments.sft.cache_source import TokenCache, refuse_unused_fields
from experiments.sft.sources import LocalModel
from experiments.sft.spec import DatasetSpec
from steps.adopt_cache import AdoptCacheConfig, adopt_cache
from tests.neve_chat.tiny_tokenizer import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
LENGTHS = (4, 6, 8)


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Keep the memory of digests out of the user's cache folder.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "memory"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Folder with the tiny tokenizer and the config of a model that goes with it.
    """
    folder = build_tokenizer(tmp_path_factory.mktemp("model"))
    model = {"max_position_embeddings": 64, "vocab_size": 512}
    (folder / "config.json").write_text(json.dumps(model))
    return folder


def write_split(folder: Path, tokenizer: Path, lengths: tuple[int, ...]) -> None:
    """
    Write rows whose second half is trained, as the tokenizer and the template would have made them.
    """
    made_with = {"tokenizer": str(tokenizer), "vocab_size": None, "chat_template": TEMPLATE}
    with TreeCacheWriter(
        str(folder), scratch=folder / "scratch", preprocessor_metadata=made_with
    ) as writer:
        for length in lengths:
            ids = np.arange(length, dtype=np.int32) + 20
            writer.append(ids, (np.arange(length) >= length // 2).astype(np.int32))


@pytest.fixture
def cache(tmp_path: Path, tokenizer: Path) -> Path:
    """
    A cache with both splits.
    """
    write_split(tmp_path / "theirs" / "train", tokenizer, LENGTHS)
    write_split(tmp_path / "theirs" / "validation", tokenizer, (4,))
    return tmp_path / "theirs"


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """
    Return size and time of change of all that is in a folder.
    """
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def test_adopting_tells_the_facts_of_both_splits(cache: Path, tokenizer: Path) -> None:
    """
    The step's results are the checked counts, and what reads a tokenize step's results finds them.
    """
    before = listing(cache)

    results = adopt_cache(AdoptCacheConfig(tokenizer=str(tokenizer), template=TEMPLATE), str(cache))

    # 4 + 6 + 8 tokens, half of them trained.
    train = results["train"]
    assert (train["rows"], train["tokens"], train["trained_tokens"]) == (3, 18, 9)
    assert results["validation"]["tokens"] == 4
    assert results["baselines"]["unigram_loss"] is None
    assert listing(cache) == before


def test_adopting_refuses_another_template(cache: Path, tokenizer: Path) -> None:
    """
    A cache made with another template trains another format than the export would serve.
    """
    config = AdoptCacheConfig(tokenizer=str(tokenizer), template=TEMPLATE + "\n")

    with pytest.raises(
        ChatInputError, match=r"chat template: .* they part at character 85"
    ) as error:
        adopt_cache(config, str(cache))

    word = str(error.value).rpartition('accept=("')[2].removesuffix('",).')
    accepted = AdoptCacheConfig(tokenizer=str(tokenizer), template=TEMPLATE + "\n", accept=(word,))
    assert adopt_cache(accepted, str(cache))["train"]["rows"] == 3


def test_adopting_can_take_the_tokenizers_own_template(
    cache: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """
    Without a template the one in the tokenizer's folder is what the cache must have been made with.
    """
    own = Path(shutil.copytree(tokenizer, tmp_path / "own"))
    config = AdoptCacheConfig(tokenizer=str(own), template="")
    (own / "chat_template.jinja").write_text(TEMPLATE)

    assert adopt_cache(config, str(cache))["train"]["rows"] == 3

    (own / "chat_template.jinja").write_text(TEMPLATE + "!")
    with pytest.raises(ChatInputError, match="chat template: the cache has"):
        adopt_cache(config, str(cache))


RECIPE = """
import os
from experiments.sft.cache_source import TokenCache
from experiments.sft.sources import LocalModel
from neve import ExecutorStep, executor_main
from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets

tokenizer = LocalModel(path=os.environ["MODEL"]).steps().tokenizer
source = TokenCache(path=os.environ["CACHE"])
tokenized = source.tokenized_step("theirs", tokenizer, os.environ["TEMPLATE"])
mixture = ExecutorStep(
    name="mixtures/m",
    fn=mix_datasets,
    config=MixDatasetsConfig(
        datasets=(MixedDataset(name="theirs", cache=tokenized),),
        seq_len=8,
        batch_size=1,
        num_train_epochs=1.0,
        model_config=tokenizer,
    ),
    outputs=("plan.json",),
)
if __name__ == "__main__":
    executor_main([mixture])
"""


def run_recipe(
    folder: Path, cache: Path, tokenizer: Path, *words: str, template: str = TEMPLATE
) -> subprocess.CompletedProcess[str]:
    """
    Run the recipe in a process of its own.
    """
    (folder / "recipe.py").write_text(RECIPE)
    environ = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{ROOT}",
        "MARIN_PREFIX": str(folder / "prefix"),
        "MODEL": str(tokenizer),
        "CACHE": str(cache),
        "TEMPLATE": template,
    }
    return subprocess.run(
        [sys.executable, "-m", "recipe", *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("form", ["splits", "flat"])
def test_recipe_reads_an_adopted_cache_in_place(
    tmp_path: Path, cache: Path, tokenizer: Path, form: str
) -> None:
    """
    Mixed without raw rows, tokenization or a copy; run again, and moved, it is complete at once.
    """
    path = cache if form == "splits" else cache / "train"
    before = listing(cache)

    done = run_recipe(tmp_path, path, tokenizer)

    assert done.returncode == 0, done.stderr
    plan = json.loads(next((tmp_path / "prefix").glob("mixtures/m-*/plan.json")).read_text())
    assert plan["sources"][0]["conversations"] == 3
    assert listing(cache) == before
    assert not list((tmp_path / "prefix").rglob("zarr.json"))
    assert not list((tmp_path / "prefix").glob("raw")) + list((tmp_path / "prefix").glob("conv*"))
    moved = path.rename(tmp_path / "elsewhere")
    again = run_recipe(tmp_path, moved, tokenizer, "--dry_run")
    assert again.returncode == 0, again.stderr
    assert "run" not in [word for line in again.stdout.splitlines() for word in line.split()[:2]]


def test_recipe_stops_at_a_cache_that_does_not_fit(
    tmp_path: Path, cache: Path, tokenizer: Path
) -> None:
    """
    Nothing is mixed from a cache of another template; both are shown.
    """
    done = run_recipe(tmp_path, cache, tokenizer, template=TEMPLATE + "!")

    assert done.returncode != 0
    assert "accept this on purpose in its source: accept=(" in done.stdout + done.stderr
    assert not list((tmp_path / "prefix").glob("mixtures/*/plan.json"))


def test_identity_is_what_the_cache_holds_and_must_fit(
    tmp_path: Path, cache: Path, tokenizer: Path
) -> None:
    """
    Moved, it is the same step; with another row, template or acceptance it is another one.
    """
    model = LocalModel(path=str(tokenizer)).steps().tokenizer

    def fingerprint(path: Path, template: str = TEMPLATE, accept: tuple[str, ...] = ()) -> str:
        step = TokenCache(path=str(path), accept=accept).tokenized_step("c", model, template)
        return make_plan([step], str(tmp_path / "prefix")).rows[-1].fingerprint

    first = fingerprint(cache)
    others = {fingerprint(cache, TEMPLATE + "!"), fingerprint(cache, accept=("tokenizer=x",))}
    moved = cache.rename(tmp_path / "moved")
    assert fingerprint(moved) == first
    write_split(moved / "train", tokenizer, (*LENGTHS, 2))
    assert len({first, fingerprint(moved), *others}) == 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"replacements": (("a", "b"),)}, "replacements"),
        ({"files": ("*.jsonl",)}, "files"),
        ({"max_rejected_fraction": 0.5}, "max_rejected_fraction"),
    ],
)
def test_fields_that_a_cache_cannot_follow_are_refused(
    cache: Path, changes: dict[str, Any], field: str
) -> None:
    """
    A field that would be ignored is an error; those of the mixture are free.
    """
    source: Any = TokenCache(path=str(cache))
    refuse_unused_fields(DatasetSpec(name="c", source=source, weight=2.0))

    with pytest.raises(InputError, match=f"dataset 'c': {field} must be left out"):
        refuse_unused_fields(DatasetSpec(name="c", source=source, **changes))


def test_absent_cache_is_refused_while_planning(tmp_path: Path, tokenizer: Path) -> None:
    """
    A wrong path is told before anything runs.
    """
    model = LocalModel(path=str(tokenizer)).steps().tokenizer

    with pytest.raises(InputError, match="the data must exist, got nothing at"):
        TokenCache(path=str(tmp_path / "nothing")).tokenized_step("c", model, TEMPLATE)
