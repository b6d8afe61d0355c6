"""All settings of every kernel, quadrature, encoder, block, operator, field and model do something, or are refused."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import fredholm
from fredholm import blocks, encoders, fields, kernels, layers, models, operators, quadrature
from fredholm.domains import Domain, Graph, Grid, Points, Sequence, UnitGrid
from fredholm.encoders import PointBatch
from fredholm.encoders.series import SeriesBatch
from fredholm.evaluation import Dense
from fredholm.kernels import KernelInputs, PointInputs
from fredholm.kernels.attention.yat import Softening, UnitScale
from fredholm.kernels.convolution.kernel_network import KernelNetwork, WeightNormalised
from fredholm.kernels.neumann.infinite_attention import Discount
from fredholm.kernels.perceptron.factorised import FeaturePair, PointFeatures
from fredholm.operators import IntegralOperator, collect_auxiliary_losses
from fredholm.tasks.targets import ClassTarget, ElementTarget, NumberTarget
from tests.contracts.settings import Made, Subject, settings_of, unread
from tests.contracts.task_settings import CONFIGS_OF_TASKS

SWITCH = (False, True)
RAW = {"num_frequencies": 0, "sigma": 10.0}
TIMES = torch.tensor([0.0, 0.1, 0.5, 0.7, 1.5, 1.6], dtype=torch.float64)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def where(pos_dim: int | None) -> list[Domain]:
    if pos_dim in (None, 1):
        return [Sequence(6, spacing=0.2), Sequence(times=TIMES)]
    return [Grid(2, 3) if pos_dim == 2 else Grid(2, 3, 1)]


def graph_kernel(built: kernels.OnEdges | kernels.Diffusion) -> Iterator[object]:
    """κ on a small graph."""
    edges = torch.tensor([[0, 1, 2, 3, 1, 4], [1, 0, 1, 2, 4, 1]])
    yield built.matrix(noise(2, 5, built.in_dim), Graph(edges, 5, pos=noise(5, 1)))


def kernel(built: kernels.Kernel) -> Iterator[object]:
    """κ, the positions of its results, and two steps of a stateful kernel."""
    u, elsewhere = noise(2, 6, built.in_dim), built.query_dim != built.in_dim
    yield from (built.in_dim, built.out_dim, built.is_affine)
    for domain in where(built.pos_dim):
        query, query_domain = (noise(2, 4, built.query_dim), Sequence(4)) if elsewhere else (None, None)
        try:
            yield built.matrix(u, domain, query, query_domain)
            yield built.output_domain(domain).pos
        except ValueError as error:
            yield str(error)
    if not isinstance(built, kernels.Stateful) or not built.is_causal:
        return
    state = built.initial_state(2)
    for index in range(3):
        out, state = built.step(u[:, index], state, TIMES[index].expand(2) if built.reads_time else None)
        yield out
        yield from state


def kernel_of(config: models.KernelConfig) -> Iterator[object]:
    """The kernel that a config builds, causal and not, or the reason of its refusal."""
    for is_causal in (False, True):
        torch.manual_seed(3)
        try:
            built = config.build(4, 2, 1, is_causal=is_causal)
            yield [tuple(parameter.shape) for parameter in built.parameters()]
            yield from kernel(built)
        except ValueError as error:
            yield str(error)


def on_edges_of(config: models.OnEdgesConfig) -> Iterator[object]:
    torch.manual_seed(3)
    built = config.build(4, 2, 1, is_causal=False)
    assert isinstance(built, kernels.OnEdges)
    yield from graph_kernel(built)


def tokens(built: models.ITNetLanguageModel | models.ITNetMaskedModel | models.BertMasked) -> Iterator[object]:
    yield built(torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]]))


def perceptron(built: kernels.MLP) -> Iterator[object]:
    """The observations of a kernel, and its integral, since the multiplicand is not part of κ."""
    yield from kernel(built)
    domain = where(built.pos_dim)[0]
    yield IntegralOperator(built, residual=False)(noise(2, 6, built.in_dim), domain)


def lattice(built: kernels.Convolution) -> Iterator[object]:
    domain = Sequence(6) if built.pos_dim == 1 else Grid(4, 5)
    u = noise(2, domain.num_points, built.in_dim)
    yield built.matrix(u, domain)
    yield built.output_domain(domain).pos


def continuous(built: kernels.ContinuousConvolution) -> Iterator[object]:
    """The observations of a kernel, κ on a grid finer than in training, and steps without a time."""
    yield from kernel(built)
    yield built.matrix(noise(2, 6, built.in_dim), Sequence(6, spacing=0.01) if built.pos_dim == 1 else Grid(2, 3))
    if built.is_causal:
        yield built.step(noise(2, built.in_dim), built.step(noise(2, built.in_dim), built.initial_state(2))[1])[0]


def linear_system(built: kernels.LinearSystem) -> Iterator[object]:
    yield from kernel(built)
    yield built.step(noise(2, built.in_dim), built.initial_state(2))


def network(built: KernelNetwork) -> Iterator[object]:
    first = next(part for part in built.modules() if isinstance(part, WeightNormalised))
    yield built(noise(5, first.weight.shape[1]))


def normaliser(built: kernels.Normaliser) -> Iterator[object]:
    yield built.density(noise(3, 5).abs(), torch.ones(()))


def at_no_input(built: Any) -> Iterator[object]:
    yield built()


def projected(built: kernels.HeadProjections) -> Iterator[object]:
    """Queries, keys and values of signals of the required sizes, and the value matrices."""
    yield built.queries(noise(1, 3, built.query_dim))
    yield built.keys(noise(1, 3, built.signal_dim))
    yield built.values(noise(1, 3, max(built.signal_dim, built.value_dim)))
    yield built.value_matrices()


def on_features(built: PointFeatures) -> Iterator[object]:
    sizes = [0 if weight is None else weight.shape[-1] for weight in (built.position_weight, built.content_weight)]
    yield built(noise(1, 4, sizes[0]), noise(1, 2, 4, sizes[1]))


def lifted(built: FeaturePair) -> Iterator[object]:
    grid = Grid(2, 3) if built.frequencies.shape[1] == 2 else Sequence(6)
    lifted = built.lift(grid)
    for side in (built.query, built.key):
        yield side(*built.inputs(side, noise(1, 6, 4), lifted))


def integral(built: quadrature.Quadrature) -> Iterator[object]:
    """A sum over the nodes, the proposal's losses, and the quadrature's description."""
    torch.manual_seed(3)
    operator = IntegralOperator(kernels.MLP(4, 2, 2, width=3, num_frequencies=2, epsilon=1.0), quadrature=built)
    operator.train(built.training)
    with collect_auxiliary_losses() as losses:
        yield operator(noise(2, 12, 4), Grid(3, 4))
    yield from losses
    yield built.describe(12)


def logits(built: quadrature.KeyProposal | quadrature.PairProposal) -> Iterator[object]:
    domain = Grid(2, 3) if built.pos_dim == 2 else Sequence(6)
    u = noise(2, 6, built.embed_dim)
    if isinstance(built, quadrature.KeyProposal):
        yield built.logits(u, domain)
        return
    yield built.logits(u, domain, noise(2, 6, built.query_dim), domain, torch.arange(6))


def image_encoder(built: encoders.Image | encoders.ConvolutionalImage | encoders.ImagePyramid) -> Iterator[object]:
    yield built.grid_shape
    for shape in ((4, 6), (8, 6)):
        try:
            yield built(noise(2, built.config.channels, *shape))[0]
        except ValueError as error:
            yield str(error)


def function_encoder(built: encoders.Function) -> Iterator[object]:
    config, torus = built.config, built.config.is_periodic
    grid = Grid(*(4,) * config.pos_dim, periodic=torus)
    batch = encoders.FunctionBatch(noise(2, grid.num_points, config.num_channels), grid)
    yield built(batch)[0]
    yield built.at(batch, Points(noise(3, config.pos_dim).double(), periodic=torus))


def scales_encoder(built: encoders.MultiScaleImage) -> Iterator[object]:
    yield built.grid_shapes
    for shape in ((4, 6), (8, 6)):
        try:
            signal, domain = built(noise(2, built.config.channels, *shape))
            yield from (signal, domain.weights)
        except ValueError as error:
            yield str(error)


def graph_encoder(built: encoders.Graph) -> Iterator[object]:
    edges, features = torch.tensor([[[0, 1, 1], [1, 0, 2]]] * 2), None
    if built.edge_dim:
        features = noise(2, 3, built.edge_dim)
    signal, domain = built(
        encoders.GraphBatch(noise(2, 4, built.features), edges, noise(2, 4, built.pos_dim), None, None, features)
    )
    yield from (signal, domain.pos, built.edge_dim)


def series_encoder(built: encoders.Series | encoders.SeriesPyramid) -> Iterator[object]:
    channels = built.channels if isinstance(built, encoders.Series) else built.samples.channels
    for batch in (SeriesBatch(noise(2, 5, channels), times=TIMES[:5].expand(2, 5)), noise(2, 5, channels)):
        u, domain = built(batch)
        yield from (u, domain.weights, domain.pos)


def point_encoder(built: encoders.PointCloud) -> Iterator[object]:
    features = noise(2, 7, built.config.num_features) if built.config.num_features else None
    u, domain = built(PointBatch(noise(2, 7, 3), features, weights=noise(2, 7).square()))
    yield from (u, domain.weights, domain.pos)


def text_encoder(built: encoders.Text) -> Iterator[object]:
    u, domain = built(torch.arange(5)[None])
    yield from (u, domain.pos, domain.mask, built.has_class_token)


def on_signal(built: Any) -> Iterator[object]:
    yield built(noise(2, 6, 4), Sequence(6))


def pointwise(built: Any) -> Iterator[object]:
    yield built(noise(2, 6, 4))


def discounted(built: blocks.DiscountedBlock) -> Iterator[object]:
    yield from built(noise(2, 6, 4), Sequence(6), torch.tensor([0.5, 0.7]))


def short(built: blocks.ShortConvolution) -> Iterator[object]:
    yield built(noise(2, 6, built.channels), built.initial_buffer(2))[0]


def yat_image(built: Any) -> Iterator[object]:
    yield built(noise(2, 4, *(5,) * getattr(built, "num_axes", 1)))


def classifier(built: layers.YatClassifier) -> Iterator[object]:
    yield from (built.prototypes, built(noise(2, *built.shape)))


def field(built: fields.Field) -> Iterator[object]:
    torch.manual_seed(3)
    parameters = built.draw()
    yield from (parameters, built.sizes(), built(parameters, noise(5, built.pos_dim)))


def radial(built: fields.Radial) -> Iterator[object]:
    yield built.values(noise(3, 2))
    yield from built.slopes(noise(3).abs())


def frame(built: fields.Frame) -> Iterator[object]:
    """Frames of a skewed, a symmetric and a flat set of points."""
    symmetric = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]])
    for pos in (noise(6, 2), symmetric, noise(6, 2) * torch.tensor([1.0, 1e-4])):
        found = built.coordinates(Points(pos))
        yield from (found.normalise(pos[None]), found.is_periodic)


def on_image(built: Any) -> Iterator[object]:
    yield built(noise(2, 1, 4, 6))


def language(built: models.LanguageModel | models.Bert) -> Iterator[object]:
    yield built(torch.tensor([[3, 1, 4, 1, 5, 0]]))


A_TEXT = torch.tensor([3, 1, 4, 1, 5, 1, 4, 2, 3, 1, 4, 1, 6, 1, 5])


def small_counts(order: int) -> models.NGramModel:
    return models.NGramModel.Config(sizes=models.NGramModel.distinct(A_TEXT, 7, order)).build(7, 6)


def n_grams(built: models.NGramModel) -> Iterator[object]:
    built.fit(A_TEXT)
    yield from language(built)


def small_gpt2(depth: int) -> models.GPT2:
    return models.GPT2.Config(embed_dim=4, depth=depth, num_heads=1).build(7, 6)


def blended_language(built: models.BlendedLanguageModel) -> Iterator[object]:
    built.fitted.fit(A_TEXT)
    for share in (0.0, 0.5, 1.0):
        built.share.fill_(share)
        yield from language(built.eval())


def on_pixels(built: models.ViT | models.ConvNeXt) -> Iterator[object]:
    yield built(noise(2, built.config.channels, 4, 6))


def image_bank(built: models.ImageBank) -> Iterator[object]:
    """Outputs on images with streaks to one side or the other, for which mirror images help."""
    torch.manual_seed(0)
    images = torch.randn(40, built.channels, 12, 14)
    streaks = images + images.roll((1, 1), (-1, -2)) + images.roll((2, 2), (-1, -2))
    images[1::4], images[3::4] = streaks[1::4], streaks.flip(-1)[3::4]
    built.fit([(images, torch.arange(40) % 2)], ClassTarget(names=("a", "b")))
    yield built(images)


def blended_images(built: models.BlendedImages) -> Iterator[object]:
    torch.manual_seed(0)
    images = noise(6, 1, 8, 8)
    built.fitted.fit([(images, torch.arange(6) % 2)], ClassTarget(names=("a", "b")))
    for share in (0.0, 0.5, 1.0):
        built.share.fill_(share)
        yield built.eval()(images)


def blended_image_texts(built: models.BlendedImageTexts) -> Iterator[object]:
    """Outputs on standardised pixels, which a table machine reads as they were before."""
    pixels = torch.randint(256, (6, 1, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 255
    tokens = torch.tensor([[1, 3, 2], [1, 4, 2]] * 3)
    torch.manual_seed(0)
    row = models.TableBatch.of(torch.zeros(6, 0), tokens=tokens[:, None], images=(255 * pixels).byte())
    built.fitted.fit([(row, torch.arange(6) % 2)], ClassTarget(names=("a", "b")))
    batch = encoders.ImageTextBatch((pixels - 0.4) / 0.3, tokens)
    yield built.row(batch).images
    for share in (0.0, 0.5, 1.0):
        built.share.fill_(share)
        yield built.eval()(batch)


def image_text_network(depth: int) -> models.ITNet:
    encoder = encoders.ImageText(
        encoders.Image(encoders.Image.Config(image_size=(8, 8), patch_size=4, channels=1), 4), text_part()
    )
    return models.ITNet.Config(embed_dim=4, depth=depth, num_heads=1, kernel=models.AttentionConfig()).build(encoder, 2)


def image_text_machine(trees: int) -> models.TableMachine:
    text = models.TokenReading(vocab_size=5, context=6, pad=0, separator=2)
    reading = models.TableReading(num_numbers=0, num_texts=1, text=text, num_images=1, channels=1, image_size=(8, 8))
    sizes: Any = {"texts": models.NGramBank.Config(num_grams=9, letter_order=0)}
    sizes["images"] = models.ImageBank.Config(num_filters=4)
    return models.TableMachine.Config(num_directions=2, num_trees=trees, **sizes).build(reading, 2)


def small_vit(depth: int) -> models.ViT:
    config = models.ViT.Config(image_size=(8, 8), patch_size=(4, 4), channels=1, embed_dim=4, depth=depth, num_heads=1)
    return dataclasses.replace(config, num_classes=2).build()


def small_bank(count: int) -> models.ImageBank:
    return models.ImageBank.Config(num_filters=count).build((8, 8), 1, 2)


def stack(built: models.ContinuousStack) -> Iterator[object]:
    yield built(noise(2, 6, 2), Sequence(6, spacing=0.01))


def filter_bank(built: models.FilterBank) -> Iterator[object]:
    yield built.features(noise(2, 9, built.sampling.channels))
    yield built(SeriesBatch(noise(2, 6, built.sampling.channels), spacing=torch.full((2,), 0.5)))


def summary_bank(built: models.SummaryBank) -> Iterator[object]:
    batch = SeriesBatch(noise(7, 5, built.sampling.channels))
    yield built.summaries(batch)
    built.fit([(batch, torch.arange(7) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built(batch)


def series_machine(built: models.SeriesMachine) -> Iterator[object]:
    torch.manual_seed(0)
    batch = SeriesBatch(noise(12, 5, built.sampling.channels))
    yield built.numbers(batch)
    built.fit([(batch, torch.arange(12) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built.second.machine(built.numbers(batch))
    yield built(batch)


def sample_machine(built: models.SampleMachine) -> Iterator[object]:
    torch.manual_seed(0)
    batch = SeriesBatch(noise(6, 40, built.sampling.channels))
    built.fit([(batch, torch.arange(240).view(6, 40) % 3)], ElementTarget(names=("a", "b", "c")))
    yield built(batch)


def sample_pyramid(built: models.SamplePyramid) -> Iterator[object]:
    yield built(noise(2, 12, 2))


def blended_samples(built: models.BlendedSamples) -> Iterator[object]:
    yield from sample_machine(built.fitted)
    for share in (0.0, 0.5, 1.0):
        built.share.fill_(share)
        yield built.eval()(noise(2, 12, 2))


def small_pyramid(depth: int) -> models.SamplePyramid:
    torch.manual_seed(depth)
    return models.SamplePyramid.Config(embed_dim=4, strides=(2,), depth=depth).build(SERIES, 3)


def small_sample_machine(trees: int) -> models.SampleMachine:
    return models.SampleMachine.Config(num_samples=50, num_trees=trees).build(SERIES, 3)


def lag_machine(built: models.LagMachine) -> Iterator[object]:
    torch.manual_seed(0)
    batch = SeriesBatch(noise(12, 5, built.sampling.channels))
    yield built.coordinates(batch)
    built.fit([(batch, torch.arange(12) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built.bank(batch)
    yield built.second.machine(built.coordinates(batch))
    yield built(batch)


ROWS = torch.tensor([[1, 3 + i % 5, 4, 3 + i % 3, 2, 5 + i % 2, 2][: 5 + i % 3] + [0] * (2 - i % 3) for i in range(9)])
"""Tokens of sentences and of pairs."""


def n_gram_bank(built: models.NGramBank) -> Iterator[object]:
    torch.manual_seed(0)
    built.fit([(ROWS, torch.arange(9) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built(ROWS)
    built.letter_share.fill_(0.5)  # the random labels do not depend on letters, so the fit would leave these out
    features = built.sparse([ROWS]).to_dense()
    yield features @ features.T


def conditional_random_field(built: models.ConditionalRandomField) -> Iterator[object]:
    sentences = [[f"{'Ab'[i % 2]}{j % 4}" for j in range(i, 2 * i + 1)] for i in range(5)]
    forms = pad_sequence([models.word_forms(words) for words in sentences], batch_first=True)
    torch.manual_seed(0)
    built.fit([(forms, torch.arange(25).view(5, 5) % 3)])
    yield from (built(forms), built.best(forms), built.penalty, built.known)


def kernel_machine(built: models.KernelMachine) -> Iterator[object]:
    torch.manual_seed(0)
    yield built.dual.shape
    d = built.centres.shape[1]
    yield built.fit(noise(9, d), torch.arange(9) % len(built.bias), ClassTarget(names=tuple("abcd"[: len(built.bias)])))
    yield built(noise(9, d))
    built.solve(x := noise(60, d), x[:, :1].double().sin())
    yield built.relevance


def boosted_trees(built: models.BoostedTrees) -> Iterator[object]:
    torch.manual_seed(0)
    yield built.leaves.shape
    x = noise(9, built.num_coordinates)
    yield built.fit(x, torch.arange(9) % len(built.bias), ClassTarget(names=tuple("abcd"[: len(built.bias)])))
    yield built(x)


def table_machine(built: models.TableMachine) -> Iterator[object]:
    reading = built.reading
    yield built.machine.dual.shape
    pad = 0 if reading.text is None else reading.text.pad
    tokens = torch.where(ROWS == 0, pad, ROWS)[:, None].expand(-1, reading.num_texts, -1)
    numbers = noise(9, reading.num_numbers)
    numbers[::4] = torch.nan
    categories = torch.stack([torch.arange(9) % (count + 1) - 1 for count in reading.num_categories], 1)
    images = torch.randint(256, (9, reading.num_images, reading.channels, *(reading.image_size or (0, 0))))
    exists = torch.arange(9 * reading.num_images).view(9, -1) % 4 > 0
    most = max((each.channels - len(each.observation) for each in reading.series), default=0)
    series = noise(9, len(reading.series), 7, most)
    series[..., ::2, :] = torch.nan
    batch = models.TableBatch.of(
        numbers, categories=categories, tokens=tokens, images=images.byte(), has_image=exists, series=series
    )
    torch.manual_seed(0)
    built.fit([(batch, torch.arange(9) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built(batch)
    yield from (
        tensor.nan_to_num() for tensor in built.state_dict().values()
    )  # banks of few rows may have no effect on the output


def sentence_stack(built: models.SignalModel | models.BertSentences) -> Iterator[object]:
    yield built(ROWS)


def of_sentences(built: tuple[models.NGramBank, models.SignalModel]) -> Iterator[object]:
    yield from n_gram_bank(built[0])
    yield from sentence_stack(built[1])


def neighbourhood_bank(built: models.NeighbourhoodBank) -> Iterator[object]:
    reading, edges = built.reading, torch.tensor([[[0, 1, 1, 2], [1, 0, 2, 1]]] * 7)
    of_edges = noise(7, 4, reading.edge_dim) if reading.edge_dim else None
    batch = encoders.GraphBatch(
        noise(7, 3, reading.features), edges, noise(7, 3, reading.pos_dim), edge_features=of_edges
    )
    built.fit([(batch, torch.arange(7) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built(batch)


def graph_machine(built: models.GraphMachine) -> Iterator[object]:
    torch.manual_seed(0)
    features = built.reading.features
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]).expand(12, -1, -1)
    batch = encoders.GraphBatch(noise(12, 3, features), edges, noise(12, 3, built.reading.pos_dim))
    built.fit([(batch, torch.arange(12) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built.second.machine(built.numbers(batch).nan_to_num(0.0))
    yield built(batch)


NUMBER_OF_NODES = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))


def ring_of_nodes(reading: models.GraphReading) -> models.KnownNodes:
    torch.manual_seed(0)
    places = torch.arange(30)
    edges = torch.stack([places, (places + 1) % 30])
    both = torch.cat([edges, edges.flip(0)], 1)[None]
    batch = encoders.GraphBatch(noise(1, 30, reading.features), both, noise(1, 30, reading.pos_dim))
    return models.KnownNodes(batch, places[:16] + 4)


def node_machine(built: models.NodeMachine) -> Iterator[object]:
    known = ring_of_nodes(built.reading)
    target = NUMBER_OF_NODES
    built.fit([(known, (known.nodes / 5).sin()[:, None].double())], target)
    yield built(known)


def blended_nodes(built: models.BlendedNodes) -> Iterator[object]:
    yield from node_machine(built.fitted)
    for share in (0.0, 0.5, 1.0):
        built.share.fill_(share)
        yield built.eval()(ring_of_nodes(built.fitted.reading))


def node_network(depth: int) -> models.ITNet:
    kernel = models.OnEdgesConfig(kernel=models.ConstantConfig(), long_range=None)
    return models.ITNet.Config(embed_dim=4, depth=depth, kernel=kernel, pool="none").build(GRAPH_READING.encoder(4), 1)


def small_node_machine(trees: int) -> models.NodeMachine:
    return models.NodeMachine.Config(num_centres=12, num_trees=trees).build(GRAPH_READING, 1, 16)


def link_machine(built: models.LinkMachine) -> Iterator[object]:
    torch.manual_seed(0)
    places = torch.arange(30)
    edges = torch.stack([places, (places + 1) % 30])
    both = torch.cat([edges, edges.flip(0)], 1)
    pairs = torch.cat([edges.T, torch.stack([places, (places + 7) % 30], 1)])
    batch = models.GraphPairs(both, noise(30, built.num_features), pairs)
    built.fit([(batch, torch.tensor([1, 0]).repeat_interleave(30))], ClassTarget(names=("a", "b", "c")))
    yield built(batch)


def cloud_machine(built: models.CloudMachine) -> Iterator[object]:
    torch.manual_seed(0)
    count = built.reading.num_features
    batch = encoders.PointBatch(noise(12, 8, 3), noise(12, 8, count) if count else None)
    yield built.numbers(batch)
    built.fit([(batch, torch.arange(12) % 3)], ClassTarget(names=("a", "b", "c")))
    yield built(batch)


def of_graphs(built: tuple[models.NeighbourhoodBank, models.SignalModel]) -> Iterator[object]:
    yield from neighbourhood_bank(built[0])
    encoder = built[1].encoder
    assert isinstance(encoder, encoders.Graph)
    yield str(encoder)
    yield from graph_encoder(encoder)


def banks(built: tuple[models.FilterBank, models.SummaryBank]) -> Iterator[object]:
    yield from filter_bank(built[0])
    yield from summary_bank(built[1])


def ridge_head(built: models.RidgeHead) -> Iterator[object]:
    outputs, inputs = built.weight.shape
    target = ClassTarget(names=tuple(map(str, range(outputs))))
    yield built.fit(noise(7, inputs) + torch.arange(7)[:, None] % 2 * torch.arange(inputs), torch.arange(7) % 2, target)
    yield built.weight


def itnet_of_series(built: models.ITNet) -> Iterator[object]:
    yield built(SeriesBatch(noise(2, 6, 2), spacing=torch.full((2,), 0.5)))


def series_model(built: models.CKCNN) -> Iterator[object]:
    yield built(SeriesBatch(noise(2, 6, 2), spacing=torch.full((2,), 0.005)))


def field_model(built: models.FieldOperator | models.InContextRegressor) -> Iterator[object]:
    m = built.in_dim if isinstance(built, models.FieldOperator) else built.field.out_dim
    torch.manual_seed(3)
    placed = built(noise(2, 6, m), Points(noise(6, built.pos_dim)))
    yield from placed.sample(noise(5, built.pos_dim) * torch.linspace(0.5, 4, 5)[:, None])


def function_regression(built: models.FunctionRegression) -> Iterator[object]:
    config = built.config
    counts = [len(built.given_pos), len(built.target_pos)]
    pos = [
        None if isinstance(each, UnitGrid) else noise(count, config.pos_dim).sigmoid()
        for each, count in zip((config.given, config.target), counts, strict=True)
    ]
    inputs, targets = noise(3, counts[0], config.num_channels), noise(3, counts[1], config.num_outputs)
    built.fit(inputs, targets, given_pos=pos[0], target_pos=pos[1])
    yield from built.state_dict().values()
    queries = torch.linspace(0.01, 0.99, 4)[:, None].expand(-1, config.pos_dim)  # close to the border, and inside
    elsewhere = Points(queries, periodic=config.is_periodic)
    yield built(encoders.FunctionBatch(noise(2, 4, config.num_channels), elsewhere))


def blended_operator(built: models.BlendedOperator) -> Iterator[object]:
    built.fitted.fit(noise(4, 4, 1), noise(4, 4, 2))
    inputs = encoders.FunctionBatch(noise(2, 4, 1), Grid(4))
    for share in (0.0, 0.5, 1.0):
        built.share.fill_(share)
        yield built.eval()(inputs)


ON_LINE = UnitGrid((4,), (0.25,), (0.125,))


def line_regression(count: int) -> models.FunctionRegression:
    return models.FunctionRegression(
        models.FunctionRegression.Config(
            given=ON_LINE, target=ON_LINE, pos_dim=1, num_channels=1, num_outputs=2, num_functions=count
        )
    )


def function_network(depth: int) -> models.NeuralOperator:
    functions = encoders.Function(encoders.Function.Config(num_channels=1, pos_dim=1, num_frequencies=2), 4)
    kernel = models.SpectralConfig(num_waves_per_axis=1)
    return models.NeuralOperator(functions, 2, models.NeuralOperator.Config(embed_dim=4, depth=depth, kernel=kernel))


def sampling(built: models.Sampling) -> Iterator[object]:
    yield built.probabilities(noise(2, 7))


def on_patches(config: models.SignalModel.Config) -> models.SignalModel:
    encoder = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2)
    return config.build(encoders.Image(encoder, config.embed_dim), 3)


def itnet(**settings: Any) -> models.SignalModel:
    return on_patches(models.ITNet.Config(**settings))


def neural_operator(**settings: Any) -> models.SignalModel:
    return on_patches(models.NeuralOperator.Config(**settings))


def infvit(**settings: Any) -> models.InfViT:
    encoder = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2)
    return models.InfViT(encoders.Image(encoder, settings["embed_dim"]), 3, models.InfViT.Config(**settings))


def image_texts(num_images: int = 2) -> encoders.ImageTextBatch:
    return encoders.ImageTextBatch(noise(2, num_images, 1, 4, 6), torch.tensor([[1, 3, 2, 0], [1, 2, 0, 0]]))


def image_part(patch_size: int = 2, embed_dim: int = 4) -> encoders.Image:
    config = encoders.Image.Config(image_size=(4, 6), patch_size=patch_size, channels=1, num_frequencies=2, sigma=1.0)
    return encoders.Image(config, embed_dim)


def convolutional_part() -> encoders.ConvolutionalImage:
    return encoders.ConvolutionalImage(image_part().config, 4, depth=1)


def text_part(context: int = 6, embed_dim: int = 4) -> encoders.Text:
    return encoders.Text(5, embed_dim, context=context, pad=0, has_class_token=True)


def image_text_encoder(built: encoders.ImageText) -> Iterator[object]:
    u, domain = built(image_texts())
    yield from (u, domain.weights, domain.pos, built.has_class_token)


def table_row_encoder(built: encoders.TableRow) -> Iterator[object]:
    torch.manual_seed(3)
    numbers = torch.randn(2, built.num_numbers) if built.num_numbers else None
    categories = torch.tensor([[1, 0], [0, -1]])[:, : len(built.num_categories)] if built.num_categories else None
    yield built(encoders.TableRowBatch(numbers, categories))[0]


def joint_encoder(built: encoders.Joint) -> Iterator[object]:
    rows = encoders.TableRowBatch(noise(2, 2))
    u, domain = built({"notes": torch.tensor([[1, 3, 2, 0], [1, 2, 0, 0]]), "row": rows})
    yield from (u, domain.weights, domain.pos)


def joint_parts(context: int = 6) -> dict[str, encoders.Encoder]:
    return {"notes": text_part(context), "row": encoders.TableRow(2, (), 4)}


def two_streams(**settings: Any) -> models.TwoStream:
    channels = settings["embed_dim"]
    encoder = encoders.ImageText(image_part(embed_dim=channels), text_part(embed_dim=channels), num_images=2)
    return models.TwoStream(encoder, 3, models.TwoStream.Config(**settings))


def on_image_texts(built: Any) -> Iterator[object]:
    yield built(image_texts())


def points_network(config: type[Any]) -> Any:
    def make(**settings: Any) -> models.SignalModel:
        return config(**settings).build(encoders.PointCloud(encoders.PointCloud.Config(), settings["embed_dim"]), 3)

    return make


def on_points(built: Any) -> Iterator[object]:
    yield built(noise(2, 7, 3))


def graph_network(**settings: Any) -> models.MessagePassing:
    config = models.MessagePassing.Config(**settings)
    return models.MessagePassing(encoders.Graph(3, config.embed_dim, 2), 3, config)


def on_a_graph(built: Any) -> Iterator[object]:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]).expand(2, -1, -1)
    yield built(encoders.GraphBatch(noise(2, 4, 3), edges, noise(2, 4, 2)))


def ckcnn(**settings: Any) -> models.CKCNN:
    return models.CKCNN(encoders.Series(2, spacing=0.01), 3, models.CKCNN.Config(**settings), extent=0.05)


def field_operator(**settings: Any) -> models.FieldOperator:
    config = models.FieldOperator.Config(**settings)
    return models.FieldOperator(2, fields.SIREN(2, width=4, omega_0=3.0), fields.Rotational(), config)


def off(kind: type[KernelInputs] | type[PointInputs], *names: str) -> Any:
    return kind(**dict.fromkeys(names, False))


ATTENTION = {"embed_dim": 8, "num_heads": 2}
ATTENTIONS: dict[str, tuple[Any, ...]] = {
    "embed_dim": (4,),
    "num_heads": (4,),
    "num_kv_heads": (1,),
    "bias": SWITCH,
    "is_causal": SWITCH,
}
ADDITIVE = {"embed_dim": (4,), "num_heads": (4,), "negative_slope": (0.5,)}
DISCOUNTED: dict[str, tuple[Any, ...]] = {"gamma": (0.3, (0.2, 0.4)), "learn_gamma": SWITCH}
NOWHERE: dict[str, Any] = {
    "inputs": off(KernelInputs, "query_position", "key_position", "relative_position"),
    "num_frequencies": 64,
    "sigma": 10.0,
}
PERCEPTRON: dict[str, Any] = {
    "embed_dim": 4,
    "num_heads": 2,
    "pos_dim": 1,
    "width": 3,
    "num_frequencies": 2,
    "sigma": 1.0,
}
PERCEPTRONS: dict[str, tuple[Any, ...]] = {
    "embed_dim": (8,),
    "num_heads": (1,),
    "pos_dim": (2,),
    "width": (4,),
    "activation": ("gelu", "gelu_tanh", "relu"),
    "num_frequencies": (3, 5),
    "sigma": (2.0,),
    "head_shared": SWITCH,
    "is_causal": SWITCH,
    "epsilon": (0.5,),
}
OF_POINTS = tuple(off(PointInputs, field.name) for field in dataclasses.fields(PointInputs))
CELL = {"in_dim": 3, "state_dim": 2}
CELLS: dict[str, tuple[Any, ...]] = {"in_dim": (2,), "state_dim": (3,), "bias": SWITCH}
STEPS: dict[str, tuple[Any, ...]] = {"min_step": (1e-2,), "max_step": (0.2,), "feedthrough": SWITCH}

KERNELS = [
    Subject(
        kernels.MLP,
        PERCEPTRON,
        PERCEPTRONS
        | {"depth": (3,), "inputs": tuple(off(KernelInputs, field.name) for field in dataclasses.fields(KernelInputs))}
        | {"causal_measure": ("past", "total"), "edge_dim": (2,)},
        perceptron,
        modes={
            "causal": {"is_causal": True},
            "raw coordinates": RAW,
            "no positions": NOWHERE,
        },
    ),
    *(
        Subject(
            of,
            PERCEPTRON | more,
            PERCEPTRONS | {"inputs": OF_POINTS} | others,
            kernel,
            modes={
                "raw coordinates": RAW,
                "no positions": NOWHERE | {"inputs": off(PointInputs, "query_position", "key_position")},
            },
        )
        for of, more, others in (
            (kernels.LowRankMLP, {"rank": 2}, {"rank": (3,), "constant": SWITCH}),
            (kernels.SeparableMLP, {}, {}),
        )
    ),
    Subject(
        FeaturePair,
        PERCEPTRON | {"name": "one", "activation": "gelu", "inputs": PointInputs(), "head_shared": False},
        {name: values for name, values in PERCEPTRONS.items() if name not in ("embed_dim", "is_causal", "epsilon")}
        | {"name": ("two",), "inputs": OF_POINTS, "embed_dim": (8,)},
        lifted,
    ),
    Subject(
        PointFeatures,
        {"kernels": 2, "width": 3, "lifted_dim": 4, "content_dim": 2, "activation": "gelu"},
        {"kernels": (1,), "width": (2,), "lifted_dim": (0,), "content_dim": (0,), "activation": ("relu",)},
        on_features,
    ),
    Subject(
        kernels.Rotary,
        {},
        {"base": (10.0,), "stretch": (2.0,), "trained_context": (64,), "band": ((0.1, 0.5),)},
        lambda built: [built.frequencies(8)],
        modes={"stretched": {"stretch": 8.0}, "by a band": {"stretch": 8.0, "trained_context": 4}},
    ),
    Subject(
        kernels.Attention,
        ATTENTION,
        ATTENTIONS | {"kdim": (3,), "vdim": (3,), "scale": (0.3,), "rotary": (kernels.Rotary(10.0),)},
        kernel,
    ),
    Subject(
        kernels.LinearAttention,
        ATTENTION,
        ATTENTIONS | {"feature_map": (torch.relu,), "rotary": (kernels.Rotary(10.0),)},
        kernel,
    ),
    Subject(
        kernels.UnnormalisedAttention,
        ATTENTION,
        {"embed_dim": (8,), "num_heads": (4,), "kdim": (3,), "vdim": (3,), "head_dim": (3,), "value_head_dim": (3,)}
        | {"is_causal": SWITCH},
        kernel,
    ),
    Subject(
        kernels.InfiniteAttention,
        ATTENTION,
        ATTENTIONS
        | DISCOUNTED
        | {"form": ("hop",), "activation": ("relu", "gelu", "abs"), "normaliser": ("rows",), "scale": (0.3,)},
        kernel,
        modes={
            "hop": {"form": "hop"},
            "gelu": {"activation": "gelu"},
            "causal hop of rows": {"form": "hop", "is_causal": True, "normaliser": "rows"},
        },
    ),
    Subject(
        kernels.FactorisedInfiniteAttention,
        ATTENTION,
        ATTENTIONS | DISCOUNTED | {"feature_map": (torch.relu,), "normaliser": ("rows",)},
        kernel,
        modes={"causal": {"is_causal": True}},
    ),
    Subject(
        kernels.LinearInfiniteAttention,
        ATTENTION,
        {name: values for name, values in ATTENTIONS.items() if name != "num_kv_heads"}
        | {"num_central": (2,), "power_steps": (2,), "gamma": (0.3, 0.5), "learn_gamma": SWITCH},
        kernel,
        modes={"discounted": {"gamma": 0.5}},
    ),
    Subject(
        kernels.Yat,
        {"dim": 3, "value_dim": 2},
        {"dim": (2,), "value_dim": (3,), "reads_bias": SWITCH, "num_units": (5,), "epsilon": (0.5,)}
        | {"learn_epsilon": SWITCH, "normaliser": (kernels.Softmax(), kernels.Softermax(power=2.0))},
        kernel,
    ),
    Subject(
        kernels.YatAttention,
        ATTENTION,
        ATTENTIONS
        | {"normaliser": (kernels.Softermax(), kernels.SoftTanh()), "epsilon": (0.5,), "learn_epsilon": SWITCH}
        | {"rotary": (kernels.Rotary(10.0),), "score_gain": (0.3,)},
        kernel,
        modes={"rotary": {"rotary": kernels.Rotary(100.0)}},
    ),
    Subject(
        kernels.Convolution,
        {"in_dim": 4, "out_dim": 4, "kernel_size": 3, "padding": 1},
        {"in_dim": (2,), "out_dim": (2,), "kernel_size": (2,), "pos_dim": (2,), "stride": (2,), "padding": (0, "valid")}
        | {"dilation": (2,), "groups": (2,), "padding_mode": ("reflect", "circular"), "transposed": SWITCH}
        | {"output_padding": (1,), "standardised": SWITCH},
        lattice,
        modes={"transposed": {"transposed": True, "stride": 2}},
    ),
    Subject(
        kernels.SpectralConvolution,
        {"in_dim": 4, "out_dim": 4, "pos_dim": 1, "num_waves_per_axis": 2},
        {"in_dim": (2,), "out_dim": (2,), "pos_dim": (2,), "num_waves_per_axis": (0, 3), "period": (2.0,)}
        | {"groups": (2,)},
        kernel,
    ),
    Subject(
        kernels.ContinuousConvolution,
        {"in_dim": 4, "out_dim": 4, "width": 3, "spacing": 0.05, "is_causal": True, "layer_norm": False},
        {"in_dim": (2,), "out_dim": (2,), "pos_dim": (2,), "groups": (2,), "is_causal": SWITCH, "horizon": (0.5,)}
        | {"scale": (2.0,), "spacing": (0.02, None), "num_samples": (50,), "width": (4,), "omega_0": (5.0,)}
        | {"activation": ("sine", "relu", "leaky_relu", "swish"), "learn_omega_0": SWITCH, "spread_bias": SWITCH}
        | {"layer_norm": SWITCH, "weight_dropout": (0.5,), "smoothing": SWITCH},
        continuous,
        modes={
            "horizon": {"horizon": 0.5},
            "centred": {"is_causal": False},
            "plane": {"pos_dim": 2, "is_causal": False, "spacing": 0.9},
            "relu": {"activation": "relu", "layer_norm": True},
            "counted": {"num_samples": 100},
            "smoothed": {"smoothing": True},
        },
    ),
    Subject(
        KernelNetwork,
        {"width": 3, "layer_norm": False},
        {"pos_dim": (2,), "width": (4,), "activation": ("sine", "relu", "leaky_relu", "swish"), "omega_0": (5.0,)}
        | {"learn_omega_0": SWITCH, "spread_bias": SWITCH, "layer_norm": SWITCH},
        network,
        modes={"swish": {"activation": "swish", "layer_norm": True}},
    ),
    Subject(kernels.RNN, CELL, CELLS | {"nonlinearity": ("relu",)}, kernel),
    Subject(kernels.LSTM, CELL, CELLS, kernel),
    Subject(kernels.GRU, CELL, CELLS, kernel),
    Subject(kernels.LinearRNN, CELL, CELLS | {"out_dim": (2,), "feedthrough": SWITCH}, kernel),
    Subject(
        kernels.LinearSystem,
        CELL,
        {"in_dim": (2,), "state_dim": (3,), "out_dim": (2,), "rule": ("euler", "bilinear"), "step_size": (0.5,)}
        | {"first_step": (0.5,), "feedthrough": SWITCH},
        linear_system,
    ),
    Subject(
        kernels.DiagonalStateSpace,
        {"in_dim": 2, "state_dim": 4},
        STEPS | {"in_dim": (3,), "state_dim": (6,), "rule": ("bilinear",), "start": ("lin", "inv")},
        kernel,
    ),
    Subject(
        kernels.SelectiveStateSpace,
        {"in_dim": 2, "state_dim": 4},
        STEPS | {"in_dim": (3,), "state_dim": (6,), "rank": (2,), "input_rule": ("zoh",)},
        kernel,
    ),
    Subject(kernels.AdditiveAttention, ATTENTION, ADDITIVE, kernel),
    Subject(kernels.Constant, {"in_dim": 2, "out_dim": 3}, {"in_dim": (3,), "out_dim": (2,)}, kernel),
    Subject(
        kernels.Diffusion,
        {"dim": 2},
        {"dim": (3,), "gamma": (0.5,), "num_steps": (2,)},
        graph_kernel,
    ),
    Subject(
        kernels.OnEdges,
        {"kernel": Made(lambda: kernels.Constant(3, 2))},
        {
            "kernel": (Made(lambda: kernels.Constant(3, 4)),),
            "long_range": (None, 0.5),
            "edge_mass": ("sum", "symmetric", "measure"),
        },
        graph_kernel,
    ),
    Subject(kernels.Pointwise, {"in_dim": 2, "out_dim": 3}, {"in_dim": (3,), "out_dim": (2,)}, kernel),
    Subject(
        kernels.Scaled,
        {"kernel": Made(lambda: kernels.RNN(3, 2))},
        {"kernel": (Made(lambda: kernels.GRU(3, 2)),), "gate": (0.5,)},
        kernel,
    ),
    Subject(
        kernels.Sum,
        {"terms": Made(lambda: [kernels.RNN(3, 2)])},
        {"terms": (Made(lambda: [kernels.RNN(3, 2), kernels.GRU(3, 2)]),)},
        kernel,
    ),
    Subject(
        Discount,
        {"gamma": 0.7, "num_heads": 2},
        {"gamma": (0.3,), "num_heads": (3,), "learned": SWITCH},
        at_no_input,
    ),
    Subject(
        kernels.HeadProjections,
        {"query_dim": 4, "key_dim": 4, "value_dim": 4, "num_heads": 2, "num_kv_heads": 2, "head_dim": 2},
        {
            "query_dim": (6,),
            "key_dim": (6,),
            "value_dim": (6,),
            "num_heads": (4,),
            "num_kv_heads": (1,),
            "head_dim": (3,),
            "separate_values": SWITCH,
            "bias": SWITCH,
        },
        projected,
    ),
    Subject(Softening, {"epsilon": 0.1}, {"epsilon": (0.3,), "learned": SWITCH}, at_no_input),
    Subject(UnitScale, {"num_units": 5}, {"num_units": (7,)}, at_no_input),
    Subject(
        WeightNormalised,
        {"weight": noise(3, 2), "bias": torch.zeros(3)},
        {"weight": (2 * noise(3, 2),), "bias": (torch.ones(3),)},
        lambda built: [built(noise(4, 2))],
    ),
    Subject(kernels.Softermax, {}, {"power": (2.0,), "epsilon": (0.5,)}, normaliser),
    Subject(kernels.SoftSigmoid, {}, {"power": (2.0,)}, normaliser),
    Subject(kernels.SoftTanh, {}, {"power": (2.0,)}, normaliser),
    Subject(
        KernelInputs,
        {},
        {field.name: (False,) for field in dataclasses.fields(KernelInputs)},
        kernel,
        make=lambda **read: kernels.MLP(**PERCEPTRON, inputs=KernelInputs(**read)),
    ),
    Subject(
        PointInputs,
        {},
        {field.name: (False,) for field in dataclasses.fields(PointInputs)},
        kernel,
        make=lambda **read: kernels.SeparableMLP(**PERCEPTRON, inputs=PointInputs(**read)),
    ),
]

PROPOSAL = {"embed_dim": 4, "pos_dim": 2, "width": 3, "harmonics": 1}
PROPOSALS: dict[str, tuple[Any, ...]] = {"embed_dim": (3,), "pos_dim": (1,), "width": (4,), "harmonics": (2,)}


def key_proposal() -> quadrature.KeyProposal:
    """A key proposal with random, nonzero weights."""
    built = quadrature.KeyProposal(4, 2, 2)
    torch.nn.init.normal_(built.readout.weight)
    return built


def pair_proposal() -> quadrature.PairProposal:
    built = quadrature.PairProposal(4, 2)
    torch.nn.init.normal_(built.query.weight)
    return built


QUADRATURES = [
    Subject(quadrature.Anchors, {"num_nodes": 4}, {"num_nodes": (3,), "iterations": (0,)}, integral),
    Subject(
        quadrature.Neighbourhood,
        {"radius": 0.4},
        {"radius": (0.6, None), "num_neighbours": (2,), "normalise": SWITCH},
        integral,
        modes={"nearest": {"radius": None, "num_neighbours": 3}},
    ),
    Subject(
        quadrature.MonteCarlo,
        {"num_samples": 4},
        {"num_samples": (3,), "proposal": (Made(key_proposal), Made(pair_proposal)), "per_query": SWITCH}
        | {"draw": ("stratified", "quasi_random"), "uniform_share": (0.5,), "loss_weight": (0.0, 1.0)}
        | {"at_evaluation": ("draws", quadrature.Full()), "num_targets": (2,)},
        integral,
        modes={
            "key proposal": {"proposal": Made(key_proposal)},
            "pair proposal": {"proposal": Made(pair_proposal)},
            "nothing learned": {"proposal": Made(key_proposal), "loss_weight": 0.0},
            "own nodes": {"per_query": True},
        },
    ),
    Subject(quadrature.KeyProposal, PROPOSAL, PROPOSALS | {"num_heads": (2,)}, logits),
    Subject(quadrature.PairProposal, PROPOSAL, PROPOSALS | {"query_dim": (3,), "rank": (4,)}, logits),
]

IMAGES: dict[str, Any] = {"image_size": (4, 6), "patch_size": 2, "channels": 1, "num_frequencies": 2, "sigma": 1.0}
FUNCTIONS: dict[str, Any] = {"num_channels": 1, "pos_dim": 1, "num_frequencies": 2}
SCALES: dict[str, Any] = {name: value for name, value in IMAGES.items() if name != "patch_size"} | {
    "patch_sizes": (1, 2)
}
CLOUDS: dict[str, Any] = {"num_features": 2, "num_frequencies": 3, "num_neighbours": 3}
ENCODERS = [
    Subject(
        encoders.Image.Config,
        IMAGES,
        {"image_size": ((8, 6),), "patch_size": ((2, 3),), "channels": (2,), "any_size": SWITCH}
        | {"num_frequencies": (3,), "sigma": (2.0,)},
        image_encoder,
        make=lambda **settings: encoders.Image(encoders.Image.Config(**settings), 4),
        modes={"any size": {"any_size": True}, "no frequencies": RAW},
    ),
    Subject(
        encoders.Image,
        {"config": encoders.Image.Config(**IMAGES), "embed_dim": 4},
        {"config": (dataclasses.replace(encoders.Image.Config(**IMAGES), sigma=2.0),), "embed_dim": (3,)},
        image_encoder,
    ),
    Subject(
        encoders.ConvolutionalImage,
        {"config": encoders.Image.Config(**IMAGES), "embed_dim": 4},
        {"config": (dataclasses.replace(encoders.Image.Config(**IMAGES), sigma=2.0),), "embed_dim": (3,)}
        | {"depth": (0, 2)},
        image_encoder,
    ),
    Subject(
        encoders.ImagePyramid,
        {"config": encoders.Image.Config(**IMAGES), "embed_dim": 4},
        {"config": (dataclasses.replace(encoders.Image.Config(**IMAGES), sigma=2.0),), "embed_dim": (3,)}
        | {"depth": (0, 2)},
        image_encoder,
    ),
    Subject(
        encoders.Function.Config,
        FUNCTIONS,
        {"num_channels": (2,), "pos_dim": (2,), "is_periodic": SWITCH, "num_frequencies": (3,), "sigma": (2.0,)}
        | {"num_neighbours": (3,)},
        function_encoder,
        make=lambda **settings: encoders.Function(encoders.Function.Config(**settings), 4),
        modes={"no frequencies": {"num_frequencies": 0}, "a torus": {"is_periodic": True}},
    ),
    Subject(
        encoders.Function,
        {"config": encoders.Function.Config(**FUNCTIONS), "embed_dim": 4},
        {"config": (dataclasses.replace(encoders.Function.Config(**FUNCTIONS), sigma=2.0),), "embed_dim": (3,)},
        function_encoder,
    ),
    Subject(
        encoders.MultiScaleImage.Config,
        SCALES,
        {
            "image_size": ((8, 6),),
            "patch_sizes": ((1, 2), (2,)),
            "balanced": SWITCH,
            "channels": (2,),
            "any_size": SWITCH,
        }
        | {"num_frequencies": (3,), "sigma": (2.0,)},
        scales_encoder,
        make=lambda **settings: encoders.MultiScaleImage(encoders.MultiScaleImage.Config(**settings), 4),
        modes={"any size": {"any_size": True}, "no frequencies": RAW},
    ),
    Subject(
        encoders.MultiScaleImage,
        {"config": encoders.MultiScaleImage.Config(**SCALES), "embed_dim": 4},
        {"config": (dataclasses.replace(encoders.MultiScaleImage.Config(**SCALES), sigma=2.0),), "embed_dim": (3,)},
        scales_encoder,
    ),
    Subject(
        encoders.PointCloud.Config,
        CLOUDS,
        {"num_features": (0, 3), "normalise": SWITCH, "num_frequencies": (4,), "sigma": (2.0,)}
        | {"num_neighbours": (0, 4), "num_centres": (5,)},
        point_encoder,
        make=lambda **settings: encoders.PointCloud(encoders.PointCloud.Config(**settings), 4),
        modes={"no frequencies": {"num_frequencies": 0}, "nothing local": {"num_neighbours": 0}},
    ),
    Subject(
        encoders.PointCloud,
        {"config": encoders.PointCloud.Config(**CLOUDS), "embed_dim": 4},
        {"config": (dataclasses.replace(encoders.PointCloud.Config(**CLOUDS), sigma=2.0),), "embed_dim": (3,)},
        point_encoder,
    ),
    Subject(
        encoders.Graph,
        {"features": 3, "embed_dim": 4, "pos_dim": 2},
        {"features": (2,), "embed_dim": (None, 3), "pos_dim": (3,), "edge_dim": (2,), "adds_positions": SWITCH}
        | {"feature_dropout": (0.5,)},
        graph_encoder,
    ),
    Subject(
        encoders.ImageText,
        {"image": Made(image_part), "text": Made(text_part), "num_images": 2},
        {
            "image": (None, Made(lambda: image_part(1)), Made(convolutional_part)),
            "text": (None, Made(lambda: text_part(7))),
            "num_images": (1,),
        }
        | {"measure": ("uniform", "image-heavy", "text-heavy", "even")},
        image_text_encoder,
    ),
    Subject(
        encoders.Joint,
        {"encoders": Made(joint_parts)},
        {"encoders": (Made(lambda: joint_parts(7)),), "mass": ({"notes": 1.0, "row": 3.0},)},
        joint_encoder,
    ),
    Subject(
        encoders.TableRow,
        {"num_numbers": 2, "num_categories": (3, 2), "embed_dim": 4},
        {"num_numbers": (3, 0), "num_categories": ((3,), (4, 2), ()), "embed_dim": (3,), "num_frequencies": (4,)}
        | {"sigma": (2.0,)},
        table_row_encoder,
        modes={"linear": {"num_frequencies": 0}, "categories": {"num_numbers": 0}},
    ),
    Subject(
        encoders.Series,
        {"channels": 2},
        {"channels": (3,), "embed_dim": (2,), "spacing": (0.5,), "extent": (3.0,)},
        series_encoder,
        modes={"unit": {"extent": 2.0}},
    ),
    Subject(
        encoders.SeriesPyramid,
        {"channels": 2, "embed_dim": 4, "strides": (2,)},
        {"channels": (3,), "embed_dim": (3,), "strides": ((3,), (2, 2)), "depth": (0, 2), "spacing": (0.5,)},
        series_encoder,
    ),
    Subject(
        encoders.Text,
        {"vocab_size": 5, "embed_dim": 3},
        {"vocab_size": (6,), "embed_dim": (2,), "std": (1.0,), "context": (8,), "num_frequencies": (2,)}
        | {"sigma": (2.0,), "pad": (3,), "separator": (1,), "has_class_token": SWITCH},
        text_encoder,
        modes={"positions": {"context": 5, "num_frequencies": 3}},
    ),
]

RATES: dict[str, tuple[Any, ...]] = {"dropout": (0.5,), "output_gain": (0.5,), "expansion": (2,)}
YAT_UNITS: dict[str, tuple[Any, ...]] = {"bias": SWITCH, "epsilon": (0.5,), "learn_epsilon": SWITCH, "scale": SWITCH}


def operator(size: int = 4) -> IntegralOperator:
    return IntegralOperator(kernels.Attention(size, 2), residual=False)


BLOCKS = [
    Subject(
        blocks.ResidualBlock,
        {"operator": Made(operator), "feed_forward": Made(lambda: blocks.FeedForward(4))},
        {"operator": (Made(lambda: IntegralOperator(kernels.LinearAttention(4, 2))),)}
        | {"feed_forward": (Made(lambda: blocks.GatedFeedForward(4)),), "norm": (torch.nn.RMSNorm, None)}
        | {"norm_first": SWITCH, "branch_scale": (0.1,), "dropout": (0.5,), "feed_forward_dropout": (0.5,)}
        | {"drop_path": (0.5,)},
        on_signal,
        modes={"no norms": {"norm": None}},
    ),
    Subject(
        blocks.NeuralOperatorBlock,
        {"operator": Made(operator)},
        {"operator": (Made(lambda: IntegralOperator(kernels.LinearAttention(4, 2))),), "is_last": SWITCH}
        | {"feed_forward": (Made(lambda: blocks.FeedForward(4)),)},
        on_signal,
    ),
    Subject(
        blocks.DiscountedBlock,
        {"kernel": Made(lambda: kernels.Attention(4, 2)), "embed_dim": 4},
        RATES | {"kernel": (Made(lambda: kernels.LinearAttention(4, 2)),), "embed_dim": (8,), "drop_path": (0.5,)},
        discounted,
    ),
    Subject(
        blocks.PostNormBlock,
        {"first": Made(operator), "second": Made(operator)},
        {"first": (Made(lambda: IntegralOperator(kernels.RNN(4, 4))),), "dropout": (0.5,)}
        | {"second": (Made(lambda: IntegralOperator(kernels.RNN(4, 4))),)},
        on_signal,
    ),
    Subject(
        blocks.FeedForward,
        {"embed_dim": 4},
        RATES | {"embed_dim": (3,), "activation": ("gelu_tanh", "relu", "silu"), "bias": SWITCH},
        pointwise,
    ),
    Subject(
        blocks.GatedFeedForward,
        {"embed_dim": 4},
        RATES | {"embed_dim": (3,), "activation": ("gelu", "gelu_tanh", "relu"), "bias": SWITCH},
        pointwise,
    ),
    Subject(blocks.YatFeedForward, {"embed_dim": 4}, RATES | YAT_UNITS | {"embed_dim": (3,)}, pointwise),
    Subject(
        blocks.MambaBlock,
        {"embed_dim": 4, "state_dim": 3},
        {"embed_dim": (2,), "expand": (1,), "state_dim": (2,), "conv_width": (2,)}
        | {"kernel": (Made(lambda: kernels.SelectiveStateSpace(8, 16)),)},
        on_signal,
        modes={"kernel": {"kernel": Made(lambda: kernels.SelectiveStateSpace(8, 5)), "state_dim": 16}},
    ),
    Subject(blocks.ShortConvolution, {"channels": 2, "width": 3}, {"channels": (3,), "width": (2,)}, short),
    Subject(blocks.StochasticDepth, {"probability": 0.5}, {"probability": (0.1,)}, pointwise),
    Subject(
        blocks.YatConvBlock,
        {"conv": Made(lambda: layers.YatConv1d(4, 3, 3, padding=1)), "out_channels": 4},
        {"conv": (Made(lambda: layers.YatConv1d(4, 2, 3, padding=1)),), "out_channels": (3,), "residual": SWITCH}
        | {"output_gain": (0.5,), "bias": SWITCH},
        yat_image,
    ),
]

OPERATORS = [
    Subject(
        IntegralOperator,
        {"kernel": Made(lambda: kernels.Attention(4, 2))},
        {"kernel": (Made(lambda: kernels.LinearAttention(4, 2)),), "evaluation": (Dense(max_bytes=1),)}
        | {"quadrature": (Made(lambda: quadrature.MonteCarlo(2)),), "residual": SWITCH, "bias": SWITCH}
        | {"output_projection": SWITCH, "output_gain": (0.5,)},
        on_signal,
        modes={"no projection": {"output_projection": False}},
    ),
    Subject(
        layers.YatDense,
        {"in_features": 4, "out_features": 3},
        YAT_UNITS | {"in_features": (3,), "out_features": (2,)},
        pointwise,
    ),
    Subject(
        layers.YatClassifier,
        {"in_features": (2, 3), "num_classes": 3},
        YAT_UNITS | {"in_features": (6,), "num_classes": (2,)},
        classifier,
    ),
    *(
        Subject(
            of,
            {"in_channels": 4, "out_channels": 2, "kernel_size": 3},
            YAT_UNITS
            | {"in_channels": (2,), "out_channels": (4,), "kernel_size": (2,), "stride": (2,)}
            | {"padding": (1, "same"), "dilation": (2,), "groups": (2,)},
            yat_image,
        )
        for of in (layers.YatConv1d, layers.YatConv2d, layers.YatConv3d)
    ),
]

SUM_OF_SINES: dict[str, tuple[Any, ...]] = {"pos_dim": (1,), "out_dim": (2,), "num_terms": (5,), "sigma": (2.0,)}
SIGNS: dict[str, tuple[Any, ...]] = {"proper": SWITCH, "average": SWITCH, "tolerance": (0.9,)}
FIELDS = [
    Subject(
        fields.SIREN,
        {"pos_dim": 2, "width": 4},
        {"pos_dim": (1,), "out_dim": (2,), "width": (3,), "depth": (2,), "omega_0": (5.0,)},
        field,
    ),
    Subject(fields.SinusoidalField, {"pos_dim": 2, "num_terms": 4}, SUM_OF_SINES, field),
    Subject(fields.FreeSinusoidalField, {"pos_dim": 2, "num_terms": 4}, SUM_OF_SINES, field),
    Subject(
        fields.SplinedField,
        {"field": Made(lambda: fields.SinusoidalField(2, num_terms=4)), "num_nodes": 3},
        {"field": (Made(lambda: fields.SinusoidalField(2, num_terms=3)),), "num_nodes": (4,)}
        | {"radial": (fields.Radial(name="gaussian", length=1.0),)},
        field,
    ),
    Subject(
        fields.Radial,
        {"name": "matern52", "length": 1.0},
        {"name": ("exponential", "matern32", "gaussian"), "length": (2.0,)},
        radial,
        modes={"cubic": {"name": "cubic", "length": None}},
    ),
    Subject(fields.Rotational, {}, SIGNS, frame, modes={"averaged": {"average": True}}),
    Subject(fields.Affine, {}, SIGNS, frame, modes={"averaged": {"average": True}}),
    Subject(fields.Diagonal, {}, {"tolerance": (0.5,)}, frame),
    Subject(fields.Periodic, {}, {"tolerance": (0.9,)}, frame),
]

STACK = {"embed_dim": 3, "depth": 1, "kernel_width": 3}
STACKS: dict[str, tuple[Any, ...]] = {
    "embed_dim": (4,),
    "depth": (2,),
    "kernel_width": (4,),
    "activation": ("sine", "relu", "leaky_relu", "swish"),
    "omega_0": (5.0,),
    "learn_omega_0": SWITCH,
    "horizon": (0.03,),
    "is_causal": SWITCH,
    "smoothing": SWITCH,
    "dropout": (0.5,),
    "input_dropout": (0.5,),
    "weight_dropout": (0.5,),
    "pool": ("last", "mean", "none"),
}
STACK_MODES = {"relu": {"activation": "relu"}, "horizon": {"horizon": 0.05}}
LANGUAGE = {"embed_dim": 8, "depth": 1, "num_heads": 2}
LANGUAGES: dict[str, tuple[Any, ...]] = {
    "embed_dim": (16,),
    "depth": (2,),
    "num_heads": (4,),
    "expansion": (2,),
    "positions": ("rotary",),
    "dropout": (0.5,),
}
VISION: dict[str, tuple[Any, ...]] = {
    "embed_dim": (8,),
    "depth": (1,),
    "num_heads": (1,),
    "expansion": (2,),
    "dropout": (0.5,),
    "drop_path": (0.5,),
    "pool": ("cls", "mean"),
}
SMALL_MLP = models.MLPConfig(width=3, num_frequencies=2, sigma=1.0)
SOME_PERCEPTRON: dict[str, Any] = {"width": 3, "num_frequencies": 2, "sigma": 1.0, "epsilon": 1.0}
OTHER_PERCEPTRON: dict[str, tuple[Any, ...]] = {
    name: PERCEPTRONS[name] for name in ("width", "activation", "num_frequencies", "sigma", "head_shared", "epsilon")
}
OF_PAIRS = tuple(off(KernelInputs, field.name) for field in dataclasses.fields(KernelInputs))
KERNEL_CONFIGS = [
    Subject(
        models.MLPConfig,
        SOME_PERCEPTRON,
        OTHER_PERCEPTRON | {"depth": (3,), "inputs": OF_PAIRS},
        kernel_of,
        modes={"raw coordinates": RAW, "no positions": NOWHERE},
    ),
    Subject(
        models.LowRankConfig,
        SOME_PERCEPTRON | {"rank": 2},
        OTHER_PERCEPTRON | {"rank": (3,), "inputs": OF_POINTS},
        kernel_of,
    ),
    Subject(models.SeparableConfig, SOME_PERCEPTRON, OTHER_PERCEPTRON | {"inputs": OF_POINTS}, kernel_of),
    Subject(models.AttentionConfig, {}, {"num_kv_heads": (1,)}, kernel_of),
    Subject(models.LinearAttentionConfig, {}, {"num_kv_heads": (1,)}, kernel_of),
    Subject(models.YatConfig, {}, {"epsilon": (1.0,), "learn_epsilon": SWITCH, "score_gain": (1.0,)}, kernel_of),
    Subject(
        models.InfiniteConfig,
        {},
        {"kind": ("factorised", "linear"), "gamma": (0.3,), "learn_gamma": SWITCH},
        kernel_of,
    ),
    Subject(models.ConvolutionConfig, {}, {"kernel_size": (5,), "depthwise": SWITCH}, kernel_of),
    Subject(
        models.ContinuousConvolutionConfig,
        {},
        {"width": (8,), "omega_0": (10.0,), "horizon": (0.5,), "depthwise": SWITCH},
        kernel_of,
    ),
    Subject(models.SpectralConfig, {}, {"num_waves_per_axis": (2,), "period": (2.0, (0.5,))}, kernel_of),
    Subject(models.RecurrenceConfig, {}, {"kind": ("lstm", "gru"), "state_dim": (3,)}, kernel_of),
    Subject(
        models.OnEdgesConfig,
        {"kernel": models.ConstantConfig()},
        {"kernel": (models.AttentionConfig(),), "long_range": (None, 0.5), "edge_mass": ("sum", "measure")},
        on_edges_of,
    ),
    Subject(models.AdditiveAttentionConfig, {}, {"negative_slope": (0.5,)}, kernel_of),
    Subject(
        models.SumConfig,
        {"first": SMALL_MLP},
        {"first": (models.AttentionConfig(),), "second": (models.LinearAttentionConfig(),)},
        kernel_of,
    ),
]
TOKEN_STACK = models.ITNet.Config(embed_dim=4, depth=1, num_heads=2, kernel=models.LowRankConfig(rank=2), dropout=0.0)
OTHER_TOKEN_STACK: dict[str, tuple[Any, ...]] = {
    "stack": (dataclasses.replace(TOKEN_STACK, depth=2),),
    "position_frequencies": (3,),
    "position_sigma": (2.0,),
}
SPELLING = ("", " ", " ", " a", "b", " ab", " c", "ca", " bc")
TOKEN_READING = models.TokenReading(vocab_size=9, context=8, pad=0, separator=2, spelling=SPELLING)
TEXTS = models.NGramBank.Config(num_grams=50, num_letter_grams=50)
PICTURES = {"num_images": 1, "channels": 1, "image_size": (9, 8)}
FILTERS = models.FilterBank.Config(num_thresholds=2, num_groups=2)
RECORDED: dict[str, Any] = {"series": (models.SeriesSampling(channels=2, spacing=1.0, extent=6.0),)}
TABLE_READING = models.TableReading(
    num_numbers=2, num_categories=(3,), num_texts=1, text=TOKEN_READING, **PICTURES, **RECORDED
)
PATCHES = models.ImageBank.Config(num_filters=4)
GRAPH_READING = models.GraphReading(features=3, pos_dim=2)
SERIES = models.SeriesSampling(channels=2, spacing=0.01, extent=0.05)
SOME_ITNET = models.ITNet.Config(embed_dim=4, depth=1, num_heads=2, kernel=models.AttentionConfig(), pool="mean")
SOME_BERT = models.Bert.Config(embed_dim=8, depth=1, num_heads=2, head="none")
SOME_MASKED_BERT = dataclasses.replace(SOME_BERT, head="tokens")
SOME_STACK = models.ContinuousStack.Config(embed_dim=3, depth=1, kernel_width=3, pool="none")
MODELS = [
    Subject(
        models.ITNet.Config,
        {"embed_dim": 4, "depth": 2, "num_heads": 2, "kernel": SMALL_MLP, "dropout": 0.0, "drop_path": 0.0},
        VISION
        | {
            "kernel": (models.LowRankConfig(rank=2), models.AttentionConfig()),
            "num_samples": (2,),
            "pool": ("cls", "mean", "max", "none"),
            "diffusion": (0.5,),
        },
        on_image,
        make=itnet,
        modes={"no heads": {"num_heads": None, "kernel": models.ConstantConfig()}},
    ),
    Subject(
        models.NeuralOperator.Config,
        {"embed_dim": 4, "depth": 2, "num_heads": 2, "kernel": SMALL_MLP},
        {"embed_dim": (8,), "depth": (1,), "num_heads": (1,), "expansion": (2,), "perceptron_expansion": (2, None)}
        | {"kernel": (models.SpectralConfig(num_waves_per_axis=2),), "pool": ("none", "mean", "max")},
        on_image,
        make=neural_operator,
        modes={"no heads": {"num_heads": None, "kernel": models.ConstantConfig()}},
    ),
    *KERNEL_CONFIGS,
    Subject(
        models.ITNetLanguageModel.Config,
        {"stack": TOKEN_STACK},
        OTHER_TOKEN_STACK,
        tokens,
        make=lambda **settings: models.ITNetLanguageModel.Config(**settings).build(7, 8).eval(),
        modes={"no positions": {"position_frequencies": 0, "position_sigma": 10.0}},
    ),
    Subject(
        models.ITNetMaskedModel.Config,
        {"stack": TOKEN_STACK},
        OTHER_TOKEN_STACK,
        tokens,
        make=lambda **settings: models.ITNetMaskedModel.Config(**settings).build(7, 8, pad=0, separator=1).eval(),
        modes={"no positions": {"position_frequencies": 0, "position_sigma": 10.0}},
    ),
    *(
        Subject(
            config,
            {"embed_dim": 4, "widths": (3, 5), "head_width": 4} | more,
            {
                "embed_dim": (3,),
                "widths": ((4, 5), (3,)),
                "head_width": (5,),
                "dropout": (0.0,),
                "pool": ("none", "cls"),
            }
            | dict.fromkeys(more, (2,)),
            on_points,
            make=points_network(config),
        )
        for config, more in ((models.PointPooling.Config, {}), (models.EdgeConvolution.Config, {"num_neighbours": 3}))
    ),
    Subject(
        models.TwoStream.Config,
        {"embed_dim": 4, "depth": 2, "num_heads": 2, "kernel": models.MLPConfig(width=3, num_frequencies=2)},
        {"embed_dim": (6,), "depth": (1,), "num_heads": (4,), "kernel": (models.AttentionConfig(),)}
        | {"fusion": ("concatenation", "sum"), "cross_kernel": (models.LinearAttentionConfig(),), "expansion": (2,)}
        | {"dropout": (0.0,), "drop_path": (0.0,), "pool": ("mean", "max")},
        on_image_texts,
        make=two_streams,
        modes={
            "concatenation": {"fusion": "concatenation"},
            "no heads": {"num_heads": None, "kernel": models.ConstantConfig(), "cross_kernel": models.ConstantConfig()},
        },
    ),
    Subject(
        models.MessagePassing.Config,
        {"embed_dim": 6, "depth": 2, "layer": "gat", "num_heads": 2},
        {
            "embed_dim": (4,),
            "depth": (1,),
            "layer": ("gcn", "gin", "other"),
            "num_heads": (3, 5),
            "residual": SWITCH,
            "dropout": (0.0,),
        }
        | {"pool": ("max", "none", "cls")},
        on_a_graph,
        make=graph_network,
        modes={"gcn": {"layer": "gcn", "num_heads": None}},
    ),
    Subject(
        models.InfViT.Config,
        {"embed_dim": 4, "depth": 2, "num_heads": 2},
        VISION
        | {"attention": ("softmax", "pure", "resolvent", "factorised", "linear"), "activation": ("gelu", "abs")}
        | {"normaliser": ("rows",), "gamma": (0.3,), "learn_gamma": SWITCH, "accumulation": ("running",)}
        | {"decay": ("constant",), "num_central": (2,), "power_steps": (2,)},
        on_image,
        make=infvit,
        modes={kind: {"attention": kind} for kind in ("softmax", "pure", "resolvent", "factorised")},
    ),
    Subject(
        models.Aether.Config,
        LANGUAGE,
        LANGUAGES | {"num_kv_heads": (1,), "epsilon": (1.0,), "learn_epsilon": SWITCH, "layer_norm": ("pre", "post")},
        language,
        make=lambda **settings: models.Aether.Config(**settings).build(7, 6),
    ),
    Subject(
        models.GPT2.Config,
        LANGUAGE | {"depth": 2},
        LANGUAGES
        | {"depth": (3,)}
        | {"bias": SWITCH, "activation": ("gelu", "relu", "silu"), "norm_epsilon": (0.1,), "tied_head": SWITCH}
        | {"scale_by_layer": SWITCH},
        language,
        make=lambda **settings: models.GPT2.Config(**settings).build(7, 6),
    ),
    Subject(
        models.Llama.Config,
        LANGUAGE | {"num_kv_heads": 1},
        {name: value for name, value in LANGUAGES.items() if name not in ("positions", "dropout")}
        | {"num_kv_heads": (2,), "rotary": (kernels.Rotary(10.0),), "activation": ("gelu", "gelu_tanh", "relu")}
        | {"norm_epsilon": (0.1,), "tied_head": SWITCH, "attention_bias": SWITCH, "output_bias": SWITCH}
        | {"feed_forward_bias": SWITCH},
        language,
        make=lambda **settings: models.Llama.Config(**settings).build(7, 6),
    ),
    Subject(
        models.Mamba.Config,
        {"embed_dim": 8, "depth": 1, "state_dim": 2},
        {"embed_dim": (16,), "depth": (2,), "expansion": (1,), "state_dim": (3,), "conv_width": (2,), "rank": (2,)}
        | {"norm_epsilon": (0.1,), "tied_head": SWITCH},
        language,
        make=lambda **settings: models.Mamba.Config(**settings).build(7, 6),
    ),
    Subject(
        models.NGramModel.Config,
        {"sizes": models.NGramModel.distinct(A_TEXT, 7, 3)},
        {"sizes": (models.NGramModel.distinct(A_TEXT, 7, 2),), "recall": (3,)},
        n_grams,
        make=lambda **settings: models.NGramModel.Config(**settings).build(7, 6),
    ),
    Subject(
        models.BlendedLanguageModel,
        {"network": Made(lambda: small_gpt2(1)), "fitted": Made(lambda: small_counts(3))},
        {"network": (Made(lambda: small_gpt2(2)),), "fitted": (Made(lambda: small_counts(2)),)},
        blended_language,
    ),
    Subject(
        models.Bert.Config,
        LANGUAGE,
        {name: value for name, value in LANGUAGES.items() if name != "positions"}
        | {"num_segments": (0, 3), "activation": ("gelu_tanh", "relu", "silu"), "norm_epsilon": (0.1,)}
        | {"head": ("none", "classes"), "num_classes": (4,), "pooling": ("relu",)},
        language,
        make=lambda **settings: models.Bert.Config(**settings).build(7, 6),
        modes={"classes": {"head": "classes", "num_classes": 3}},
    ),
    Subject(
        models.BertMasked.Config,
        {"stack": SOME_MASKED_BERT},
        {"stack": (dataclasses.replace(SOME_MASKED_BERT, depth=2), dataclasses.replace(SOME_MASKED_BERT, head="none"))},
        tokens,
        make=lambda **settings: models.BertMasked.Config(**settings).build(7, 8, pad=0, separator=1),
    ),
    Subject(
        models.ViT.Config,
        {"image_size": (4, 6), "patch_size": (2, 2), "channels": 1, "embed_dim": 8, "depth": 1, "num_heads": 2},
        {"image_size": ((4, 4),), "patch_size": ((2, 3),), "channels": (2,), "embed_dim": (16,), "depth": (2,)}
        | {"num_heads": (4,), "expansion": (2,), "num_classes": (0, 3), "class_token": SWITCH}
        | {"distillation_token": SWITCH, "distillation_head": SWITCH, "num_registers": (2,), "placed_tokens": SWITCH}
        | {"pool": ("mean",), "norm_after_pooling": SWITCH, "norm_before_blocks": SWITCH, "branch_scale": (0.1,)}
        | {"attention_bias": SWITCH, "patch_bias": SWITCH, "activation": ("gelu_tanh", "relu", "silu")}
        | {"norm_epsilon": (0.1,), "dropout": (0.5,), "drop_path": (0.5,)},
        on_pixels,
        make=lambda **settings: models.ViT.Config(**settings).build(),
        modes={"distilled": {"distillation_token": True}, "mean": {"pool": "mean"}},
    ),
    Subject(
        models.ConvNeXt.Config,
        {"channels": 1, "patch_size": 2, "depths": (1, 1), "dims": (4, 6), "kernel_size": 3, "num_classes": 3},
        {"channels": (2,), "patch_size": (1,), "depths": ((1, 2),), "dims": ((4, 8),), "kernel_size": (5,)}
        | {"expansion": (2,), "branch_scale": (None, 0.1), "activation": ("gelu_tanh", "relu", "silu")}
        | {"norm_epsilon": (0.1,), "num_classes": (0, 4), "drop_path": (0.5,)},
        on_pixels,
        make=lambda **settings: models.ConvNeXt.Config(**settings).build(),
    ),
    Subject(
        models.ImageBank.Config,
        {"num_filters": 12},
        {"num_filters": (8,), "may_mirror": (False,)},
        image_bank,
        make=lambda **settings: models.ImageBank.Config(**settings).build((12, 14), 1, 2),
    ),
    Subject(
        models.BlendedImages,
        {"network": Made(lambda: small_vit(1)), "fitted": Made(lambda: small_bank(4))},
        {"network": (Made(lambda: small_vit(2)),), "fitted": (Made(lambda: small_bank(5)),)},
        blended_images,
    ),
    Subject(
        models.BlendedImageTexts,
        {"network": Made(lambda: image_text_network(1)), "fitted": Made(lambda: image_text_machine(2))}
        | {"mean": (0.4,), "deviation": (0.3,)},
        {"network": (Made(lambda: image_text_network(2)),), "fitted": (Made(lambda: image_text_machine(0)),)}
        | {"mean": ((0.5,),), "deviation": ((0.2,),)},
        blended_image_texts,
    ),
    Subject(models.ContinuousStack.Config, STACK, STACKS, series_model, make=ckcnn, modes=STACK_MODES),
    Subject(
        models.CKCNN.Config,
        STACK,
        STACKS | {"lift": (3,)},
        series_model,
        make=lambda **settings: models.CKCNN.Config(**settings).build(SERIES, 3),
        modes=STACK_MODES,
    ),
    Subject(
        models.FilterBank.Config,
        {"num_thresholds": 2, "num_groups": 1, "num_nodes": 4},
        {
            "num_thresholds": (0, 3),
            "num_groups": (0, 2),
            "differences": SWITCH,
            "num_nodes": (2, 100),
            "num_lags": (2, 4),
        },
        filter_bank,
        make=lambda **settings: models.FilterBank.Config(**settings).build(SERIES, 3),
    ),
    Subject(
        models.ITNetSeriesConfig,
        {"stack": SOME_ITNET},
        {"stack": (dataclasses.replace(SOME_ITNET, depth=2),)},
        itnet_of_series,
        make=lambda **settings: models.ITNetSeriesConfig(**settings).build(SERIES, 3),
    ),
    Subject(
        models.NGramBank.Config,
        {"num_grams": 60, "num_letter_grams": 200},
        {"order": (1, 3), "num_grams": (4,), "letter_order": (2,), "num_letter_grams": (4,)},
        n_gram_bank,
        modes={"tokens alone": {"letter_order": 0, "num_letter_grams": 65_536}},
        make=lambda **settings: models.NGramBank.Config(**settings).build(TOKEN_READING, 3),
    ),
    Subject(
        models.ConditionalRandomField.Config,
        {"num_features": 80},
        {"window": (0, 1), "num_features": (10,)},
        conditional_random_field,
        make=lambda **settings: models.ConditionalRandomField(3, models.ConditionalRandomField.Config(**settings)),
    ),
    Subject(
        models.KernelMachine,
        {"num_coordinates": 4, "num_outputs": 3, "num_centres": 12},
        {"num_coordinates": (3,), "num_outputs": (2,), "num_centres": (14,), "num_rounds": (0,), "num_chosen": (5,)},
        kernel_machine,
    ),
    Subject(
        models.BoostedTrees,
        {"num_coordinates": 4, "num_outputs": 3, "num_trees": 12},
        {"num_coordinates": (3,), "num_outputs": (2,), "num_trees": (5,)},
        boosted_trees,
    ),
    Subject(
        models.TableMachine.Config,
        {"num_centres": 16, "num_trees": 5, "texts": TEXTS, "images": PATCHES, "series": FILTERS},
        {
            "num_centres": (20,),
            "texts": (dataclasses.replace(TEXTS, order=1), dataclasses.replace(TEXTS, num_grams=4)),
            "images": (dataclasses.replace(PATCHES, num_filters=5),),
            "series": (dataclasses.replace(FILTERS, num_groups=1),),
            "num_directions": (0, 2),
            "num_trees": (0,),
        },
        table_machine,
        make=lambda **settings: models.TableMachine.Config(**settings).build(TABLE_READING, 3),
    ),
    Subject(
        models.TableReading,
        {"num_numbers": 2, "num_categories": (3,), "num_texts": 1, "text": TOKEN_READING, **PICTURES, **RECORDED},
        {
            "num_numbers": (0, 3),
            "may_miss": ((1,), (0, 1)),
            "num_categories": ((2,), (3, 2)),
            "num_texts": (2,),
            "text": (dataclasses.replace(TOKEN_READING, separator=7),),
            "num_images": (2,),
            "images_may_miss": ((0,),),
            "channels": (3,),
            "image_size": ((9, 9),),
            "series": (
                (models.SeriesSampling(channels=3, spacing=1.0, extent=6.0, observation=(0,)),),
                (models.SeriesSampling(channels=2, spacing=1.0, extent=20.0),),
            ),
            "series_may_miss": ((0,),),
        },
        table_machine,
        make=lambda **settings: models.TableMachine.Config(
            num_centres=16, num_trees=5, texts=TEXTS, images=PATCHES, series=FILTERS
        ).build(models.TableReading(**settings), 3),
    ),
    Subject(
        models.NeighbourhoodBank.Config,
        {"num_waves": 20},
        {"hops": (0, 1), "num_waves": (30,), "num_colours": (0, 1)},
        neighbourhood_bank,
        make=lambda **settings: models.NeighbourhoodBank.Config(**settings).build(GRAPH_READING, 3),
    ),
    Subject(
        models.GraphMachine.Config,
        {"bank": models.NeighbourhoodBank.Config(num_waves=20), "num_centres": 12, "num_trees": 5},
        {
            "bank": (models.NeighbourhoodBank.Config(num_waves=30),),
            "num_centres": (4,),
            "num_trees": (0,),
        },
        graph_machine,
        make=lambda **settings: models.GraphMachine.Config(**settings).build(GRAPH_READING, 3),
    ),
    Subject(
        models.NodeMachine.Config,
        {"num_centres": 12, "num_trees": 5},
        {"hops": (0, 1), "num_positions": (0,), "num_centres": (8,), "num_trees": (0,)},
        node_machine,
        make=lambda **settings: models.NodeMachine.Config(**settings).build(GRAPH_READING, 1, 16),
    ),
    Subject(
        models.BlendedNodes,
        {"network": Made(lambda: node_network(1)), "fitted": Made(lambda: small_node_machine(2))},
        {"network": (Made(lambda: node_network(2)),), "fitted": (Made(lambda: small_node_machine(0)),)},
        blended_nodes,
    ),
    Subject(
        models.LinkMachine.Config,
        {"num_trees": 3},
        {"num_trees": (0,)},
        link_machine,
        make=lambda **settings: models.LinkMachine.Config(**settings).build(2, 3, is_directed=False),
    ),
    Subject(
        models.CloudMachine.Config,
        {"num_centres": 12, "num_trees": 5},
        {"turns": ("axis", "all"), "num_centres": (4,), "num_trees": (0,)},
        cloud_machine,
        make=lambda **settings: models.CloudMachine.Config(**settings).build(models.CloudReading(), 3),
    ),
    Subject(
        models.CloudReading,
        {"num_features": 3},
        {"num_features": (0,), "normal": ((0, 1, 2),), "keeps_place": SWITCH},
        cloud_machine,
        make=lambda **settings: models.CloudMachine.Config(num_centres=12, num_trees=3).build(
            models.CloudReading(**settings), 3
        ),
    ),
    Subject(
        models.GraphStackConfig,
        {"stack": SOME_ITNET},
        {"stack": (dataclasses.replace(SOME_ITNET, depth=2),)},
        on_a_graph,
        make=lambda **settings: models.GraphStackConfig(**settings).build(GRAPH_READING, 3),
    ),
    Subject(
        models.GraphReading,
        {"features": 3, "pos_dim": 2},
        {"features": (2,), "pos_dim": (3,), "edge_dim": (2,), "adds_positions": SWITCH, "feature_dropout": (0.5,)},
        of_graphs,
        make=lambda **settings: (
            models.NeighbourhoodBank.Config(num_waves=20).build(models.GraphReading(**settings), 3),
            models.GraphStackConfig(stack=SOME_ITNET).build(models.GraphReading(**settings), 3),
        ),
    ),
    Subject(
        models.SentenceStackConfig,
        {"stack": SOME_ITNET, "position_frequencies": 2},
        {
            "stack": (dataclasses.replace(SOME_ITNET, depth=2),),
            "position_frequencies": (0, 3),
            "position_sigma": (2.0,),
        },
        sentence_stack,
        make=lambda **settings: models.SentenceStackConfig(**settings).build(TOKEN_READING, 3),
        modes={"no positions": {"position_frequencies": 0}},
    ),
    Subject(
        models.BertSentences.Config,
        {"stack": SOME_BERT},
        {
            "stack": (dataclasses.replace(SOME_BERT, depth=2), dataclasses.replace(SOME_BERT, head="tokens")),
            "pooling": ("relu", "first", "mean"),
            "marks_second": SWITCH,
            "vocab_size": (8, 11),
            "positions": (7, 12),
        },
        sentence_stack,
        make=lambda **settings: models.BertSentences.Config(**settings).build(TOKEN_READING, 3),
        modes={"one segment": {"stack": dataclasses.replace(SOME_BERT, num_segments=1)}},
    ),
    Subject(
        models.TokenReading,
        {"vocab_size": 9, "context": 8, "pad": 0, "separator": 2, "spelling": SPELLING},
        {"vocab_size": (11,), "context": (16,), "pad": (7,), "separator": (8,), "spelling": ((" a",) * 9,)},
        of_sentences,
        make=lambda **settings: (
            models.NGramBank.Config(num_grams=60, num_letter_grams=200).build(models.TokenReading(**settings), 3),
            models.SentenceStackConfig(stack=SOME_ITNET).build(models.TokenReading(**settings), 3),
        ),
    ),
    Subject(
        models.SummaryBank.Config,
        {},
        {"degree": (1, 3)},
        summary_bank,
        make=lambda **settings: models.SummaryBank.Config(**settings).build(SERIES, 3),
    ),
    Subject(
        models.SeriesMachine.Config,
        {"bank": models.FilterBank.Config(num_thresholds=2, num_groups=1), "num_centres": 12, "num_trees": 5},
        {
            "bank": (models.FilterBank.Config(num_thresholds=3, num_groups=1),),
            "num_places": (2,),
            "num_centres": (4,),
            "num_trees": (0,),
        },
        series_machine,
        make=lambda **settings: models.SeriesMachine.Config(**settings).build(SERIES, 3),
    ),
    Subject(
        models.SampleMachine.Config,
        {"num_samples": 100, "num_trees": 4},
        {"num_samples": (50,), "num_trees": (3,)},
        sample_machine,
        make=lambda **settings: models.SampleMachine.Config(**settings).build(SERIES, 3),
    ),
    Subject(
        models.SamplePyramid.Config,
        {"embed_dim": 4, "strides": (2,), "dropout": 0.0},
        {"embed_dim": (3,), "strides": ((3,), (2, 2)), "depth": (0, 2), "dropout": (0.5,)},
        sample_pyramid,
        make=lambda **settings: models.SamplePyramid.Config(**settings).build(SERIES, 3),
    ),
    Subject(
        models.BlendedSamples,
        {"network": Made(lambda: small_pyramid(1)), "fitted": Made(lambda: small_sample_machine(4)), "window": None},
        {"network": (Made(lambda: small_pyramid(2)),), "fitted": (Made(lambda: small_sample_machine(3)),)}
        | {"window": (5,)},
        blended_samples,
    ),
    Subject(
        models.LagMachine.Config,
        {"bank": models.FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=4), "num_centres": 12},
        {
            "bank": (models.FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=2),),
            "num_coordinates": (4,),
            "num_centres": (4,),
        },
        lag_machine,
        make=lambda **settings: models.LagMachine.Config(**settings).build(SERIES, 3),
    ),
    Subject(
        models.SeriesSampling,
        {"channels": 2, "spacing": 0.5, "extent": 6.0},
        {"channels": (3,), "spacing": (0.25,), "extent": (30.0,), "observation": ((0,),)},
        banks,
        make=lambda **settings: (
            models.FilterBank.Config(num_thresholds=2, num_groups=1).build(models.SeriesSampling(**settings), 3),
            models.SummaryBank.Config().build(models.SeriesSampling(**settings), 3),
        ),
    ),
    Subject(
        models.RidgeHead,
        {"num_features": 4, "num_outputs": 2},
        {"num_features": (3,), "num_outputs": (3,), "further": ((models.FeatureBlock(2),),)},
        ridge_head,
    ),
    Subject(
        models.CKCNNText.Config,
        {"stack": SOME_STACK},
        {"stack": (dataclasses.replace(SOME_STACK, omega_0=5.0),), "embedding_dropout": (0.5,)},
        language,
        make=lambda **settings: models.CKCNNText.Config(**settings).build(7, 6),
    ),
    Subject(
        models.ContinuousStack,
        {"in_dim": 2, "config": SOME_STACK, "extent": 0.05},
        {"in_dim": (3,), "config": (dataclasses.replace(SOME_STACK, omega_0=5.0),), "pos_dim": (2,)}
        | {"extent": (0.1,), "spacing": (0.02,)},
        stack,
    ),
    Subject(
        models.FieldOperator.Config,
        {"embed_dim": 4, "depth": 1, "num_heads": 2, "num_seeds": 2, "head_dim": 4, "num_frequencies": 2},
        {"embed_dim": (8,), "depth": (2,), "num_heads": (4,), "expansion": (2,), "dropout": (0.5,), "num_seeds": (3,)}
        | {"head_dim": (3,), "epsilon": (0.5,), "attention": ("softmax", "linear"), "temperature": (0.5,)}
        | {"encoding": ("absolute",), "num_frequencies": (3,), "sigma": (2.0,), "margin": (0.1,)},
        field_model,
        make=field_operator,
        modes={"linear": {"attention": "linear"}, "no frequencies": {"num_frequencies": 0}},
    ),
    Subject(
        models.InContextRegressor,
        {"field": Made(lambda: fields.SinusoidalField(2, num_terms=4)), "num_layers": 1, "step_size": 0.1},
        {"field": (Made(lambda: fields.SinusoidalField(2, num_terms=3)),), "num_layers": (2,), "step_size": (0.2,)}
        | {"temperature": (5.0,), "frame": (fields.Isotropic(),), "pos_dim": (1,), "margin": (0.1,)},
        field_model,
    ),
    Subject(
        models.FunctionRegression.Config,
        {"given": 4, "target": 5, "pos_dim": 1, "num_channels": 2, "num_outputs": 1, "num_functions": 3},
        {"given": (6, ON_LINE), "target": (2, ON_LINE), "pos_dim": (2,), "num_channels": (1,), "num_outputs": (2,)}
        | {"num_functions": (4,), "is_periodic": (True,)},
        function_regression,
        make=lambda **settings: models.FunctionRegression(models.FunctionRegression.Config(**settings)),
        modes={"grids": {"given": ON_LINE, "target": ON_LINE}},
    ),
    Subject(
        models.BlendedOperator,
        {"network": Made(lambda: function_network(1)), "fitted": Made(lambda: line_regression(4))},
        {"network": (Made(lambda: function_network(2)),), "fitted": (Made(lambda: line_regression(5)),)},
        blended_operator,
    ),
    Subject(
        models.Sampling,
        {},
        {"temperature": (0.0, 0.5), "top_k": (2,), "top_p": (0.5,)},
        sampling,
        modes={"likeliest": {"temperature": 0.0}},
    ),
]

SUBJECTS = {
    subject.name: subject for subject in (*KERNELS, *QUADRATURES, *ENCODERS, *BLOCKS, *OPERATORS, *FIELDS, *MODELS)
}

DEFAULT = "the meaning of None"
ALIKE: dict[tuple[str, str], dict[str, str]] = {
    ("MLP", "causal"): {"causal_measure='past'": DEFAULT},
    ("FeaturePair", "base"): {"name='two'": "names the kernel in errors"},
    ("MonteCarlo", "base"): {"per_query=False": DEFAULT},
    ("MonteCarlo", "key proposal"): {"per_query=False": DEFAULT},
    ("MonteCarlo", "nothing learned"): {"per_query=False": DEFAULT},
    ("MonteCarlo", "pair proposal"): {"per_query=True": DEFAULT},
}
"""Values that change nothing, by class and mode, with the reason."""

NO_SETTINGS = {
    "kernels.FrobeniusNorm": "takes nothing",
    "kernels.RowNorm": "takes nothing",
    "kernels.Softmax": "takes nothing",
    "kernels.Unnormalised": "takes nothing",
    "quadrature.Full": "takes nothing",
    "fields.Identity": "takes nothing",
    "fields.Isotropic": "takes nothing",
    "models.ConstantConfig": "takes nothing",
    "quadrature.NodesPerQuery": "nodes, which a quadrature makes",
    "quadrature.SharedNodes": "nodes, which a quadrature makes",
    "operators.LowRankFit": "a report",
    "operators.RouteComparison": "a report",
    "operators.RouteCost": "a report",
    "fields.PlacedField": "what a FieldOperator makes; margin is a setting of its Config",
    "models.Aether": "takes the size of a text and its Config",
    "models.CKCNN": "hands all to ContinuousStack, which is here",
    "models.CKCNNText": "takes the size of a text and its Config",
    "models.FilterBank": "takes a sampling, the number of outputs and its Config",
    "models.EachImage": "takes a model and the number of images that its outputs are for",
    "models.EdgeConvolution": "takes an encoder and its Config",
    "models.FieldOperator": "takes a field, a frame and its Config",
    "models.FunctionRegression": "takes its Config",
    "models.GPT2": "takes the size of a text and its Config",
    "models.Llama": "takes the size of a text and its Config",
    "models.Mamba": "takes the size of a text and its Config",
    "models.Bert": "takes the size of a text and its Config",
    "models.ViT": "takes its Config",
    "models.BertMasked": "takes the size of a text and its Config",
    "models.BertSentences": "takes a reading, the number of outputs and its Config",
    "models.ConvNeXt": "takes its Config",
    "models.ITNet": "takes an encoder and its Config",
    "models.ImageBank": "takes the size of images, the number of outputs and its Config",
    "models.ITNetLanguageModel": "takes the size of a text and its Config",
    "models.ITNetMaskedModel": "takes the size of a text and its Config",
    "models.InfViT": "takes an encoder and its Config",
    "models.MessagePassing": "takes an encoder and its Config",
    "models.NGramModel": "takes the size of a text and its Config",
    "models.ConditionalRandomField": "takes the number of labels and its Config",
    "models.NGramBank": "takes a reading, the number of outputs and its Config",
    "models.CloudMachine": "takes a reading, the number of outputs and its Config",
    "models.GraphMachine": "takes a reading, the number of outputs and its Config",
    "models.NeighbourhoodBank": "takes a reading, the number of outputs and its Config",
    "models.LagMachine": "takes a sampling, the number of outputs and its Config",
    "models.LinkMachine": "takes the numbers of features and outputs, whether edges have directions, and its Config",
    "models.NodeMachine": "takes a reading, the number of outputs, that of known nodes and its Config",
    "models.NeuralOperator": "takes an encoder and its Config",
    "models.PointPooling": "takes an encoder and its Config",
    "models.SampleMachine": "takes a sampling, the number of outputs and its Config",
    "models.SamplePyramid": "takes an encoder and its Config",
    "models.SeriesMachine": "takes a sampling, the number of outputs and its Config",
    "models.SummaryBank": "takes a sampling, the number of outputs and its Config",
    "models.TableMachine": "takes a reading, the number of outputs and its Config",
    "models.TwoStream": "takes an encoder and its Config",
}
"""Public classes whose settings are not tested, with the reason."""


def public_classes() -> Iterator[tuple[str, type]]:
    """Exported concrete classes except tuples of tensors, by package and name."""
    for package in (kernels, quadrature, encoders, blocks, operators, fields, models):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value) and not inspect.isabstract(value) and not issubclass(value, tuple):
                yield f"{package.__name__.rpartition('.')[2]}.{name}", value


def configs() -> Iterator[type]:
    """Every concrete dataclass of the library whose name ends in Config, including nested classes."""
    found: dict[type, None] = {}
    for info in pkgutil.walk_packages(fredholm.__path__, "fredholm."):
        if "triton" in info.name or info.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(value) and value.__module__.startswith("fredholm"):
                found |= dict.fromkeys([value, *(part for part in vars(value).values() if inspect.isclass(part))])
    for value in found:
        if value.__name__.endswith("Config") and dataclasses.is_dataclass(value) and not inspect.isabstract(value):
            yield value


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_setting_does_something_or_is_refused(name: str) -> None:
    subject = SUBJECTS[name]
    for mode, start in subject.starts().items():
        found = unread(subject, start)
        allowed = ALIKE.get((name, mode), {})
        assert {setting: expected for setting, expected in found.items() if setting not in allowed} == {}, mode
        assert allowed.keys() <= found.keys(), f"{mode}: listed as alike, but not"


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_setting_has_other_values(name: str) -> None:
    assert SUBJECTS[name].others.keys() == settings_of(SUBJECTS[name].of).keys()


def test_every_public_class_is_tested() -> None:
    walked = {subject.of for subject in SUBJECTS.values()}
    missing = [name for name, value in public_classes() if value not in walked and name not in NO_SETTINGS]
    assert missing == []
    known = dict(public_classes())
    assert [name for name in NO_SETTINGS if name not in known or known[name] in walked] == []


def test_every_config_is_tested() -> None:
    walked = {subject.of for subject in SUBJECTS.values()} | set(CONFIGS_OF_TASKS) | {models.ConstantConfig}
    assert [config.__qualname__ for config in configs() if config not in walked] == []


def test_unread_finds_settings_without_effect() -> None:
    """It finds a setting that is dropped and one that is refused without its name, but no guarded setting."""

    def made(used: int = 0, dropped: int = 0, refused: int = 0, guarded: int = 0) -> list[int]:
        if refused:
            raise ValueError("no")
        if guarded and not used:
            raise ValueError("guarded=1 has no effect with used=0")
        return [used, guarded]

    others = {"used": (1,), "dropped": (1,), "refused": (1,), "guarded": (1,)}
    subject = Subject(made, {}, others, lambda built: built)
    assert unread(subject, {}).keys() == unread(subject, {"used": 1}).keys() == {"dropped=1", "refused=1"}
