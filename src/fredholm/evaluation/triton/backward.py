"""The gradients of one integral, from kernels that each own what they sum. Legend: `launch.py`."""

from typing import Any, final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.tiles import PairInputs
from fredholm.evaluation.triton.owned import Owned
from fredholm.evaluation.triton.problem import Problem, padded
from fredholm.evaluation.triton.table_gradient import gather_table_kernel, relative_gradient_kernel
from fredholm.evaluation.triton.tiles import Tile, choose_tile, launch


@final
class Gradients:
    """Sums the gradients of all tensors in float32; those of phases and positions are 0 where they are not `wanted`."""

    def __init__(self, problem: Problem, grad: Tensor, wanted: frozenset[str]) -> None:
        self.problem, self.t, self.wanted = problem, problem.t, wanted
        self.grad = grad.contiguous()
        device = grad.device
        zeros = (torch.zeros(t.shape, dtype=torch.float32, device=device) for t in self.t[:-1])
        self.sums: Any = PairInputs._make([*zeros, self.t.seen])

    def run(self) -> dict[str, Tensor]:
        """All gradients."""
        self._of_queries()
        self._of_keys()
        if self.problem.block.size:
            self._of_table()
        return self.sums._asdict()

    def _of_queries(self) -> None:
        """What queries own: themselves, the weights of P, of the rotation and of the distance."""
        problem, t, sums = self.problem, self.t, self.sums
        grads = problem.by_kernel(self.grad)  # (G, B·Nq, d_out)
        last = t.output_weight.flatten(1, 2)
        owned = Owned(problem, self.wanted, own_queries=True)
        for first, count in owned.chunks():
            grad_sums = torch.bmm(grads[:, first : first + count], last.mT)
            for name, partial in owned.launch(first, count, grad_sums, problem.values).items():
                getattr(sums, name).add_(partial.sum(1).view_as(getattr(sums, name)))
        owned.add_to(sums)

    def _of_keys(self) -> None:
        """What keys own: themselves, their weights in the measure, and the last layer, by way of T."""
        problem, t, sums = self.problem, self.t, self.sums
        values = problem.by_kernel(problem.values)  # (G, B·N, d)
        width, out_dim = problem.width, problem.out_dim
        last = t.output_weight  # (G, w, d, d_out)
        grad_values = torch.empty_like(values)
        owned = Owned(problem, self.wanted, own_queries=False)
        for first, count in owned.chunks():
            here = values[:, first : first + count]
            grads = torch.bmm(here, last.transpose(1, 2).flatten(2))
            turned = torch.empty_like(grads)  # T, (G, count, w·d_out)
            owned.launch(first, count, grads, self.grad, turned)
            grad_values[:, first : first + count] = torch.bmm(turned, last.transpose(2, 3).flatten(1, 2))
            grad_last = torch.bmm(here.mT, turned).unflatten(-1, (width, out_dim))
            sums.output_weight.add_(grad_last.transpose(1, 2))
        owned.add_to(sums)
        by_batch = problem.by_batch(grad_values, problem.num_keys).float()
        sums.key.add_(by_batch * t.weights[:, None, :, None])
        sums.weights.add_((by_batch * t.key).sum((1, 3)).sum_to_size(t.weights.shape))

    def _of_table(self) -> None:
        """The gradient of R, for as many queries at a time as the workspace holds, gathered by displacement."""
        problem, t, size = self.problem, self.t, self.problem.block.size
        kernels, batch, width, dim = problem.kernels, problem.batch, problem.width, problem.dim
        start = problem.block.query_start
        grads = self.grad[:, :, start : start + size].permute(1, 2, 0, 3)  # (G, block, B, d_out)
        last = t.output_weight.flatten(1, 2)
        total = torch.zeros(problem.table.shape, dtype=torch.float32, device=self.grad.device)
        # the first layer's weights stay in registers, for another A at each batch entry
        tile = choose_tile(width, 4 * padded(dim), 2 * padded(dim), t.query.dtype)
        step = problem.owners_at_once(kernels * width * (batch * dim * t.query.element_size() + 4 * size))
        by_entry = Tile(tile.units, 16, 4, 1)
        shared = {**problem.shared, **problem.content(own_queries=True), "value": problem.values, "batch": batch}
        gather = {"entry": problem.entry, "cell": problem.cell, "grad_table": total, "block": size, "WIDTH": width}
        entries = gather["entries"] = problem.table.shape[1]
        for first in range(0, size, step):
            count = min(step, size - first)
            grad_sums = torch.bmm(grads[:, first : first + count].flatten(1, 2), last.mT)
            relative = torch.empty(kernels, count, size, width, dtype=torch.float32, device=self.grad.device)
            chunk = {"relative": relative, "first": first, "count": count}
            grid = (count * -(-size // tile.points), tile.blocks(width), kernels)
            launch(relative_gradient_kernel, grid, tile, {**shared, **chunk, "grads": grad_sums})
            grid = (-(-entries // by_entry.points), tile.blocks(width), kernels)
            launch(gather_table_kernel, grid, by_entry, {**gather, **chunk})
        self.sums.table.copy_(total.mT.view_as(self.sums.table))
