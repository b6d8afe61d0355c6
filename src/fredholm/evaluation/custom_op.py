"""Operators that are opaque to the compiler, with derivatives and `vmap`.

PyTorch gives such an operator a gradient outside of `torch.func` only, and silently drops its forward-mode tangents.
Here every operator has a rule for each transform, or an error with the remedy:

    reverse mode          its backward
    forward mode          its plain form, on the tensors with their tangents
    `torch.func.vmap`     one entry after the other

The plain form is the same function in PyTorch's differentiable operations. A gradient is an operator of its own:
second derivatives are first derivatives of its plain form. An exported graph contains the plain form instead.
"""

import abc
import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, final

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from fredholm._precision import without_autocast

_LIBRARY = torch.library.Library("fredholm", "FRAGMENT")
_DEVICES = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
_FORWARD = "forward-mode derivative (jvp, jacfwd, hessian, linearize, forward_ad)"
_SECOND = "second derivative (create_graph=True, hessian, a gradient of a gradient)"

DENSE = "the operations of IntegralOperator(kernel, evaluation=Dense()) have all derivatives, for few points"
"""Remedy where the operator of a route lacks a derivative."""

In = TypeVar("In", bound=NamedTuple)
Out = TypeVar("Out", bound=NamedTuple)
Options = ParamSpec("Options")
Given = Sequence[Tensor | None]


