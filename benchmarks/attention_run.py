"""The attention kernel that packed rows use, against Levanter's reference."""

import sys
from typing import Any

import numpy as np


def compare_attention() -> None:
    """Compare the kernel that packed rows use with the reference, on several conversations in a row."""
    import jax
    import jax.numpy as jnp
    from levanter.grug.attention import AttentionMask
    from levanter.grug.attention import attention as attend

    is_gpu = jax.default_backend() == "gpu"
    kernel = "gpu_fa4_cute" if is_gpu else "xla_flash"
    rows, length, heads, kv_heads, width = (2, 4096, 16, 4, 128) if is_gpu else (1, 2048, 2, 1, 16)
    dtype = jnp.bfloat16 if is_gpu else jnp.float32
    rng = np.random.default_rng(0)

    def draw(num_heads: int) -> Any:
        return jnp.asarray(rng.standard_normal((rows, length, num_heads, width)), dtype)

    q, k, v, weight = draw(heads), draw(kv_heads), draw(kv_heads), draw(heads)
    ends = np.sort(rng.choice(np.arange(1, length), 7, replace=False))
    segments = np.broadcast_to(np.searchsorted(ends, np.arange(length), "right"), (rows, length))
    ids = jnp.asarray(np.where(np.arange(length) < length - 20, segments, -1), jnp.int32)
    real = (ids >= 0)[..., None, None]
    worst = {"RESULT": 0.0, "GRADIENT": 0.0}
    for window in (None, length // 16):
        mask = AttentionMask.causal(sliding_window=window).with_segment_ids(ids)

        def run(implementation: str, mask: Any = mask) -> list[Any]:
            def value(q: Any, k: Any, v: Any) -> Any:
                result = jnp.where(real, attend(q, k, v, mask, implementation=implementation), 0)
                return jnp.sum((result * weight).astype(jnp.float32)), result

            grads, result = jax.jit(jax.grad(value, argnums=(0, 1, 2), has_aux=True))(q, k, v)
            return [np.asarray(array, np.float32) for array in (result, *grads)]

        differences = [
            float(np.abs(ours - reference).max() / np.abs(reference).max())
            for ours, reference in zip(run(kernel), run("reference"), strict=True)
        ]
        worst["RESULT"] = max(worst["RESULT"], differences[0])
        worst["GRADIENT"] = max(worst["GRADIENT"], *differences[1:])
    for name, number in worst.items():
        sys.stdout.write(f"{name} {number:.3e}\n")
