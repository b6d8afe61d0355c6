import torch

from fredholm.encoders import Image, ImageText, ImageTextBatch, Text
from fredholm.models import EachImage, ITNet, MLPConfig
from tests.refusals import refused


def pair_model(outputs: int) -> ITNet:
    images = Image.Config(image_size=(4, 4), patch_size=2, channels=1, num_frequencies=2, sigma=1.0)
    encoder = ImageText(Image(images, 4), Text(10, 4, context=8, has_class_token=True))
    kernel = MLPConfig(width=5, num_frequencies=2, sigma=1.0, epsilon=1.0)
    config = ITNet.Config(embed_dim=4, depth=1, num_heads=2, kernel=kernel, dropout=0.0, drop_path=0.0)
    built = ITNet(encoder, outputs, config).double().eval()
    torch.nn.init.normal_(built.head.weight)
    torch.nn.init.normal_(built.head.bias)
    return built


def batch() -> ImageTextBatch:
    return ImageTextBatch(torch.randn(3, 2, 1, 4, 4, dtype=torch.float64), torch.randint(0, 10, (3, 5)))


def test_it_is_one_linear_layer_on_the_joined_class_tokens() -> None:
    pairs, given = pair_model(2 * 3), batch()
    found = EachImage(pairs, 2)(given)
    weight, bias = pairs.head.weight.detach(), pairs.head.bias.detach()
    joined = torch.cat([weight[:3], weight[3:]], dim=1)  # (K, M C): block m reads image m
    pairs.head = torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)
    torch.nn.init.eye_(pairs.head.weight)
    tokens = [pairs(ImageTextBatch(given.images[:, m : m + 1], given.tokens)) for m in range(2)]
    torch.testing.assert_close(found, torch.cat(tokens, dim=1) @ joined.T + bias[:3] + bias[3:])


def test_images_are_combined_in_the_last_layer_alone_and_in_their_order() -> None:
    model, (images, tokens) = EachImage(pair_model(2 * 3), 2), batch()
    other = torch.randn_like(images[:, :1])
    first, second = images[:, :1], images[:, 1:]

    def compute(*given: torch.Tensor) -> torch.Tensor:
        return model(ImageTextBatch(torch.cat(given, dim=1), tokens))

    torch.testing.assert_close(
        compute(first, second) - compute(first, other), compute(other, second) - compute(other, other)
    )
    assert (compute(first, second) - compute(second, first)).abs().min() > 1e-6


def test_bad_arguments_are_refused() -> None:
    with refused(ValueError, "num_images is 2, which must divide the 3 outputs"):
        EachImage(pair_model(3), 2)
    with refused(ValueError, "(batch, 3, channels, height, width)", "(3, 2, 1, 4, 4)"):
        EachImage(pair_model(3), 3)(batch())
