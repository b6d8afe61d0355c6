from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Domain, Grid
from fredholm.encoders import ConvolutionalImage, Image, ImageText, ImageTextBatch, Text
from fredholm.models import ITNet, MLPConfig
from tests.refusals import refused

PAD = 9
MASSES = {"uniform": None, "balanced": 0.5, "image-heavy": 0.75, "text-heavy": 0.25}
"""Mass of the images; None: in proportion to their number of points."""
IMAGES = Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2, sigma=1.0)


def image(embed_dim: int = 4) -> Image:
    return Image(IMAGES, embed_dim).double()


def text(embed_dim: int = 4, **more: Any) -> Text:
    settings = {"context": 8, "num_frequencies": 2, "sigma": 1.0, "pad": PAD, "has_class_token": True} | more
    return Text(10, embed_dim, **settings).double()


def encoder(num_images: int = 2, of_images: Any = Image, **more: Any) -> ImageText:
    built = ImageText(of_images(IMAGES, 4), text(), num_images=num_images, **more).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built


def batch(num_images: int = 2, size: int = 3) -> ImageTextBatch:
    """Texts of 5, 3 and 4 tokens."""
    tokens = torch.tensor([[1, 2, 3, 4, 5], [1, 6, 7, PAD, PAD], [1, 3, 3, 2, PAD]])[:size]
    return ImageTextBatch(torch.randn(size, num_images, 1, 4, 6, dtype=torch.float64), tokens)


def network(pool: Any = "cls", *, class_token: bool = True, **more: Any) -> ITNet:
    kernel = MLPConfig(width=5, num_frequencies=2, sigma=1.0, epsilon=1.0)
    config = ITNet.Config(embed_dim=4, depth=2, num_heads=2, kernel=kernel, dropout=0.0, drop_path=0.0, pool=pool)
    joint = ImageText(image(), text(has_class_token=class_token), num_images=2, **more)
    return ITNet(joint, 3, config).double().eval()


@pytest.mark.parametrize("of_images", [Image, ConvolutionalImage])
def test_the_signal_is_each_encoders_signal_plus_its_modality_embedding(of_images: Any) -> None:
    built, inputs = encoder(of_images=of_images), batch()
    u, domain = built(inputs)
    e_img, e_txt = built.modality_weight
    assert built.text is not None
    assert built.image is not None
    assert u.shape == (3, 5 + 2 * 6, 4)
    torch.testing.assert_close(u[:, :5], built.text(inputs.tokens)[0] + e_txt)
    for number in range(2):
        part = u[:, 5 + 6 * number : 5 + 6 * (number + 1)]
        torch.testing.assert_close(part, built.image(inputs.images[:, number])[0] + e_img)
    assert domain.mask is not None
    assert domain.mask.tolist() == [[True] * n + [False] * (5 - n) + [True] * 12 for n in (5, 3, 4)]


def test_text_is_placed_below_the_images_which_are_side_by_side() -> None:
    built, inputs = encoder(), batch()
    pos, patches = built(inputs)[1].pos, Grid(2, 3).pos
    line = torch.stack([torch.full((5,), 1.5), torch.arange(5) / 8], dim=-1).double()
    torch.testing.assert_close(pos[:5], line)
    torch.testing.assert_close(pos[5:11], patches)
    torch.testing.assert_close(pos[11:], patches + torch.tensor([0.0, 1.25], dtype=torch.float64))


@pytest.mark.parametrize("measure", MASSES)
@pytest.mark.parametrize("num_images", [1, 2])
def test_each_modality_has_the_mass_of_its_measure(measure: Any, num_images: int) -> None:
    weights = encoder(num_images, measure=measure)(batch(num_images))[1].weights
    patches = 6 * num_images
    for row, tokens in zip(weights, (5, 3, 4), strict=True):
        share = MASSES[measure] or patches / (patches + tokens)
        torch.testing.assert_close(row[5:], torch.full((patches,), share / patches, dtype=torch.float64))
        torch.testing.assert_close(row[:tokens], torch.full((tokens,), (1 - share) / tokens, dtype=torch.float64))
        assert not row[tokens:5].any()


