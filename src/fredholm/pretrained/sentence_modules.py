"""The layout of `sentence-transformers`: a sequence of modules, a transformer first and a pooling among the rest."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from fredholm.pretrained.checkpoint import Fields

MODULES = "modules.json"
_POOLINGS: dict[str, Literal["first", "mean"]] = {"cls": "first", "mean": "mean"}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of older files, one per pooling mode, which `pooling_mode` replaced."""
_WITHOUT_EFFECT = ("Normalize",)
"""Modules that are ignored, as the new linear head can learn the scale of its inputs."""


@final
class SentenceModules(NamedTuple):
    """Files and folders of a checkpoint's modules.

    Args:
        source: modules.json; None without one, where the transformer is in the folder itself.
        transformer: the folder of the transformer.
        pooling: config.json of the pooling module; None without one.
        others: class names of the remaining modules.
    """

    source: Path | None
    transformer: Path
    pooling: Path | None
    others: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that determine the modules and the pooling."""
        return tuple(file for file in (self.source, self.pooling) if file is not None)

    def declared_pooling(self) -> Literal["first", "mean"] | None:
        """Pooling of the checkpoint: the class token, or the mean of all tokens; None if none is declared.

        Raises:
            ValueError, OSError: another pooling or module is declared.
        """
        remedy = "set model.pooling to start from the transformer alone"
        for name in self.others:
            if name not in _WITHOUT_EFFECT:
                raise ValueError(
                    f"{self.source}: the module {name!r} is not supported; supported after the transformer: Pooling, "
                    f"{', '.join(_WITHOUT_EFFECT)}: {remedy}"
                )
        if self.pooling is None:
            return None
        fields = Fields(_read(self.pooling, dict), str(self.pooling))
        given = fields.get("pooling_mode") or [mode for flag, mode in _FLAGS.items() if fields.flag(flag, False)]
        modes = [given] if isinstance(given, str) else given or ["mean"]
        if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in _POOLINGS:
            raise ValueError(
                f"{self.pooling}: the pooling {modes!r} is not supported; supported is one of {', '.join(_POOLINGS)}: "
                f"{remedy}"
            )
        return _POOLINGS[modes[0]]


def sentence_modules(folder: Path) -> SentenceModules:
    """Finds the modules of a checkpoint; without modules.json it is a transformer alone.

    Raises:
        ValueError, OSError: modules.json cannot be read, or names a path that is not a subfolder.
    """
    source = folder / MODULES
    if not source.is_file():
        return SentenceModules(None, folder, None, ())
    places: list[tuple[str, Path]] = []
    for module in _read(source, list):
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or Path(path).name != path:
            raise ValueError(
                f"{source} must list modules, each with a type and a path that is empty or a folder beside it; got "
                f"{module!r:.120}"
            )
        places.append((kind.rpartition(".")[2], folder / path))
    if not places:
        raise ValueError(f"{source} lists no modules; expected a transformer and a pooling")
    (_, transformer), *others = places
    pooling = next((place / "config.json" for kind, place in others if kind == "Pooling"), None)
    return SentenceModules(source, transformer, pooling, tuple(kind for kind, _ in others if kind != "Pooling"))


def _read(file: Path, kind: type[Any]) -> Any:
    """Reads a JSON file whose value must have the type `kind`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no {file}, which {MODULES} names; fetch it") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}); fetch it again") from error
    if not isinstance(found, kind):
        raise ValueError(f"{file} holds {type(found).__name__}; expected {kind.__name__}")
    return found
