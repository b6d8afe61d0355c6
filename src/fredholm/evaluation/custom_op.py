"""Derivatives and `vmap` of operators that the compiler does not look into.

PyTorch gives such an operator a gradient outside of `torch.func` only, and drops its forward-mode tangents without a
word. Here every operator has a rule for each transform, or an error that says what to do instead:

    reverse mode          its formula, or the gradient of its plain form
    forward mode          its plain form, on the tensors with their tangents
    `torch.func.vmap`     one entry after the other

The plain form is the same function, made of PyTorch's differentiable operations. A gradient is an operator of its own:
second derivatives are the first ones of its plain form.
"""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.custom_ops import CustomOpDef
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

_HOLE = object()
_FORWARD = "forward-mode derivative (jvp, jacfwd, hessian, linearize, forward_ad)"
_SECOND = "second derivative (create_graph=True, hessian, a gradient of a gradient)"

DENSE = "the operations of IntegralOperator(kernel, evaluation=Dense()) have all derivatives, for few points"
"""What to do where the operator of a route lacks a derivative."""


def differentiable(
    op: CustomOpDef,
    backward: Callable[..., Any] | None = None,
    *,
    setup_context: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
    plain: Callable[..., Any] | None = None,
    instead: str = DENSE,
) -> None:
    """Gives an operator its derivatives and `vmap`.

    Args:
        op: the operator; its arguments are tensors, lists of tensors, and options.
        backward, setup_context: its gradient, as `torch.library.register_autograd` takes it; None: that of `plain`.
        plain: the same function in differentiable operations; None: there is no derivative but `backward`.
        instead: what to do where a derivative is lacking, for the error.
    """
    rule = _Rule(op, backward, setup_context, plain, instead)
    with warnings.catch_warnings():
        # PyTorch's own rule came with the operator, and it tells of the first one that is replaced
        warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
        op._lib.impl(op._name, rule, "Autograd", with_keyset=True)
    op.register_vmap(_one_by_one(op))


def pullback(
    plain: Callable[[list[Tensor]], Sequence[Tensor]],
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    there: Sequence[bool] | None = None,
) -> list[Tensor]:
    """The gradients of all tensors from those of `plain(tensors)`, in differentiable operations.

    They are 0 for what is not differentiable, and empty where not `there`; None: all are there.
    """
    there = [True] * len(tensors) if there is None else there
    found = _pulled_back(plain, grads, tensors, there, create_graph=True)
    return [
        t.new_empty(0) if not kept else torch.zeros_like(t) if g is None else g
        for g, t, kept in zip(found, tensors, there, strict=True)
    ]


def _pulled_back(
    plain: Callable[[list[Tensor]], Sequence[Tensor]],
    grads: Sequence[Tensor | None],
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """The gradients of the wanted tensors from those of `plain(tensors)`; None for the others, and where there is none.

    Whether a tensor requires a gradient is not asked: that of a transform that is done is not seen any more.
    """
    with torch.enable_grad():
        # leaves are added, so that a tensor keeps what it brings along, history or tangent
        leaves = [
            torch.zeros_like(t, requires_grad=True) if want and (t.is_floating_point() or t.is_complex()) else None
            for t, want in zip(tensors, wanted, strict=True)
        ]
        results = plain([t if leaf is None else t + leaf for t, leaf in zip(tensors, leaves, strict=True)])
    pairs = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
    if not pairs:
        return [None] * len(tensors)
    ends, given = zip(*pairs, strict=True)
    starts = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(ends, starts, given, create_graph=create_graph, allow_unused=True))
    return [None if leaf is None else next(found) for leaf in leaves]


@final
class _Rule:
    """What an operator does where tensors may want gradients or have tangents, one level of transforms at a time."""

    def __init__(
        self,
        op: CustomOpDef,
        backward: Callable[..., Any] | None,
        setup_context: Callable[[Any, tuple[Any, ...], Any], None] | None,
        plain: Callable[..., Any] | None,
        instead: str,
    ) -> None:
        self.op, self.name = op._opoverload, op._qualname
        self.backward, self.setup_context, self.plain, self.instead = backward, setup_context, plain, instead
        self.node = type(op._name, (_Node,), {})

    def __call__(self, keyset: Any, *args: Any) -> Any:
        """The results of the operator."""
        tensors = list(_tensors(args))
        if any(unpack_dual(t).tangent is not None for t in tensors):
            return self.differentiated(_FORWARD, args)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            call = _Call(self, keyset, args)
            with _this_level():
                # `Function.apply` itself would begin anew, at the outermost transform
                found = super(torch.autograd.Function, self.node).apply(call, *tensors)  # pyright: ignore[reportAttributeAccessIssue]
            return _filled(call.results, found)[0]
        return self.below(keyset, args)

    def below(self, keyset: Any, args: Sequence[Any]) -> Any:
        """The results, without gradients at this level."""
        with torch._C._AutoDispatchBelowAutograd():
            return self.op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    def differentiated(self, what: str, args: Sequence[Any]) -> Any:
        """The results by the plain form; without one, an error that says which derivative is lacking."""
        if self.plain is None:
            raise NotImplementedError(f"{self.name.removesuffix('_backward')} has no {what}: {self.instead}")
        return self.plain(*args)


