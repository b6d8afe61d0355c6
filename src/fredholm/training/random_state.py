"""Seeds, and random states that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch

from fredholm._settings import MAX_SEED, check_seed


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python, NumPy and torch (all devices).

    Raises:
        ValueError: the seed is not in [0, 2^32).
    """
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - third-party code draws from the global generator
    torch.manual_seed(seed)


def seeded_generator(seed: int) -> torch.Generator:
    """Returns a seeded CPU generator; errors as `seed_everything`."""
    check_seed(seed)
    return torch.Generator().manual_seed(seed)


def derived_generator(*key: int) -> torch.Generator:
    """Returns a CPU generator whose stream depends on the whole key, as (seed, epoch, batch); each key has its own."""
    # The length comes first because NumPy pads with zeros: without it (1, 2) and (1, 2, 0) would be the same.
    state = np.random.SeedSequence((len(key), *key)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state))


def own_seed(seed: int, rank: int, step: int) -> int:
    """Returns the seed of a process from a step on, for draws that differ between processes, such as dropout."""
    # Five key numbers: no other stream of a run has as many.
    return int(torch.randint(MAX_SEED, (), generator=derived_generator(seed, rank, step, 0, 0)))


def random_state() -> dict[str, Any]:
    """Returns the state of all global generators in JSON types."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": {"version": version, "words": _hex(np.array(words)), "gauss": gauss},
        "numpy": {
            "words": _hex(np.asarray(keys)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
        "torch": bytes(torch.get_rng_state().numpy()).hex(),
        "cuda": [bytes(state.cpu().numpy()).hex() for state in cuda],
    }


def restore_random_state(state: Any) -> None:
    """Restores the state of all global generators from ``random_state()``.

    CUDA states are restored when this machine has as many devices as the saving one; a run that moved to
    other devices continues with the seed's stream there.

    Raises:
        ValueError: it is no valid state of these generators, which are then unchanged.
    """
    try:
        of_python, of_numpy = state["python"], state["numpy"]
        python = (of_python["version"], tuple(_words(of_python["words"]).tolist()), _real(of_python["gauss"]))
        position, has_gauss = (int(of_numpy[name]) for name in ("position", "has_gauss"))
        if not (0 <= position <= 624 and has_gauss in (0, 1)):  # NumPy does not check
            raise ValueError(f"NumPy's generator is at {position} of 624")
        numpy = ("MT19937", _words(of_numpy["words"]), position, has_gauss, float(of_numpy["gauss"]))
        cpu, cuda = _bytes(state["torch"]), [_bytes(each) for each in state["cuda"]]
        # throw-away generators check the states before the global ones take them
        random.Random().setstate(python)
        np.random.RandomState().set_state(numpy)
        torch.Generator().set_state(cpu)
        has_devices = torch.cuda.is_available() and len(cuda) == torch.cuda.device_count()
        for number, each in enumerate(cuda if has_devices else []):
            torch.Generator(f"cuda:{number}").set_state(each)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"it is no state of the random generators here ({type(error).__name__})") from error
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)
    if has_devices:
        torch.cuda.set_rng_state_all(cuda)


def _hex(words: np.ndarray) -> str:
    return words.astype("<u4").tobytes().hex()


def _words(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<u4").astype(np.uint32)


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _real(value: Any) -> float | None:
    return None if value is None else float(value)
