"""The steps that make a recipe's data: conversations and tokens per data set, and the mixture.

Those of a data set carry its name, so that other recipes share them.
"""

import dataclasses
from typing import Any

from neve import ExecutorStep, unhashed

from experiments.sft.cache_source import TokenCache
from experiments.sft.sources import DataSource
from experiments.sft.spec import DatasetSpec, SFTSpec
from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets, resolve_mixing
from steps.tokenize_chat import TURN_POLICIES, ChatTemplate, TokenizeChatConfig, tokenize_chat
from steps.transform_conversations import (
    RowsConfig,
    TransformConversationsConfig,
    transform_conversations,
)


def conversations_step(spec: SFTSpec, dataset: DatasetSpec) -> ExecutorStep | None:
    """Returns the step that writes canonical conversations; None where tokens exist already."""
    if isinstance(dataset.source, TokenCache):
        return None
    source: DataSource = dataset.source
    rows: dict[str, Any] = {
        field.name: getattr(dataset, field.name) for field in dataclasses.fields(RowsConfig)
    }
    rows["schema"] = dataset.schema.resolved()
    return ExecutorStep(
        name=f"conversations/{dataset.name}",
        fn=transform_conversations,
        config=TransformConversationsConfig(
            input=source.step(dataset.name),
            num_processes=unhashed(spec.num_data_processes),
            **rows,
        ),
        outputs=("*.jsonl.zst", "summary.json"),
        resumable=True,
    )


def tokenized_step(
    spec: SFTSpec,
    dataset: DatasetSpec,
    conversations: ExecutorStep | None,
    tokenizer: ExecutorStep,
    template: ChatTemplate,
) -> ExecutorStep:
    """Returns the step that writes tokens and masks, or the cache that the data set names."""
    if isinstance(dataset.source, TokenCache):
        return dataset.source.tokenized_step(dataset.name, tokenizer, template.text)
    policy = dataset.long_conversations or spec.long_conversations
    # Only what cuts at turn borders renders anew, so that only then seq_len is part of these tokens.
    shortened = {"max_tokens": spec.seq_len, "long_conversations": policy}
    return ExecutorStep(
        name=f"tokenized/{dataset.name}",
        fn=tokenize_chat,
        config=TokenizeChatConfig(
            input=conversations,
            tokenizer=tokenizer,
            template=template.text,
            template_name=unhashed(template.name),
            validation_fraction=spec.validation_fraction,
            loss=spec.loss,
            special_text=dataset.special_text,
            allowed_special_text=tuple(sorted({new for _, new in dataset.replacements})),
            num_processes=unhashed(spec.num_data_processes),
            **(shortened if policy in TURN_POLICIES else {}),
        ),
        outputs=("train", "stats.json"),
        resumable=True,
    )


def mixture_step(
    spec: SFTSpec, tokenized: tuple[ExecutorStep, ...], tokenizer: ExecutorStep
) -> ExecutorStep:
    """Returns the step that writes the rows of the training in their order."""
    return ExecutorStep(
        name=f"mixtures/{spec.name}",
        fn=mix_datasets,
        config=MixDatasetsConfig(
            datasets=tuple(
                MixedDataset(
                    name=dataset.name,
                    cache=cache,
                    weight=dataset.weight,
                    repeat=dataset.repeat,
                    max_conversations=dataset.max_conversations,
                    long_conversations=dataset.long_conversations or spec.long_conversations,
                )
                for dataset, cache in zip(spec.datasets, tokenized, strict=True)
            ),
            mixing=resolve_mixing(spec.mixing, [dataset.weight for dataset in spec.datasets]),
            seq_len=spec.seq_len,
            packing=spec.packing,
            batch_size=spec.batch_size,
            num_train_steps=spec.num_train_steps,
            num_train_epochs=spec.num_train_epochs,
            data_seed=spec.data_seed,
            model_config=tokenizer,
        ),
        outputs=("plan.json", "train", "validation"),
    )
