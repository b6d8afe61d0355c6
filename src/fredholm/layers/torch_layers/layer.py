"""Base class of operators in the calling convention of torch's layers: torch's names and the conversions."""

import abc
import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from fredholm._precision import autocast_dtype, product_dtype
from fredholm.evaluation import AUTO
from fredholm.kernels import Kernel
from fredholm.operators.integral import IntegralOperator

Native = TypeVar("Native", bound=nn.Module, covariant=True)
Own = TypeVar("Own", bound=Kernel)

CALL_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
COMPUTED = (
    "make it a parameter again with torch.nn.utils.remove_weight_norm, remove_spectral_norm or prune.remove, "
    "whichever made it"
)


@final
class LayoutConverter:
    """Converts parameters to another layout, each once for a whole model, so that layers keep sharing them."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[int, ...]], tuple[list[Parameter], list[Parameter]]] = {}
        self._used: dict[int, tuple[str, tuple[int, ...]]] = {}

    def __call__(
        self, layout: str, sources: list[Parameter], lay_out: Callable[..., tuple[Tensor, ...]]
    ) -> list[Parameter]:
        """Parameters with copies of `lay_out(*sources)`; the same objects for the same sources and layout.

        Args:
            layout: name of the layout, which is that of torch's parameter.
            sources: parameters to convert; attributes that all of them have are copied.
            lay_out: the conversion.

        Raises:
            ValueError: when the sources are trained or shared in part only, or their gradients have hooks.
        """
        key = (layout, tuple(map(id, sources)))
        if len(set(key[1])) < len(sources) or any(self._used.setdefault(one, key) != key for one in key[1]):
            raise ValueError(f"a part of {layout} is shared, but torch's layer can only share the whole; untie it")
        if key not in self._made:
            flags = {source.requires_grad for source in sources}
            if len(flags) > 1:
                raise ValueError(
                    f"the parts of {layout} are one parameter in torch, but differ in requires_grad; set it alike"
                )
            if any(map(has_gradient_hooks, sources)):
                raise ValueError(f"it has a hook on the gradient of {layout}, which is laid out otherwise; remove it")
            with torch.no_grad():
                made = [Parameter(part.clone(), requires_grad=flags == {True}) for part in lay_out(*sources)]
            first, *others = (vars(source) for source in sources)
            common = {name: value for name, value in first.items() if all(o.get(name) is value for o in others)}
            for part in made:
                vars(part).update(common)
            # keeps the sources alive, since an id is unique only while its object lives
            self._made[key] = (sources, made)
        return self._made[key][1]


def has_gradient_hooks(parameter: Parameter) -> bool:
    """Whether a parameter has hooks on its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