@final
class _Call:
    """One call: its rule, and its arguments and results with holes for the tensors, which the graph keeps."""

    def __init__(self, rule: _Rule, keyset: Any, args: Sequence[Any]) -> None:
        self.rule, self.keyset, self.args = rule, keyset, _emptied(args)
        self.results: list[Any] = []


class _Node(torch.autograd.Function):
    """An operator in the graph of one level; each class derived from it has the name of one."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the results."""
        args = _filled(call.args, tensors)
        with _levels_below():
            results = call.rule.below(call.keyset, args)
        ctx.call, call.results = call, _emptied([results])
        if call.rule.setup_context is None:
            ctx.save_for_backward(*tensors)
        else:
            call.rule.setup_context(ctx, tuple(args), results)
        return tuple(_tensors([results]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of the call, which has none, and of the tensors."""
        call: _Call = ctx.call
        if call.rule.backward is None:
            return None, *_pulled_back(
                lambda tensors: list(_tensors([call.rule.differentiated(_SECOND, _filled(call.args, tensors))])),
                grads,
                ctx.saved_tensors,
                ctx.needs_input_grad[1:],
                create_graph=torch.is_grad_enabled(),
            )
        flat, ctx.needs_input_grad = ctx.needs_input_grad, tuple(_filled(call.args, ctx.needs_input_grad[1:]))
        try:
            results = _filled(call.results, grads)[0]
            found = call.rule.backward(ctx, *(results if isinstance(results, tuple) else (results,)))
        finally:
            ctx.needs_input_grad = flat
        return None, *_by_tensor(call.args, found if isinstance(found, tuple) else (found,))


def _one_by_one(op: CustomOpDef) -> Callable[..., tuple[Any, int]]:
    """The rule for `vmap`, as `torch.library.register_vmap` takes it."""

    def run(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, int]:
        if info.batch_size == 0:
            raise ValueError(f"{op._qualname}: vmap needs at least one entry to find out the shape of the result")
        tensors, dims = list(_tensors(args)), _by_tensor(args, in_dims)
        each = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, dims, strict=True)
        ]
        made = [op(*_filled(args, entry)) for entry in zip(*each, strict=True)]
        stacked = [torch.stack(parts) for parts in zip(*(_tensors([results]) for results in made), strict=True)]
        return _filled(made[:1], stacked)[0], 0

    return run


@contextlib.contextmanager
def _this_level() -> Iterator[None]:
    """Under transforms, a node may be made for one of them."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            yield
    else:
        yield


@contextlib.contextmanager
def _levels_below() -> Iterator[None]:
    """Under transforms, those further out still want their gradients, which a node's forward pass turns off."""
    if torch._C._are_functorch_transforms_active():
        with torch.enable_grad(), _set_fwd_grad_enabled(True):
            yield
    else:
        yield


def _is_list(part: Any) -> bool:
    """Whether an argument or result is a list of tensors, or of holes for them."""
    return isinstance(part, (list, tuple)) and bool(part) and (part[0] is _HOLE or isinstance(part[0], Tensor))


def _tensors(parts: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments or results, those of a list one by one."""
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif _is_list(part):
            yield from part


def _emptied(parts: Iterable[Any]) -> list[Any]:
    """Arguments or results with holes for the tensors."""
    return _filled(parts, itertools.repeat(_HOLE))


def _filled(parts: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Arguments or results with other values for the tensors, or in the holes."""
    following = iter(values)
    return [
        next(following)
        if part is _HOLE or isinstance(part, Tensor)
        else type(part)(next(following) for _ in part)
        if _is_list(part)
        else part
        for part in parts
    ]


def _by_tensor(parts: Iterable[Any], given: Iterable[Any]) -> list[Any]:
    """What is given for arguments, tensor by tensor; None for a list is None for all its tensors."""
    flat: list[Any] = []
    for part, value in zip(parts, given, strict=True):
        if _is_list(part):
            flat.extend([None] * len(part) if value is None else value)
        elif part is _HOLE or isinstance(part, Tensor):
            flat.append(value)
    return flat
