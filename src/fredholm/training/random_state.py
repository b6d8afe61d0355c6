"""Seeds, and random states that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch

MAX_SEED = 2**32 - 1


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python, NumPy and torch (all devices).

    Raises:
        ValueError: the seed is not in [0, 2^32).
    """
    _check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - third-party code draws from the global generator
    torch.manual_seed(seed)


def seeded_generator(seed: int) -> torch.Generator:
    """A CPU generator; errors as `seed_everything`."""
    _check_seed(seed)
    return torch.Generator().manual_seed(seed)


def derived_generator(*key: int) -> torch.Generator:
    """A CPU generator whose stream depends on the whole key, as (seed, epoch, batch); no two keys share one."""
    # The length comes first because NumPy pads with zeros: without it (1, 2) and (1, 2, 0) would be the same.
    state = np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state))


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed is {seed}; expected an integer from 0 to {MAX_SEED}")


def random_state() -> dict[str, Any]:
    """The state of all global generators in types that ``torch.load(weights_only=True)`` accepts."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Undoes everything drawn since ``random_state()``.

    CUDA states are restored when this machine has as many devices as the saving one; a run that moved to
    other devices goes on from the seed's stream there.
    """
    random.setstate(state["python"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
