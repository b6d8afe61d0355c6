"""How many samples a season has, where no calendar tells it.

Legend
    d_t      first differences of a series, standardised;  r_k = Σ_t d_t d_{t+k} / Σ_t d_t², its autocorrelation
    season   the k from 2 to a third of the series with the largest r_k that is above LEAST and above its neighbours

Differences forget a trend. The average over series and channels of r_k is taken, each with all its samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST = 0.3


def season_of(series: Sequence[Tensor]) -> int:
    """The season of some series `(T, C)` without gaps; 1 where there is none."""
    most = min(len(each) for each in series) // 3
    if most < 3:
        return 1
    found = torch.zeros(most + 2, dtype=torch.float64)
    count = 0
    for each in series:
        d = each.diff(dim=0)
        d = d - d.mean(0)
        power = d.square().sum(0)
        for c in power.nonzero()[:, 0].tolist():
            wide = torch.fft.rfft(d[:, c], n=2 * len(d))
            found += torch.fft.irfft(wide * wide.conj(), n=2 * len(d))[: most + 2] / power[c]
            count += 1
    if not count:
        return 1
    r = found / count
    peaks = [k for k in range(2, most + 1) if r[k] > LEAST and r[k] >= r[k - 1] and r[k] >= r[k + 1]]
    return max(peaks, key=lambda k: float(r[k]), default=1)
