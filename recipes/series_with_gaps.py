"""Compare the default of `fredholm train series` with gradient boosting on aggregates, on series with gaps.

Command:   python recipes/series_with_gaps.py
           fredholm train series ../shared/data/physionet2012
Modality:  series
Hardware:  one core of an AMD EPYC; float32
Time:      2 minutes
Score:     see docs/studies/series_with_gaps.md
Data:      PhysioNet challenge 2012, sets a and b, in ../shared/data/physionet2012

Gradient boosting is scikit-learn's HistGradientBoostingClassifier at its defaults, on nine aggregates of a channel:
mean, deviation, smallest, largest, first and last value, their count, their slope by least squares, and the time since
the last; missing where they are not defined. Neither side is random, so that one seed is enough. With `--folds 5` both
are compared by cross-validation on the training split alone.
"""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import tyro

from fredholm.models import SummaryBank
from fredholm.models.series.series_model import SeriesSampling
from fredholm.tasks import SeriesLearning
from fredholm.tasks.series import SeriesSet
from fredholm.tasks.series.batches import batch_of, series_of
from fredholm.tasks.series.series_learning import learn_facts
from fredholm.tasks.splits.stratified_split import stratified_folds
from fredholm.tasks.targets import TargetSettings
from fredholm.training.progress import print_line


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data, cross-validation, and the file of the results."""

    data: str = "../shared/data/physionet2012"
    folds: int = 0
    """Parts of the training split in cross-validation; 0: the test split is read."""
    degrees: tuple[int, ...] = (SummaryBank.Config().degree,)
    """Degrees of the summary bank's polynomials."""
    out: Path | None = None
    """File for the results."""


def aggregates(series: SeriesSet) -> np.ndarray:
    """Nine aggregates of each channel, `(n, 9 C)`, NaN where they are not defined."""
    rows = []
    for i, n in enumerate(series.lengths.tolist()):
        values = series.values[i, :n].double().numpy()
        times = np.arange(n) * series.spacing if series.times is None else series.times[i, :n].double().numpy()
        row: list[float] = []
        for column in values.T:
            seen = ~np.isnan(column)
            u, t = column[seen], times[seen]
            if not len(u):
                row += [np.nan] * 6 + [0, np.nan, np.nan]
                continue
            slope = np.polyfit(t, u, 1)[0] if len(u) > 1 else np.nan
            row += [u.mean(), u.std(), u.min(), u.max(), u[0], u[-1], len(u), slope, times[-1] - t[-1]]
        rows.append(row)
    return np.array(rows)


def bank_scores(train: SeriesSet, test: SeriesSet, degree: int) -> np.ndarray:
    """The probability of each class by a summary bank, `(n, classes)`."""
    facts = learn_facts(train, TargetSettings(), "the training part")
    sampling = SeriesSampling(
        channels=facts.preparation.num_channels,
        spacing=facts.spacing,
        extent=facts.extent,
        observation=facts.preparation.observation,
    )
    model = SummaryBank.Config(degree=degree).build(sampling, facts.target.num_outputs)
    assert train.answers is not None
    model.fit([(series_of(batch_of(train, facts.preparation)), train.answers.values)], facts.target)
    with torch.no_grad():
        return model(series_of(batch_of(test, facts.preparation))).softmax(-1).numpy()


def boosted_scores(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The probability of each class by gradient boosting, `(n, classes)`."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0).fit(features, labels).predict_proba(test)


def measures(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """AUROC, accuracy and balanced accuracies of scores of two classes."""
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    return {
        "auroc": float(roc_auc_score(labels, scores[:, 1])),
        "accuracy": float((scores.argmax(1) == labels).mean()),
        "balanced_accuracy": float(balanced_accuracy_score(labels, scores.argmax(1))),
        "balanced_accuracy_at_prior": float(balanced_accuracy_score(labels, scores[:, 1] > labels.mean())),
    }


def main(config: Config) -> None:
    """Prints a line per side and part, and the means over the parts."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Polyfit may be poorly conditioned")
    splits = SeriesLearning.Config(data=config.data).build().splits
    assert splits.test is not None
    train, test = splits.train.in_memory(), splits.test.in_memory()
    assert train.answers is not None
    if config.folds:
        whole = torch.arange(len(train))
        folds = [torch.tensor(f) for f in stratified_folds(train.names, train.answers.values.tolist(), config.folds, 0)]
        parts = [(train.select(whole[~torch.isin(whole, fold)]), train.select(fold)) for fold in folds]
    else:
        parts = [(train, test)]
    results: list[dict[str, Any]] = []
    for number, (learned, held_out) in enumerate(parts):
        assert learned.answers is not None
        assert held_out.answers is not None
        boosted = boosted_scores(aggregates(learned), learned.answers.values.numpy(), aggregates(held_out))
        found = {"gradient boosting": boosted}
        found |= {f"summary bank, degree {d}": bank_scores(learned, held_out, d) for d in config.degrees}
        for side, scores in found.items():
            results.append({"part": number, "side": side, **measures(scores, held_out.answers.values.numpy())})
            print_line(json.dumps(results[-1]))
    for side in dict.fromkeys(r["side"] for r in results):
        mean = np.mean([r["auroc"] for r in results if r["side"] == side])
        print_line(f"{side}: AUROC {mean:.4f}")
    if config.out is not None:
        config.out.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
