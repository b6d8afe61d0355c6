import pytest
import torch

from fredholm.kernels import yat
from fredholm.layers import YatClassifier
from tests.refusals import refused


@pytest.mark.pairs
@pytest.mark.parametrize("shape", [7, (7,), (2, 5), (1, 3, 4)])
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (0,)])
@pytest.mark.parametrize("bias", [False, True])
def test_is_the_response_to_every_prototype(shape, lead, bias):
    model = YatClassifier(shape, 10, bias=bias, epsilon=0.1)
    seen = (shape,) if isinstance(shape, int) else shape
    x = torch.randn(*lead, *seen)
    assert model.prototypes.shape == (10, *seen)
    assert model.units.scale is not None
    flat = yat(x.flatten(-len(seen)), model.prototypes.reshape(10, -1), model.units.bias, 0.1)
    torch.testing.assert_close(model(x), model.units.scale() * flat)


def test_a_prototype_is_classified_as_its_class():
    model = YatClassifier((4, 4), 5)
    assert model(model.prototypes).argmax(-1).tolist() == [0, 1, 2, 3, 4]
    model(torch.randn(3, 4, 4)).sum().backward()
    assert model.units.weight.grad is not None


def test_inverted_prototypes_respond_to_the_negative():
    model, x = YatClassifier((2, 3), 4), torch.randn(5, 2, 3)
    before = model.prototypes.detach().clone()
    other = model.inverted()
    assert torch.equal(other.prototypes, -before)
    assert torch.equal(model.prototypes, before)
    torch.testing.assert_close(other(x), model(-x))
    assert not torch.allclose(other(x), model(x))


def test_mistakes_are_refused():
    with refused(ValueError, "(2, 3)", "(5, 3, 2)"):
        YatClassifier((2, 3), 4)(torch.randn(5, 3, 2))
    with refused(ValueError, "(2, 3)", "(3,)"):
        YatClassifier((2, 3), 4)(torch.randn(3))
    with refused(ValueError, "num_classes", "0"):
        YatClassifier(3, 0)
    with refused(ValueError, "in_features", "()"):
        YatClassifier((), 3)


def test_bad_shapes_and_inputs_that_are_no_tensors_are_refused() -> None:
    for wrong in ("3", 2.5, True, None):
        with refused(TypeError, "YatClassifier: in_features must be a whole number"):
            YatClassifier(wrong, 2)  # pyright: ignore[reportArgumentType]
        with refused(TypeError, "YatClassifier: num_classes must be a whole number"):
            YatClassifier(2, wrong)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "YatClassifier: in_features", "got ()"):
        YatClassifier((), 2)
    with refused(TypeError, "YatClassifier: expected a tensor; got list"):
        YatClassifier(2, 2)([1.0, 2.0])
    with refused(TypeError, "YatDense: expected a tensor; got list"):
        YatClassifier(2, 2).units([1.0, 2.0])