def test_a_class_token_keeps_the_proportions_of_masses() -> None:
    model = network(class_token=False, measure="text-heavy")
    domains_seen: list[Domain] = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: domains_seen.append(args[1]))
    model(batch())
    domain = domains_seen[0]
    for row, tokens in zip(domain.weights, (5, 3, 4), strict=True):
        count = 1 + tokens + 12
        rest = torch.tensor([0.75, 0.25], dtype=torch.float64) * (count - 1) / count
        torch.testing.assert_close(row[0], torch.tensor(1 / count, dtype=torch.float64))
        torch.testing.assert_close(torch.stack([row[1:6].sum(), row[6:].sum()]), rest)


@pytest.mark.parametrize("measure", MASSES)
@pytest.mark.parametrize(("pool", "class_token"), [("cls", True), ("cls", False), ("mean", True)])
def test_padding_and_other_batch_entries_change_nothing(measure: Any, pool: Any, class_token: bool) -> None:
    model, inputs = network(pool, class_token=class_token, measure=measure), batch()
    together = model(inputs)
    for i, count in enumerate((5, 3, 4)):
        alone = model(ImageTextBatch(inputs.images[i : i + 1], inputs.tokens[i : i + 1, :count]))
        torch.testing.assert_close(together[i : i + 1], alone)
    longer = torch.nn.functional.pad(inputs.tokens, (0, 3), value=PAD)
    torch.testing.assert_close(model(inputs._replace(tokens=longer)), together)


def test_the_order_of_images_and_both_modalities_matter() -> None:
    model, inputs = network(), batch()
    predicted = model(inputs)
    others = (inputs._replace(images=inputs.images.flip(1)), inputs._replace(tokens=inputs.tokens.clamp(max=4)))
    for other in others:
        assert ((model(other) - predicted).abs().amax(1) > 1e-6).all()


def test_the_measure_affects_the_output() -> None:
    torch.manual_seed(0)
    state = network().state_dict()
    found = []
    for measure in MASSES:
        model = network(measure=measure)
        model.load_state_dict(state)
        torch.manual_seed(1)
        found.append(model(batch()))
    assert all((a - b).abs().max() > 1e-6 for i, a in enumerate(found) for b in found[:i])


def test_one_modality_alone() -> None:
    inputs = batch()
    of_text = ImageText(None, text()).double()
    u, domain = of_text(inputs)
    assert (u.shape, of_text.has_class_token, of_text.pos_dim) == ((3, 5, 4), True, 2)
    torch.testing.assert_close(domain.weights[1], torch.tensor([1 / 3] * 3 + [0, 0], dtype=torch.float64))
    of_images = ImageText(image(), None, num_images=2).double()
    u, domain = of_images(inputs)
    assert (u.shape, of_images.has_class_token) == ((3, 12, 4), False)
    torch.testing.assert_close(domain.weights, torch.full((12,), 1 / 12, dtype=torch.float64))


def test_gradients_reach_every_parameter_and_the_pixels() -> None:
    model, inputs = network(), batch()
    images = inputs.images.requires_grad_()
    model(inputs).square().sum().backward()
    reached: dict[str, Tensor | None] = {name: p.grad for name, p in model.encoder.named_parameters()}
    assert [name for name, grad in reached.items() if grad is None or not grad.any()] == []
    assert images.grad is not None
    assert images.grad.flatten(1).any(1).all()


def test_modality_embeddings_start_small() -> None:
    built = ImageText(image(4000), None)
    assert built.modality_weight.shape == (2, 4000)
    assert built.modality_weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert abs(built.modality_weight.mean().item()) < 1e-3


def test_bad_inputs_are_refused() -> None:
    with refused(ValueError, "image and text are None"):
        ImageText(None, None)
    with refused(ValueError, "4 channels", "6", "make them equal"):
        ImageText(image(), text(6))
    with refused(ValueError, "measure is one of uniform, balanced", "'even'"):
        ImageText(image(), text(), measure="even")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "measure='uniform' has no effect with one modality"):
        ImageText(image(), None, measure="uniform")
    with refused(ValueError, "num_images=2 has no effect with texts alone"):
        ImageText(None, text(), num_images=2)
    with refused(ValueError, "num_images must be at least 1; got 0"):
        ImageText(image(), text(), num_images=0)
    with refused(ValueError, "text needs a context"):
        ImageText(image(), Text(10, 4))
    with refused(TypeError, "expected an ImageTextBatch; got Tensor"):
        encoder()(torch.zeros(2, 2, 1, 4, 6))
    with refused(ValueError, "(batch, 2, channels, height, width)", "(3, 1, 1, 4, 6)"):
        encoder()(batch(1))