_COUNTED: "list[_Opaque]" = []


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Flop formulas of the library's own operators, as `custom_mapping` of torch's `FlopCounterMode`.

    Without them it does not count sums over pairs, features and recurrences. On tensors without values causal sums
    count every pair, and iterations one cycle. Triton's fused kernels are left out: on the meta device other routes are
    taken.
    """
    # not at the top of the file: it imports Triton
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    # torch itself does not count in-place products
    formulas = {aten.addmm_: flop_registry[aten.addmm], aten.baddbmm_: flop_registry[aten.baddbmm]}
    formulas |= {opaque.op._overloadpacket: opaque.flops for opaque in _COUNTED}
    return {packet: _of_tensors(formula) for packet, formula in formulas.items()}


def _of_tensors(formula: Callable[..., int]) -> Callable[..., int]:
    """A formula that gets tensors, because their dtypes matter, instead of shapes."""

    def of_tensors(*args: Any, **kwargs: Any) -> int:
        return formula(*args, **kwargs)

    vars(of_tensors)["_get_raw"] = True  # the attribute that `torch.utils.flop_counter.register_flop_formula` sets
    return of_tensors


@final
class Operator(Generic[In, Out, Options]):
    """A function of tensors by name and options, opaque to the compiler, with a gradient and a rule for each transform.

    The operators are `torch.ops.fredholm.NAME` and `NAME_backward`, whose tensors are passed and returned as one list.
    Autocast is off in all functions given here.

    Args:
        name: of the operator.
        inputs, outputs: the classes of its tensors, None where one is absent. No output is bool.
        forward: the outputs, from the inputs and the options; these are numbers, strings, dtypes or lists of numbers,
            as annotated.
        like: uninitialised outputs, with their shapes, strides and dtypes.
        backward: gradients by the names of inputs, from `(inputs, outputs, grads, wanted, *options)`. They are
            converted to the dtypes and shapes of the inputs. `wanted` has the requested names; missing ones are 0.
        results: the outputs that have a gradient; None: all. `grads` of the others are None.
        keeps: the outputs that the backward reads; the others are None there.
        forgets: the inputs of which the backward reads only shape and dtype; they are not kept for it.
        plain: the results in differentiable operations; None: there is no derivative but `backward`.
        plain_backward: `backward` in differentiable operations; None: the gradient of `plain`, which needs all inputs.
        instead: the remedy that the error for a missing derivative names.
        is_counted: whether `flop_formulas` counts its functions, which then run on tensors without values too.
    """

    def __init__(
        self,
        name: str,
        inputs: type[In],
        outputs: type[Out],
        forward: Callable[Concatenate[In, Options], Out],
        like: Callable[..., Out],
        backward: Callable[..., dict[str, Tensor]],
        *,
        results: Sequence[str] | None = None,
        keeps: Sequence[str] = (),
        forgets: Sequence[str] = (),
        plain: Callable[..., Sequence[Tensor]] | None = None,
        plain_backward: Callable[..., dict[str, Tensor]] | None = None,
        instead: str = DENSE,
        is_counted: bool = True,
    ) -> None:
        self.name, self.inputs, self.outputs, self.instead = f"fredholm::{name}", inputs, outputs, instead
        self.forward, self.like, self.backward = forward, like, backward
        self.plain, self.plain_backward = plain, plain_backward
        fields = outputs._fields
        self.results = list(range(len(fields))) if results is None else [fields.index(name) for name in results]
        self.keeps = [fields.index(name) for name in keeps]
        self.forgets = [inputs._fields.index(name) for name in forgets]
        self._backward = _Backward(self)
        self._forward = _Forward(self, self._backward)
        if is_counted:
            _COUNTED.extend((self._forward, self._backward))

    def __call__(self, inputs: In, *options: Options.args, **named: Options.kwargs) -> Out:
        """The outputs; in an exported graph, where the library may be missing, the results in plain form."""
        if self.plain is not None and torch.compiler.is_exporting():
            with without_autocast(_first(inputs)):
                found = self.plain(inputs, *options, **named)
            by_place = dict(zip(self.results, found, strict=True))
            return self.outputs._make(by_place.get(i) for i in range(len(self.outputs._fields)))
        return self.outputs._make(map(_arrived, self._forward.op(list(inputs), *options, **named)))


class _Opaque(abc.ABC):
    """An operator of one list of tensors and options, with its rules at each level of transforms."""

    def __init__(self, operator: "Operator[Any, Any, ...]", name: str, *own: inspect.Parameter) -> None:
        def body(tensors: Given, *options: Any) -> list[Tensor]:
            kind = _first(tensors).device.type
            if not torch.is_autocast_enabled(kind):
                return _apart(self.run(tensors, *options), tensors)
            # not `torch.autocast`, which takes as long as a small kernel
            torch.set_autocast_enabled(kind, False)
            try:
                return _apart(self.run(tensors, *options), tensors)
            finally:
                torch.set_autocast_enabled(kind, True)

        self.operator, self.node = operator, type(name.removeprefix("fredholm::"), (_Node,), {})
        options = list(inspect.signature(operator.forward, eval_str=True).parameters.values())[1:]
        parameters = [_parameter("tensors", list[Tensor | None]), *own, *options]
        body.__signature__ = inspect.Signature(parameters, return_annotation=list[Tensor])
        # not `torch.library.custom_op`, whose checks at every call take longer than a small kernel
        short, schema = name.removeprefix("fredholm::"), torch.library.infer_schema(body, mutates_args=())
        _LIBRARY.define(f"{short}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(short, body, "CompositeExplicitAutograd")
        _LIBRARY.impl(short, self._at_this_level, "Autograd", with_keyset=True)
        torch.library.register_fake(name, self.fake, lib=_LIBRARY)
        torch.library.register_vmap(name, self._one_by_one, lib=_LIBRARY)
        self.body, self.op = body, getattr(torch.ops.fredholm, short).default

    @abc.abstractmethod
    def run(self, tensors: Given, *options: Any) -> list[Tensor]:
        """The results."""

    @abc.abstractmethod
    def fake(self, tensors: Given, *options: Any) -> list[Tensor]:
        """Uninitialised results."""

    @abc.abstractmethod
    def plain(self, what: str, tensors: Given, *options: Any) -> list[Tensor]:
        """The results in differentiable operations; without a plain form, an error that names the missing `what`."""

    @abc.abstractmethod
    def save(self, ctx: Any, tensors: Given, results: list[Tensor]) -> None:
        """Saves the tensors for `derive` in the graph."""

    @abc.abstractmethod
    def derive(self, ctx: Any, grads: Given) -> Given:
        """The gradients of the tensors from those of the results."""

    def plainly(self, what: str, tensors: Given, *options: Any) -> list[Tensor]:
        """See `plain`."""
        with without_autocast(_first(tensors)):
            return self.plain(what, tensors, *options)

    def lacks(self, what: str) -> NotImplementedError:
        """The error for a missing derivative."""
        return NotImplementedError(f"{self.operator.name} has no {what}: {self.operator.instead}")

    def flops(self, tensors: Given, *options: Any, out_val: object) -> int:
        """Number of flops, with the signature of a formula of `torch.utils.flop_counter`."""
        from torch.utils.flop_counter import FlopCounterMode  # not at the top of the file: it imports Triton

        with FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
            self.run(tensors, *options)
        return counter.get_total_flops()

    def below(self, keyset: Any, tensors: Given, options: Sequence[Any]) -> list[Tensor]:
        """The results, without gradients at this level."""
        lower = keyset & torch._C._after_ADInplaceOrView_keyset
        with torch._C._AutoDispatchBelowAutograd():
            # without transforms and tracers the dispatcher would only cost time
            if lower.highestPriorityTypeId() in _DEVICES:
                return self.body(tensors, *options)
            return self.op.redispatch(lower, tensors, *options)

    def _at_this_level(self, keyset: Any, tensors: Given, *options: Any) -> list[Tensor]:
        has_levels = forward_ad._current_level >= 0
        if has_levels and any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
            return self.plainly(_FORWARD, tensors, *options)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            with _this_level():
                # `Function.apply` itself would restart at the outermost transform
                apply = super(torch.autograd.Function, self.node).apply  # pyright: ignore[reportAttributeAccessIssue]
                return list(apply(self, keyset, options, *tensors))
        return self.below(keyset, tensors, options)

    def _one_by_one(self, info: Any, in_dims: Any, tensors: Given, *options: Any) -> tuple[list[Tensor], int]:
        if info.batch_size == 0:
            raise ValueError(f"{self.operator.name}: vmap needs at least one entry to find out the shape of the result")
        pairs = list(zip(tensors, in_dims[0], strict=True))
        made = [
            self.op([t if t is None or dim is None else t.select(dim, i) for t, dim in pairs], *options)
            for i in range(info.batch_size)
        ]
        return [torch.stack(parts) for parts in zip(*made, strict=True)], 0


@final
class _Forward(_Opaque):
    """The operator itself."""

    def __init__(self, operator: "Operator[Any, Any, ...]", backward: "_Backward") -> None:
        super().__init__(operator, operator.name)
        self.backward = backward

    def run(self, tensors: Given, *options: Any) -> list[Tensor]:
        """The outputs."""
        return _travelling(self.operator.forward(self.operator.inputs(*tensors), *options), tensors)

    def fake(self, tensors: Given, *options: Any) -> list[Tensor]:
        """Uninitialised outputs."""
        return _travelling(self.operator.like(self.operator.inputs(*tensors), *options), tensors)

    def plain(self, what: str, tensors: Given, *options: Any) -> list[Tensor]:
        """The outputs in differentiable operations; outputs without a gradient are 0."""
        if self.operator.plain is None:
            raise self.lacks(what)
        found = self.operator.plain(self.operator.inputs(*tensors), *options)
        if len(found) == len(self.operator.outputs._fields):
            return list(found)
        by_place = dict(zip(self.operator.results, found, strict=True))
        like = enumerate(self.fake(tensors, *options))
        return [by_place[i] if i in by_place else torch.zeros_like(t) for i, t in like]

    def save(self, ctx: Any, tensors: Given, results: list[Tensor]) -> None:
        """Saves inputs and outputs, or their shapes."""
        own = self.operator
        inputs = [_shape(t) if i in own.forgets else t for i, t in enumerate(tensors)]
        # some of several results may have no gradient
        shapes = own.results if len(own.results) > 1 else ()
        arrived = enumerate(map(_arrived, results))
        outputs = [t if i in own.keeps else _shape(t) if i in shapes else None for i, t in arrived]
        ctx.save_for_backward(*inputs, *outputs)
        ctx.mark_non_differentiable(*(t for i, t in enumerate(results) if i not in own.results))

    def derive(self, ctx: Any, grads: Given) -> Given:
        """The gradients of the inputs."""
        wanted, own = ctx.needs_input_grad[_FIXED:], self.operator
        if all(grad is None for grad in grads):
            return [None] * len(wanted)
        saved = ctx.saved_tensors  # read once: activation checkpointing does not allow a second read
        inputs, outputs = saved[: len(wanted)], saved[len(wanted) :]
        kept = [t if i in own.keeps else None for i, t in enumerate(outputs)]
        given = [
            _received(grad, t) if i in own.results else None
            for i, (grad, t) in enumerate(zip(grads, outputs, strict=True))
        ]
        found = iter(self.backward.op([*inputs, *kept, *given], list(wanted), *ctx.options))
        return [next(found) if want else None for want in wanted]


@final
class _Backward(_Opaque):
    """The operator of the wanted gradients, from the inputs, the outputs and their gradients."""

    def __init__(self, operator: "Operator[Any, Any, ...]") -> None:
        super().__init__(operator, f"{operator.name}_backward", _parameter("wanted", list[bool]))

    def run(self, tensors: Given, *options: Any) -> list[Tensor]:
        """The gradients."""
        return self._found(self.operator.backward, tensors, *options)

    def fake(self, tensors: Given, *options: Any) -> list[Tensor]:
        """Uninitialised gradients."""
        return [t.new_empty(t.shape) for t, want in zip(tensors, options[0], strict=False) if want and t is not None]

    def plain(self, what: str, tensors: Given, *options: Any) -> list[Tensor]:
        """The gradients in differentiable operations."""
        own = self.operator
        if own.plain_backward is not None:
            return self._found(own.plain_backward, tensors, *options)
        plain = own.plain
        if plain is None or own.forgets:
            raise self.lacks(what)

        wanted, *others = options
        inputs, grads = tensors[: len(wanted)], tensors[-len(own.outputs._fields) :]
        found = _pulled_back(
            lambda moved: plain(own.inputs(*moved), *others), [grads[i] for i in own.results], inputs, wanted
        )
        pairs = zip(inputs, found, wanted, strict=True)
        return [torch.zeros_like(t) if g is None else g for t, g, want in pairs if want and t is not None]

    def save(self, ctx: Any, tensors: Given, results: list[Tensor]) -> None:
        """Saves all tensors."""
        ctx.save_for_backward(*tensors)

    def derive(self, ctx: Any, grads: Given) -> Given:
        """The gradients of all tensors, from those of the plain form."""
        return _pulled_back(
            lambda tensors: self.plainly(_SECOND, tensors, *ctx.options),
            grads,
            ctx.saved_tensors,
            ctx.needs_input_grad[_FIXED:],
            create_graph=torch.is_grad_enabled(),
        )

    def _found(self, backward: Callable[..., dict[str, Tensor]], tensors: Given, *options: Any) -> list[Tensor]:
        """The results of one of the operator's two backward functions, as a list."""
        own, (wanted, *others) = self.operator, options
        ends = len(wanted), len(wanted) + len(own.outputs._fields)
        inputs = own.inputs(*tensors[: ends[0]])
        names = frozenset(name for name, want in zip(own.inputs._fields, wanted, strict=True) if want)
        outputs, grads = own.outputs(*tensors[ends[0] : ends[1]]), own.outputs(*tensors[ends[1] :])
        found = backward(inputs, outputs, grads, names, *others)
        return [_fitted(found.get(name), getattr(inputs, name)) for name in own.inputs._fields if name in names]


