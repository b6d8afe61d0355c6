"""Settings of perceptron kernels that are small enough for their definition."""

from typing import Any


def small_perceptron(**options: Any) -> dict[str, Any]:
    """Options completed by few units and few, low frequencies; no frequencies where no input uses them."""
    settings = {"width": 5, "num_frequencies": 3, "sigma": 1.0} | options
    inputs = settings.get("inputs")
    if inputs is not None and not inputs.has_frequencies:
        return {name: value for name, value in settings.items() if name not in ("num_frequencies", "sigma")}
    if settings["num_frequencies"] == 0:
        del settings["sigma"]
    return settings
