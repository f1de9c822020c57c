"""The steps of an SFTSpec.

raw -> conversations -> tokenized   (per data set, shared between recipes)
tokenizer                           (config and tokenizer files of the model, light)
mixture -> weights -> checkpoints -> exports -> samples -> uploads (only if asked for)
"""

import dataclasses

from neve import ExecutorStep, Resources, unhashed

from experiments.sft.cache_source import TokenCache
from experiments.sft.data_steps import conversations_step, mixture_step, tokenized_step
from experiments.sft.devices import check_devices
from experiments.sft.sources import ModelSteps, TrainedModel
from experiments.sft.spec import SFTSpec
from steps.export_hf import ExportHfConfig, export_hf
from steps.export_lora import ExportLoraConfig, export_lora
from steps.generate_samples import GenerateSamplesConfig, generate_samples
from steps.tokenize_chat import load_template
from steps.train_sft import ExecutionConfig, TrainSftConfig, train_sft
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
    execution = _execution(spec, check_devices(spec, accelerator))
    resources = Resources(accelerator=accelerator)
    template = load_template(spec.chat_template)
    model = spec.model
    is_trained = isinstance(model, TrainedModel)
    base = _trained(model, accelerator) if is_trained else model.steps()
    tokenizer = base.tokenizer
    conversations = tuple(conversations_step(spec, dataset) for dataset in spec.datasets)
    tokenized = tuple(
        tokenized_step(spec, dataset, rows, tokenizer, template)
        for dataset, rows in zip(spec.datasets, conversations, strict=True)
    )
    mixture = mixture_step(spec, tokenized, tokenizer)
    if not is_trained:  # large: only fetched once data and lengths are known to be right
        base = dataclasses.replace(base, weights=model.steps((mixture,)).weights)
    checkpoint = _checkpoint(spec, base, mixture, tokenized, execution, resources)
    export = _export(spec, checkpoint, template.text, resources)
    samples = _samples(spec, base.weights, export, conversations, template.text, resources)
    return SFTSteps(
        tokenizer=tokenizer,
        weights=base.weights,
        conversations=conversations,
        tokenized=tokenized,
        mixture=mixture,
        checkpoint=checkpoint,
        export=export,
        samples=samples,
        upload=_upload(spec, export, samples),
    )


def _trained(model: TrainedModel, accelerator: str) -> ModelSteps:
    """Returns the steps of an earlier recipe as those of a model."""
    earlier = sft_steps(model.spec, accelerator)
    if model.spec.adapter is not None:  # its checkpoints hold the adapters alone
        return ModelSteps(tokenizer=earlier.tokenizer, weights=earlier.export)
    return ModelSteps(tokenizer=earlier.tokenizer, weights=earlier.checkpoint, is_checkpoint=True)


def _checkpoint(
    spec: SFTSpec,
    base: ModelSteps,
    mixture: ExecutorStep,
    tokenized: tuple[ExecutorStep, ...],
    execution: ExecutionConfig,
    resources: Resources,
) -> ExecutorStep:
    """Returns the step that trains."""
    return ExecutorStep(
        name=f"checkpoints/{spec.name}",
        fn=train_sft,
        config=TrainSftConfig(
            model=base.tokenizer if base.is_checkpoint else base.weights,
            tokenizer=base.tokenizer,
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
            initial_checkpoint=base.weights if base.is_checkpoint else None,
            adapter=spec.adapter,
            execution=unhashed(execution),
        ),
        version=spec.version,
        resources=resources,
        outputs=("checkpoints", "loss.png"),
        resumable=True,
    )


def _execution(spec: SFTSpec, sizes: dict[str, int]) -> ExecutionConfig:
    """Returns what only decides how training runs."""
    return ExecutionConfig(
        mesh=tuple(sizes.items()),
        per_device_batch_size=spec.per_device_batch_size,
        checkpoint_every_train_steps=spec.checkpoint_every_train_steps,
        checkpoint_every_seconds=spec.checkpoint_every_seconds,
        export_every_train_steps=spec.export_every_train_steps,
        export_eos_token_ids=spec.model.eos_token_ids,
        eval_every_train_steps=spec.eval_every_train_steps,
        keep_every_train_steps=spec.keep_every_train_steps,
        keep_last_checkpoints=spec.keep_last_checkpoints,
        trackers=spec.tracker.kinds,
        tracker_project=spec.tracker.project,
        tracker_tags=spec.tracker.tags,
    )


def _export(
    spec: SFTSpec, checkpoint: ExecutorStep, template_text: str, resources: Resources
) -> ExecutorStep:
    """Returns the step that makes the Hugging Face folder: of the model, or of base and adapters."""
    trained: TrainSftConfig = checkpoint.config
    common = {
        "checkpoint": checkpoint,
        "tokenizer": trained.tokenizer,
        "template_text": template_text,
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


def _samples(
    spec: SFTSpec,
    before: ExecutorStep,
    after: ExecutorStep,
    conversations: tuple[ExecutorStep | None, ...],
    template_text: str,
    resources: Resources,
) -> ExecutorStep | None:
    """Returns the step that asks both models; its prompts are the first data set's that has any."""
    prompts = next((step for step in conversations if step is not None), None)
    if prompts is None:
        return None
    return ExecutorStep(
        name=f"samples/{spec.name}",
        fn=generate_samples,
        config=GenerateSamplesConfig(
            before=before,
            after=after,
            conversations=prompts,
            template_text=template_text,
            num_samples=spec.num_samples,
            max_new_tokens=spec.sample_max_tokens,
            eos_token_ids=spec.model.eos_token_ids,
        ),
        resources=resources,
        outputs=("samples.json", "samples.txt"),
    )


def _upload(
    spec: SFTSpec, export: ExecutorStep, samples: ExecutorStep | None
) -> ExecutorStep | None:
    """Returns the step that shares the export, once the model has answered."""
    if spec.upload is None:
        return None
    place = vars(spec.upload) | {"overwrite": unhashed(spec.upload.overwrite)}
    return ExecutorStep(
        name=f"uploads/{spec.name}",
        fn=upload_hf,
        config=UploadHfConfig(folder=export, **place),
        outputs=("certificate.json",),
        after=(samples,) if samples else (),
    )