class _Node(torch.autograd.Function):
    """An operator in the graph of one level; each derived class has the operator's name."""

    @staticmethod
    def forward(ctx: Any, opaque: _Opaque, keyset: Any, options: Sequence[Any], *tensors: Tensor | None) -> Any:
        """The results."""
        with _levels_below():
            results = opaque.below(keyset, tensors, options)
        ctx.opaque, ctx.options = opaque, options
        # else zeros would be made for missing gradients
        ctx.set_materialize_grads(False)
        opaque.save(ctx, tensors, results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """The gradients of the tensors, and None for the arguments before them."""
        return *[None] * _FIXED, *ctx.opaque.derive(ctx, grads)


_FIXED = 3
"""Number of arguments of a node before the tensors."""


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def _travelling(outputs: Given, tensors: Given) -> list[Tensor]:
    """Outputs as an operator returns them: None is not allowed, so an absent output is an empty bool tensor."""
    some = next(t for t in tensors if t is not None)
    return [some.new_empty(0, dtype=torch.bool) if t is None else t for t in outputs]


def _arrived(output: Tensor) -> Tensor | None:
    return None if output.dtype == torch.bool else output


def _shape(t: Tensor | None) -> Tensor | None:
    """A tensor of the same shape and dtype in the memory of one entry."""
    return None if t is None else t.new_empty_strided(t.shape, (0,) * t.ndim)


def _received(grad: Tensor | None, output: Tensor | None) -> Tensor | None:
    """The gradient of an output, 0 where it is None; None for an absent output."""
    if grad is None:
        return None if output is None else output.new_zeros(output.shape)
    return grad.contiguous()


def _fitted(grad: Tensor | None, t: Tensor) -> Tensor:
    """The gradient of a tensor, in its dtype and shape."""
    if grad is None or t.numel() == 0:
        return t.new_zeros(t.shape)
    # skips operations without effect, which makes small calls faster
    grad = grad if grad.dtype == t.dtype else grad.to(t.dtype)
    return grad.contiguous() if grad.shape == t.shape else grad.contiguous().view(t.shape)


def _first(tensors: Given) -> Tensor:
    """The first tensor that is not None."""
    return next(t for t in tensors if t is not None)


def _apart(results: list[Tensor], tensors: Given) -> list[Tensor]:
    """The results, each in memory of its own without gaps."""
    taken = {t.untyped_storage().data_ptr() for t in tensors if t is not None}
    apart = []
    for result in results:
        memory = result.untyped_storage()
        alone = memory.data_ptr() not in taken and memory.nbytes() == result.nbytes
        apart.append(result if alone else result.clone())
        taken.add(memory.data_ptr())
    return apart


def _pulled_back(
    plain: Callable[[list[Any]], Sequence[Tensor]],
    grads: Given,
    tensors: Given,
    wanted: Sequence[bool],
    *,
    create_graph: bool = True,
) -> list[Tensor | None]:
    """The gradients of the wanted tensors from those of `plain(tensors)`; None for others and for missing gradients.

    Does not check `requires_grad`, which is no longer visible for a finished transform.
    """
    with torch.enable_grad():
        # zeros are added as leaves, so that a tensor keeps its history or tangent
        leaves = [
            torch.zeros_like(t, requires_grad=True)
            if t is not None and want and (t.is_floating_point() or t.is_complex())
            else None
            for t, want in zip(tensors, wanted, strict=True)
        ]
        results = plain([t if t is None or leaf is None else t + leaf for t, leaf in zip(tensors, leaves, strict=True)])
    pairs = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
    if not pairs:
        return [None] * len(tensors)
    ends, given = zip(*pairs, strict=True)
    starts = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(ends, starts, given, create_graph=create_graph, allow_unused=True))
    return [None if leaf is None else next(found) for leaf in leaves]


def _this_level() -> contextlib.AbstractContextManager[Any]:
    """Context that allows a node for a single transform."""
    has_transforms = torch._C._are_functorch_transforms_active()
    return enable_single_level_autograd_function() if has_transforms else contextlib.nullcontext()


@contextlib.contextmanager
def _levels_below() -> Iterator[None]:
    """Context that enables gradients of outer transforms, which a node's forward pass disables."""
    if torch._C._are_functorch_transforms_active():
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            yield
    else:
        yield
