"""From an SFTSpec to its steps, and from a recipe's command line to a run.

raw -> conversations -> tokenized   (per data set, shared between recipes)
tokenizer                           (config and tokenizer files of the model, light)
mixture -> weights -> checkpoints -> exports -> samples -> uploads (only if asked for)
"""

import dataclasses
import sys

from neve import (
    ExecutorStep,
    InputError,
    Options,
    Resources,
    make_plan,
    parse_options,
    read_results,
    run_steps,
    unhashed,
)
from neve.entry import exit_code_of
from neve.plan import state_home

from experiments.sft.cache_source import TokenCache
from experiments.sft.overrides import FLAG, apply_overrides
from experiments.sft.preflight import is_to_be_trained, run_preflight, take_flag
from experiments.sft.sources import ModelSource, ModelSteps, TrainedModel
from experiments.sft.spec import DatasetSpec, SFTSpec, UploadSpec
from steps.export_hf import ExportHfConfig, export_hf
from steps.export_lora import ExportLoraConfig, export_lora
from steps.generate_samples import GenerateSamplesConfig, generate_samples
from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets, resolve_mixing
from steps.tokenize_chat import (
    TURN_POLICIES,
    ChatTemplate,
    TokenizeChatConfig,
    load_template,
    tokenize_chat,
)
from steps.train_sft import ExecutionConfig, TrainSftConfig, train_sft
from steps.transform_conversations import TransformConversationsConfig, transform_conversations
from steps.upload_hf import UploadHfConfig, upload_hf


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTSteps:
    """The steps of a spec, for recipes that go on from them."""

    tokenizer: ExecutorStep
    """Config and tokenizer files of the base model."""

    weights: ExecutorStep
    """Base model."""

    conversations: tuple[ExecutorStep | None, ...]
    """Canonical conversations per data set; None where its tokens are adopted."""

    tokenized: tuple[ExecutorStep, ...]
    """Token caches per data set."""

    mixture: ExecutorStep
    """The rows of the training in their order, and number of train steps."""

    checkpoint: ExecutorStep
    """Native Levanter checkpoints."""

    export: ExecutorStep
    """Hugging Face folder."""

    samples: ExecutorStep | None
    """Greedy answers before and after training; None where no data set has conversations."""

    upload: ExecutorStep | None
    """The Hugging Face folder on the hub; None where the spec doesn't ask for it."""

    @property
    def last(self) -> ExecutorStep:
        """The step that everything else leads to."""
        return self.upload or self.samples or self.export


