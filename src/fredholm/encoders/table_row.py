"""Rows of a table as signals with a point for each column."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, refuse_idle
from fredholm.domains import Domain, Points
from fredholm.domains.checks import values_are_at_hand, values_can_be_read
from fredholm.domains.domain import check_tensor
from fredholm.encoders.encoder import Encoder, check_dtype
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies


@final
class TableRowBatch(NamedTuple):
    """Rows of one batch; at least one of `numbers` and `categories` is given.

    `numbers (B, F)` are floats of mean 0 and deviation 1, about, over the training rows; NaN where one is missing.
    `categories (B, C)`, int64, counts from 0 within each column; -1 where one is missing.
    """

    numbers: Tensor | None = None
    categories: Tensor | None = None


@final
class TableRow(Encoder):
    """A point for each column: u_j = V_j γ(v_j) + w_j v_j + b_j of a number v_j, and E_j[c_j] of a category c_j.

    γ are Fourier features of the number, which make the map nonlinear. Columns have no positions: all points lie at the
    origin, and are distinguished by their signals. A missing value is a point that does not exist.

    Source: Gorishniy et al. (arXiv 2106.11959), the feature tokenizer, and (arXiv 2203.05556) for periodic features of
    numbers. Deviations: frequencies are frozen and shared by all columns; missing values are left out.

    Args:
        num_numbers: F, columns of numbers; 0: none.
        num_categories: number of categories of each categorical column; (): no such columns.
        embed_dim: channels of the signal.
        num_frequencies: L, number of frequencies of γ; 0: maps of the numbers are linear.
        sigma: their standard deviation, in cycles per deviation of the numbers; refused without frequencies.

    Raises:
        ValueError: no columns, sizes below 1, or settings without effect.
    """

    def __init__(
        self,
        num_numbers: int,
        num_categories: Sequence[int],
        embed_dim: int,
        *,
        num_frequencies: int = 8,
        sigma: float = 0.3,
    ) -> None:
        super().__init__()
        name = "encoders.TableRow"
        check_count(name, "num_numbers", num_numbers, least=0)
        check_count(name, "embed_dim", embed_dim)
        check_count(name, "num_frequencies", num_frequencies, least=0)
        check_positive(name, "sigma", sigma)
        for column, count in enumerate(num_categories):
            check_count(name, f"num_categories[{column}]", count)
        if not num_numbers and not num_categories:
            raise ValueError(f"{name}: num_numbers is 0 and num_categories is empty; a row needs columns")
        if num_numbers == 0:
            refuse_idle(name, TableRow, "num_numbers=0", "give numbers", num_frequencies=num_frequencies, sigma=sigma)
        elif num_frequencies == 0:
            refuse_idle(name, TableRow, "num_frequencies=0", "give num_frequencies", sigma=sigma)
        self.num_numbers, self.num_categories = num_numbers, tuple(num_categories)
        self.embed_dim, self.pos_dim = embed_dim, 1
        self.register_buffer("frequencies", sample_frequencies(num_frequencies, 1, sigma) if num_numbers else None)
        self.frequencies: Tensor | None
        self.number_weight = self.number_bias = self.category_weight = None
        if num_numbers:
            # the squared norm of a number's features is about 1 + L
            scale = (1 + num_frequencies) ** -0.5
            self.number_weight = nn.Parameter(scale * torch.randn(num_numbers, 1 + 2 * num_frequencies, embed_dim))
            self.number_bias = nn.Parameter(torch.randn(num_numbers, embed_dim))
        if self.num_categories:
            self.category_weight = nn.Parameter(torch.randn(sum(self.num_categories), embed_dim))

    def forward(self, inputs: TableRowBatch) -> tuple[Tensor, Domain]:
        """A batch to the signal `(B, F + C, embed_dim)`, numbers first, and its points; 0 at those that do not exist.

        Raises:
            TypeError: inputs that are no batch.
            ValueError: other columns or dtypes, infinite numbers, or on a CPU a category out of range.
        """
        if not isinstance(inputs, TableRowBatch):
            raise TypeError(f"encoders.TableRow: expected a TableRowBatch; got {type(inputs).__name__}")
        numbers, categories = inputs
        parts = [*self._numbers(numbers), *self._categories(categories)]
        if parts[0][0].shape[0] != parts[-1][0].shape[0]:
            counts = " and ".join(str(u.shape[0]) for u, _ in parts)
            raise ValueError(f"encoders.TableRow: numbers and categories are of {counts} rows; give both of the same")
        u, exists = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
        place = torch.zeros(u.shape[1], 1, dtype=torch.float64, device=u.device)
        return torch.where(exists[..., None], u, 0.0), Points(place, mask=exists)

    def _numbers(self, numbers: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Signal and mask of the numbers; empty where the encoder has no numeric columns."""
        _check_columns("numbers", numbers, self.num_numbers)
        if numbers is None or self.number_weight is None or self.number_bias is None or self.frequencies is None:
            return []
        if not numbers.dtype.is_floating_point:
            raise ValueError(f"encoders.TableRow: numbers must be floats; got {numbers.dtype}")
        if values_can_be_read(numbers) and bool(numbers.isinf().any()):
            raise ValueError("encoders.TableRow: numbers hold infinite values; put NaN where one is missing")
        check_dtype("encoders.TableRow", "numbers", numbers, self.number_weight)
        exists = ~numbers.isnan()
        values = torch.where(exists, numbers, 0.0)[..., None]
        features = torch.cat([values, fourier_features(values, self.frequencies).to(values.dtype)], dim=-1)
        return [(torch.einsum("bfl,fle->bfe", features, self.number_weight) + self.number_bias, exists)]

    def _categories(self, categories: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Signal and mask of the categories; empty where the encoder has no categorical columns."""
        _check_columns("categories", categories, len(self.num_categories))
        if categories is None or self.category_weight is None:
            return []
        if categories.dtype != torch.int64:
            raise ValueError(f"encoders.TableRow: categories must be int64; got {categories.dtype}")
        counts = torch.tensor(self.num_categories, device=categories.device)
        if values_are_at_hand(categories) and bool(((categories < -1) | (categories >= counts)).any()):
            raise ValueError(
                f"encoders.TableRow: the columns have {', '.join(map(str, self.num_categories))} categories, counted "
                f"from 0, and -1 is a missing one; got {int(categories.min())} to {int(categories.max())}"
            )
        rows = categories.clamp_min(0) + counts.cumsum(0) - counts
        return [(nn.functional.embedding(rows, self.category_weight), categories >= 0)]


def _check_columns(what: str, given: Tensor | None, count: int) -> None:
    """Raises ValueError unless the input has exactly the encoder's columns."""
    if given is None and not count:
        return
    if given is not None:
        check_tensor("encoders.TableRow", what, given)
    if given is None or given.ndim != 2 or given.shape[1] != count:
        got = "none" if given is None else str(tuple(given.shape))
        expected = f"{what} of shape (rows, {count})" if count else f"no {what}"
        raise ValueError(f"encoders.TableRow: expected {expected}; got {got}")
