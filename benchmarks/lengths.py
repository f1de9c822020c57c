"""Lengths of agent conversations, the same for every benchmark."""

import numpy as np


def conversation_lengths(n: int = 3000, seed: int = 0, seq_len: int = 32_768) -> np.ndarray:
    """Return int64[n] tokens per conversation, shaped like OpenThoughts-Agent's.

    Log-normal with median 8,000 and sigma 0.8, clipped to 1 .. seq_len.
    """
    draws = np.random.default_rng(seed).lognormal(np.log(8_000), 0.8, n)
    return np.clip(draws, 1, seq_len).astype(np.int64)