class TorchLayer(nn.Module, abc.ABC, Generic[Native]):
    """Integral operators with the calling convention and the attribute names of a torch layer.

    `layer.weight` is the kernel's parameter itself; assigning a parameter to that name replaces it in the kernel, as in
    weight tying. In `state_dict` each parameter has one name, its path here.

    Attributes:
        torch_names: the path here of each parameter, by its name in torch's layer.
        natives: the torch classes that it replaces.
        foreign: qualified names of the classes of other libraries that it replaces.
    """

    natives: ClassVar[tuple[type[nn.Module], ...]]
    foreign: ClassVar[tuple[str, ...]] = ()

    def __init__(self, torch_names: Mapping[str, str]) -> None:
        super().__init__()
        self.torch_names = dict(torch_names)

    @final
    def __getattr__(self, name: str) -> Any:
        path = self.__dict__.get("torch_names", {}).get(name)
        if path is None:
            return super().__getattr__(name)
        home, _, own = path.rpartition(".")
        return getattr(self.get_submodule(home), own)

    @final
    def __setattr__(self, name: str, value: Any) -> None:
        path = self.__dict__.get("torch_names", {}).get(name)
        if path is None:
            super().__setattr__(name, value)
        else:
            home, _, own = path.rpartition(".")
            setattr(self.get_submodule(home), own, value)

    @classmethod
    @final
    def from_torch(cls, module: nn.Module) -> Self:
        """The same layer as an operator, with copies of its parameters, and with its hooks.

        Returns:
            A layer with the module's values, dtypes, device, training mode and `requires_grad`.

        Raises:
            TypeError: for a module of another class, subclasses and parametrised ones included, or complex weights.
            ValueError: for options that no kernel has, and for changes or additions to the module that cannot be kept.
        """
        cls._check_kind(module)
        for inner in module.modules():
            if wrong := computed(inner):
                raise ValueError(f"{cls.__name__}.from_torch: {wrong}")
        return cls.taking(duplicate(module), LayoutConverter())

    @classmethod
    @final
    def taking(cls, module: nn.Module, relaid: LayoutConverter) -> Self:
        """`from_torch` with the module's own parameters where the layouts agree; do not use the module afterwards.

        Args:
            module: as in `from_torch`.
            relaid: converts the layout of the other parameters.
        """
        cls._check_kind(module)
        try:
            with torch.device("meta"):
                blank = cls._blank(module)
                layer = cls._shaped_like(blank)
            _check_unaltered(module, blank)
            layer._take(module, relaid)
            _carry(module, blank, layer)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}.from_torch: {error}") from None
        return layer.train(module.training)

    @final
    def to_torch(self) -> Native:
        """torch's own layer with copies of the parameters, and with the hooks.

        Raises:
            ValueError: for options that torch's layer lacks.
        """
        return duplicate(self).giving(LayoutConverter())

    @final
    def giving(self, relaid: LayoutConverter) -> Native:
        """`to_torch` with this layer's own parameters where the layouts agree; do not use this layer afterwards."""
        try:
            with torch.device("meta"):
                module = self._native()
                blank = self._shaped_like(module)
            _check_registered(self, blank)
            self._give(module, relaid)
            _carry(self, blank, module)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}.to_torch: {error}") from None
        return module.train(self.training)

    @classmethod
    @abc.abstractmethod
    def _blank(cls, module: nn.Module) -> nn.Module:
        """A fresh module of the same class with the same options. Raises ValueError for options that no kernel has."""

    @classmethod
    @abc.abstractmethod
    def _shaped_like(cls, blank: nn.Module) -> Self:
        """A layer with the options of a torch layer."""

    @abc.abstractmethod
    def _native(self) -> Native:
        """torch's layer with the options of this one. Raises ValueError where it lacks some."""

    def _take(self, module: nn.Module, relaid: LayoutConverter) -> None:
        """Takes over the parameters of torch's layer, by default those in `torch_names`."""
        hand_over(self.torch_names, module, self)

    def _give(self, module: nn.Module, relaid: LayoutConverter) -> None:
        """Hands the parameters over to torch's layer, by default those in `torch_names`."""
        hand_over(self.torch_names, self, module)

    @classmethod
    @final
    def _check_kind(cls, module: nn.Module) -> None:
        if not cls.replaces(module):
            names = ", ".join(sorted({f"nn.{kind.__name__}" for kind in cls.natives if hasattr(nn, kind.__name__)}))
            raise TypeError(f"{cls.__name__}.from_torch: converts {names}; got {why_not(module)}")
        for name, parameter in module.named_parameters():
            if not parameter.dtype.is_floating_point:
                raise TypeError(f"{cls.__name__}.from_torch: weights must be real; {name} is {parameter.dtype}")

    @classmethod
    @final
    def replaces(cls, module: nn.Module) -> bool:
        """Whether this layer replaces exactly the class of a module."""
        kind = type(module)
        return kind in cls.natives or f"{kind.__module__}.{kind.__qualname__}" in cls.foreign


