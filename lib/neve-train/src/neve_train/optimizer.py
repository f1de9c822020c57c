"""Levanter's Adam from our config."""

from __future__ import annotations

from levanter.optim.config import AdamConfig

from neve_train.config import OptimizerConfig

__all__ = ["adam"]


def adam(config: OptimizerConfig, num_train_steps: int) -> AdamConfig:
    """Returns Levanter's optimizer; its default mask keeps decay from norms, biases and embeddings.

    Snowball's router bias is a bias by its name, and gets no gradient: without the mask decay would
    shrink what balances the experts.

    Args:
        config: Numbers of the optimizer.
        num_train_steps: Optimizer updates of the training.
    """
    warmup = config.warmup if config.warmup < 1 else int(config.warmup)
    if warmup == 1:  # Levanter takes 1 for the whole training
        warmup = min(1.0, 1.5 / num_train_steps)
    return AdamConfig(
        learning_rate=config.learning_rate,
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm or None,
        warmup=warmup,
        min_lr_ratio=config.min_lr_ratio,
        lr_schedule=config.schedule,
    )