def sft_steps(spec: SFTSpec, accelerator: str = "1xcpu") -> SFTSteps:
    """Returns the steps of a spec on `accelerator`, which never enters their identity.

    Raises:
        InputError: Mesh, batch and accelerator don't fit, or the template can't be used.
    """
    sizes = check_devices(spec, accelerator)
    on_accelerator = Resources(accelerator=accelerator)
    template = load_template(spec.chat_template)
    tokenizer = _model_steps(spec.model, accelerator).tokenizer
    conversations = tuple(
        None if isinstance(dataset.source, TokenCache) else _conversations(spec, dataset)
        for dataset in spec.datasets
    )
    tokenized = tuple(
        _tokenized(spec, dataset, step, tokenizer, template)
        for dataset, step in zip(spec.datasets, conversations, strict=True)
    )
    mixture = ExecutorStep(
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
    # The weights are large: they are only fetched once data and lengths are known to be right.
    base = _model_steps(spec.model, accelerator, after=(mixture,))
    weights = base.weights
    train_config = TrainSftConfig(
        model=tokenizer if base.is_checkpoint else weights,
        tokenizer=tokenizer,
        plan=mixture,
        caches=tokenized,
        seq_len=spec.seq_len,
        batch_size=spec.batch_size,
        optimizer=spec.optimizer,
        precision=spec.precision,
        seed=spec.seed,
        capacity_factor=spec.capacity_factor,
        max_dropped_fraction=spec.max_dropped_fraction,
        z_loss=spec.z_loss,
        initial_checkpoint=weights if base.is_checkpoint else None,
        adapter=spec.adapter,
        execution=unhashed(_execution(spec, sizes)),
    )
    checkpoint = ExecutorStep(
        name=f"checkpoints/{spec.name}",
        fn=train_sft,
        config=train_config,
        version=spec.version,
        resources=on_accelerator,
        outputs=("checkpoints", "loss.png"),
        resumable=True,
    )
    export = _export(spec, checkpoint, train_config, template, on_accelerator)
    prompts = next((step for step in conversations if step is not None), None)
    samples = prompts and ExecutorStep(
        name=f"samples/{spec.name}",
        fn=generate_samples,
        config=GenerateSamplesConfig(
            before=weights,
            after=export,
            conversations=prompts,
            template_text=template.text,
            num_samples=spec.num_samples,
            max_new_tokens=spec.sample_max_tokens,
            eos_token_ids=spec.model.eos_token_ids,
        ),
        resources=on_accelerator,
        outputs=("samples.json", "samples.txt"),
    )
    return SFTSteps(
        tokenizer=tokenizer,
        weights=weights,
        conversations=conversations,
        tokenized=tokenized,
        mixture=mixture,
        checkpoint=checkpoint,
        export=export,
        samples=samples,
        upload=spec.upload and _upload(spec, spec.upload, export, samples),
    )


def _model_steps(
    model: ModelSource | TrainedModel, accelerator: str, after: tuple[ExecutorStep, ...] = ()
) -> ModelSteps:
    """Returns a model's steps; those of a trained one are the steps of its own recipe."""
    if not isinstance(model, TrainedModel):
        return model.steps(after)
    earlier = sft_steps(model.spec, accelerator)
    if model.spec.adapter is not None:  # its checkpoints hold the adapters alone
        return ModelSteps(tokenizer=earlier.tokenizer, weights=earlier.export)
    return ModelSteps(tokenizer=earlier.tokenizer, weights=earlier.checkpoint, is_checkpoint=True)


def _export(
    spec: SFTSpec,
    checkpoint: ExecutorStep,
    trained: TrainSftConfig,
    template: ChatTemplate,
    resources: Resources,
) -> ExecutorStep:
    """Returns the step that makes the Hugging Face folder: of the model, or of base and adapters."""
    common = {
        "checkpoint": checkpoint,
        "tokenizer": trained.tokenizer,
        "template_text": template.text,
        "eos_token_ids": spec.model.eos_token_ids,
    }
    files = ("config.json", "generation_config.json", "tokenizer.json", "*.safetensors")
    if spec.adapter is None:
        made_here = tuple(  # the templates of the others were compared when they were adopted
            cache
            for cache, dataset in zip(trained.caches, spec.datasets, strict=True)
            if not isinstance(dataset.source, TokenCache)
        )
        return ExecutorStep(
            name=f"exports/{spec.name}",
            fn=export_hf,
            config=ExportHfConfig(model=trained.tokenizer, caches=made_here, **common),
            outputs=files,
        )
    return ExecutorStep(
        name=f"exports/{spec.name}",
        fn=export_lora,
        config=ExportLoraConfig(
            adapter=spec.adapter,
            model=trained.model,
            initial_checkpoint=trained.initial_checkpoint,
            repo=getattr(spec.model, "repo", ""),
            revision=getattr(spec.model, "revision", ""),
            **common,
        ),
        resources=resources,
        outputs=(*files, "adapter/adapter_config.json", "adapter/adapter_model.safetensors"),
    )


def _upload(
    spec: SFTSpec, place: UploadSpec, export: ExecutorStep, samples: ExecutorStep | None
) -> ExecutorStep:
    """Returns the step that shares the export, once the model has answered."""
    config = UploadHfConfig(
        folder=export,
        repo=place.repo,
        branch=place.branch,
        private=place.private,
        license=place.license,
        overwrite=unhashed(place.overwrite),
    )
    return ExecutorStep(
        name=f"uploads/{spec.name}",
        fn=upload_hf,
        config=config,
        outputs=("certificate.json",),
        after=(samples,) if samples else (),
    )


def _conversations(spec: SFTSpec, dataset: DatasetSpec) -> ExecutorStep:
    assert not isinstance(dataset.source, TokenCache)
    return ExecutorStep(
        name=f"conversations/{dataset.name}",
        fn=transform_conversations,
        config=TransformConversationsConfig(
            input=dataset.source.step(dataset.name),
            schema=dataset.schema.resolved(),
            files=dataset.files,
            subset=dataset.subset,
            split=dataset.split,
            replacements=dataset.replacements,
            policies=dataset.policies,
            max_rejected_fraction=dataset.max_rejected_fraction,
            num_processes=unhashed(spec.num_data_processes),
        ),
        outputs=("*.jsonl.zst", "summary.json"),
        resumable=True,
    )


def _tokenized(
    spec: SFTSpec,
    dataset: DatasetSpec,
    conversations: ExecutorStep | None,
    tokenizer: ExecutorStep,
    template: ChatTemplate,
) -> ExecutorStep:
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


def _execution(spec: SFTSpec, sizes: dict[str, int]) -> ExecutionConfig:
    """Returns what only decides how training runs."""
    return ExecutionConfig(
        mesh=tuple(sizes.items()),
        per_device_batch_size=spec.per_device_batch_size,
        checkpoint_every_train_steps=spec.checkpoint_every_train_steps,
        checkpoint_every_seconds=spec.checkpoint_every_seconds,
        eval_every_train_steps=spec.eval_every_train_steps,
        keep_every_train_steps=spec.keep_every_train_steps,
        keep_last_checkpoints=spec.keep_last_checkpoints,
        trackers=spec.tracker.kinds,
        tracker_project=spec.tracker.project,
        tracker_tags=spec.tracker.tags,
    )


def check_devices(spec: SFTSpec, accelerator: str) -> dict[str, int]:
    """Returns the mesh axis sizes for an accelerator such as `32xH100`.

    Raises:
        InputError: The mesh doesn't fit the devices, or batch or seq_len doesn't divide over the mesh.
    """
    count = accelerator.partition("x")[0]
    if not count.isdigit() or int(count) < 1:
        raise InputError(
            f"--accelerator: must be <count>x<kind> such as 32xH100 or 8xcpu, got {accelerator!r}. Change it."
        )
    sizes = spec.mesh.sizes(int(count))
    batch_parts = sizes["data"] * sizes["expert"]
    if spec.batch_size % batch_parts:
        better = -(-spec.batch_size // batch_parts) * batch_parts
        raise InputError(
            f"spec {spec.name!r}: batch_size must be divisible by the {batch_parts} parts of the "
            f"batch (data {sizes['data']} x expert {sizes['expert']} on {accelerator}), got "
            f"{spec.batch_size}. Pass --spec.batch_size {better}."
        )
    if spec.seq_len % sizes["context"]:
        raise InputError(
            f"spec {spec.name!r}: seq_len must be divisible by the context axis of {sizes['context']}, got "
            f"{spec.seq_len}. Change seq_len or mesh.context."
        )
    rows = spec.batch_size // batch_parts
    if spec.per_device_batch_size is not None and rows % spec.per_device_batch_size:
        raise InputError(
            f"spec {spec.name!r}: per_device_batch_size must divide the {rows} rows of a device, got "
            f"{spec.per_device_batch_size}. Pass a divisor of {rows}."
        )
    return sizes


def run_sft_cli(spec: SFTSpec, default_accelerator: str | None = None) -> None:
    """Runs a recipe from its command line and exits; `--spec.<field> VALUE` changes a field.

    Exit codes: 0 done, 1 a step failed, 2 the input is wrong, 130 interrupted.
    """

    def run() -> int:
        options, rest = parse_options(sys.argv[1:], description=_description(spec))
        is_preflight = take_flag(rest, options)
        changed = apply_overrides(spec, rest)
        accelerator = options.accelerator or default_accelerator
        if accelerator is None:
            raise InputError(
                f"spec {spec.name!r}: --accelerator must be given, got none. "
                "Pass for example --accelerator 32xH100."
            )
        steps = sft_steps(changed, accelerator)
        if is_preflight or is_to_be_trained(steps.checkpoint, steps.last, options):
            sizes = check_devices(changed, accelerator)
            code = run_preflight(
                changed, steps.tokenizer, accelerator, sizes, options, is_preflight
            )
            if code or is_preflight:
                return code
        code = run_steps([steps.last], options, description=changed.name)
        # With --only there may be no checkpoint to point at; with --json a program reads.
        if code == 0 and not (options.dry_run or options.only or options.json):
            print(_where_everything_is(steps, options))  # noqa: T201  what the user came for
        return code

    sys.exit(exit_code_of(run))


def _description(spec: SFTSpec) -> str:
    return (
        f"Fine-tune {spec.name}. {FLAG}<field> VALUE changes a field of the recipe, such as {FLAG}seq_len 8192; "
        "--preflight tells whether the training fits its accelerator, and runs nothing else."
    )


def _where_everything_is(steps: SFTSteps, options: Options) -> str:
    """Returns the closing lines of a run: its loss, the places to look at, and the next command."""
    plan = make_plan([steps.last], options.resolved_prefix())
    paths = {row.name: row.output_path for row in plan.rows}
    checkpoint = paths[steps.checkpoint.name]
    trained = read_results(checkpoint)
    lines = []
    if trained.get("heldout_loss") is not None:
        homes = {row.name: state_home(row.identity, plan.prefix) for row in plan.rows}
        baselines = [read_results(homes[step.name])["baselines"] for step in steps.tokenized]
        known = [
            f"unigram {row['unigram_loss']:.3f}, bigram {row['bigram_loss']:.3f}"
            for row in baselines
            if row.get("unigram_loss") is not None
        ]
        against = f"; baselines: {'; '.join(known)}" if known else ""
        lines.append(
            f"held-out loss {trained['heldout_loss']:.3f} nats per trained token, before training "
            f"{trained['heldout_loss_first']:.3f}{against}"
        )
    places = [
        ("checkpoint", f"{checkpoint}/checkpoints"),
        ("loss curve", f"{checkpoint}/loss.png"),
        ("HF folder", paths[steps.export.name]),
        *([("samples", f"{paths[steps.samples.name]}/samples.txt")] if steps.samples else []),
        *([("upload", f"{paths[steps.upload.name]}/certificate.json")] if steps.upload else []),
        ("logs", f"{checkpoint}/.neve/attempts"),
        ("next", f"neve show {checkpoint}"),
    ]
    return "\n".join([*lines, *(f"{label:<11} {value}" for label, value in places)])