def why_not(module: nn.Module) -> str:
    """Message on a layer that has no operator: its class, the reason and the remedy."""
    name = type(module).__name__
    if is_parametrized(module):
        made = ", ".join(cast(nn.ModuleDict, module.parametrizations))
        return (
            f"{name}, whose {made} is computed from other parameters; make it one again with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    if isinstance(module, LazyModuleMixin):
        return f"{name}, which does not know its sizes yet; call it once first"
    if isinstance(module, nn.Bilinear):
        return f"{name}, which multiplies two signals, as no operator here does"
    if isinstance(module, nn.RNNCellBase):
        return (
            f"{name}, which is one point of a recurrence; use the layer of all points, nn.{name.removesuffix('Cell')}"
        )
    return f"{name}, which has no operator here; neither has a subclass of a layer that has one"


def computed(module: nn.Module) -> str | None:
    """The reason to refuse a module of torch.jit, or one whose hook computes a tensor before each call; else None."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is made by torch.jit, whose code cannot be changed; convert the module that it was made from"
    for name, value in vars(module).items():
        made_of = {f"{name}_orig", f"{name}_g"} & module._parameters.keys()
        if isinstance(value, Tensor) and (made_of or not value.is_leaf):
            return f"{name} is computed from other parameters before each call; {COMPUTED}"
    return None


def duplicate(module: Native) -> Native:
    """A deep copy whose parameters keep their attributes and gradient hooks, which `copy.deepcopy` drops."""
    twins: dict[int, Any] = {}
    copied = copy.deepcopy(module, twins)
    for parameter in module.parameters():
        twin = twins[id(parameter)]
        vars(twin).update(vars(parameter))
        if has_gradient_hooks(parameter):
            twin.requires_grad_()  # hooks can be registered only then
            for hook in (parameter._backward_hooks or {}).values():
                twin.register_hook(hook)
            for hook in (parameter._post_accumulate_grad_hooks or {}).values():
                twin.register_post_accumulate_grad_hook(hook)
            twin.requires_grad_(parameter.requires_grad)
    return copied


def hand_over(names: Iterable[str], source: nn.Module, target: nn.Module) -> None:
    """Sets the parameters of these names on `target` to those of `source`."""
    for name in names:
        setattr(target, name, getattr(source, name))


def is_direct(operator: IntegralOperator) -> bool:
    """Whether an operator has neither a fixed route nor a quadrature nor hooks, so that a call may bypass it."""
    return operator.evaluation == AUTO and operator.quadrature is None and not is_watched(operator)


def sole_kernel(layer: nn.Module, operator: IntegralOperator, kind: type[Own]) -> Own:
    """The kernel of a layer's operator, checked to be of the layer's kernel class.

    Raises:
        TypeError: it was replaced by a kernel of another class.
    """
    kernel = operator.kernel
    if not isinstance(kernel, kind):
        raise TypeError(
            f"{type(layer).__name__}: its operator needs a kernels.{kind.__name__}; got {type(kernel).__name__}; "
            "for another kernel put an IntegralOperator in place of the layer"
        )
    return kernel


def is_watched(module: nn.Module) -> bool:
    """Whether the module has forward or backward hooks."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def check_format(layer: nn.Module, name: str, signal: Tensor, like: Tensor) -> None:
    """Raises unless a signal has the device and dtype of a layer's parameter, or autocast converts it."""
    if signal.device != like.device:
        raise ValueError(f"{type(layer).__name__}: {name} is on {signal.device} but the layer is on {like.device}")
    if signal.dtype != like.dtype and (not signal.dtype.is_floating_point or autocast_dtype(signal) is None):
        raise TypeError(
            f"{type(layer).__name__}: {name} is {signal.dtype} but the layer is {like.dtype}; convert one of them"
        )


def lowered(out: Tensor) -> Tensor:
    """The output in autocast's dtype where autocast is on, as torch's layers return it; float64 stays float64."""
    return out.to(product_dtype(out))


def _check_registered(module: nn.Module, blank: nn.Module) -> None:
    """Raises unless a module has the parameters, buffers and submodules of a fresh one."""
    for registry in ("_parameters", "_buffers", "_modules"):
        own, usual = getattr(module, registry), getattr(blank, registry)
        for name in own.keys() ^ usual.keys():
            raise ValueError(f"it {'holds' if name in own else 'lacks'} {name}, unlike a fresh one; keep it elsewhere")


def _check_unaltered(module: nn.Module, blank: nn.Module) -> None:
    """Raises unless a layer equals a fresh one with its options, apart from values, hooks and extra attributes."""
    for path, inner in module.named_modules():
        if is_parametrized(inner):
            raise ValueError(f"its {path} is a {why_not(inner)}")
    for path, fresh in blank.named_modules():
        _check_registered(module.get_submodule(path), fresh)
    for path, usual in blank.named_parameters():
        own = module.get_parameter(path)
        if own.shape != usual.shape:
            raise ValueError(f"its {path} is {tuple(own.shape)}, where its options ask for {tuple(usual.shape)}")
    for name, usual in vars(blank).items():
        own = vars(module).get(name)
        if isinstance(usual, bool | int | float | str | tuple) and name != "training" and own != usual:
            raise ValueError(f"its {name} was changed to {own!r} after it was built, where it is {usual!r}")


def _carry(source: nn.Module, blank: nn.Module, target: nn.Module) -> None:
    """Moves hooks, and attributes that a fresh layer does not have, from a layer to its replacement."""
    if any(getattr(source, name) for name in STATE_HOOKS):
        raise ValueError("it has a hook on its state_dict, whose names differ here; remove it")
    if source._backward_hooks and source._is_full_backward_hook is False:
        raise ValueError(
            "it has a backward hook of the old kind, which depends on the graph inside; remove it, or register it with "
            "register_full_backward_hook"
        )
    for name in CALL_HOOKS:
        getattr(target, name).update(getattr(source, name))
    target._is_full_backward_hook = source._is_full_backward_hook
    for name in vars(source).keys() - vars(blank).keys():
        if hasattr(type(source), name) or hasattr(target, name):
            raise ValueError(f"its {name} was replaced, which would be lost; convert first, and replace it then")
        vars(target)[name] = vars(source)[name]
