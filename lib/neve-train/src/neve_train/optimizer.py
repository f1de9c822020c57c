"""Levanter's Adam from our config."""

from __future__ import annotations

from typing import Any

import jax
from haliax import NamedArray
from levanter.optim.config import AdamConfig
from levanter.utils.jax_utils import leaf_key_paths

from neve_train.config import OptimizerConfig
from neve_train.errors import TrainInputError

__all__ = ["adam"]


def adam(config: OptimizerConfig, num_train_steps: int) -> AdamConfig:
    """Returns Levanter's optimizer; its default mask keeps decay from scales of norms and biases.

    Haliax's embeddings are kept from it too, Snowball's aren't. Snowball's router bias is a bias by
    its name, and gets no gradient: without the mask decay would shrink what balances the experts.

    Args:
        config: Numbers of the optimizer.
        num_train_steps: Optimizer updates of the training.
    """
    warmup = config.warmup if config.warmup < 1 else int(config.warmup)
    if warmup == 1:  # Levanter takes 1 for the whole training
        warmup = min(1.0, 1.5 / num_train_steps)
    return _Adam(
        learning_rate=config.learning_rate,
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        weight_decay_modules=list(config.decay_also) or None,
        default_weight_decay_mask=True,
        max_grad_norm=config.max_grad_norm or None,
        warmup=warmup,
        min_lr_ratio=config.min_lr_ratio,
        lr_schedule=config.schedule,
    )


class _Adam(AdamConfig):
    def build_weight_decay_mask(self) -> Any:
        """Returns Levanter's mask, which refuses names that no trained tensor has."""
        mask: Any = super().build_weight_decay_mask()  # never None with the default mask
        wanted = self.weight_decay_modules or ()

        def checked(model: Any) -> Any:
            paths = leaf_key_paths(model, is_leaf=lambda node: isinstance(node, NamedArray))
            names = jax.tree.leaves(paths)
            for part in wanted:
                if not any(part in name for name in names):
                    raise TrainInputError(
                        f"optimizer: decay_also must name trained tensors, got {part!r}. There are "
                        f"{', '.join(_kinds(names))}."
                    )
            return mask(model)

        return checked


def _kinds(names: list[str]) -> list[str]:
    """Returns the last parts of names, which all layers share."""
    return sorted({".".join(name.split(".")[-2:]) for name in names})
