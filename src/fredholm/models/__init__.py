"""Complete models and their configurations."""

from fredholm.models.blended import BlendedImages, BlendedImageTexts, BlendedNodes, BlendedOperator, BlendedSamples
from fredholm.models.cloud_model import CloudModelConfig
from fredholm.models.field_model import FieldModel
from fredholm.models.fields.function_regression import FunctionRegression
from fredholm.models.fields.in_context_regressor import InContextRegressor
from fredholm.models.fields.neural_field import FieldOperator
from fredholm.models.fields.neural_operator import NeuralOperator
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.image_bank import ImageBank
from fredholm.models.fitted.banks.n_gram_bank import NGramBank
from fredholm.models.fitted.banks.summary_bank import SummaryBank
from fredholm.models.fitted.boosted_trees import BoostedTrees
from fredholm.models.fitted.cloud_machine import CloudMachine, CloudReading
from fredholm.models.fitted.conditional_random_field import ConditionalRandomField
from fredholm.models.fitted.fitted_model import CoordinateModel, FittedModel, Solution
from fredholm.models.fitted.graphs.graph_machine import GraphMachine
from fredholm.models.fitted.graphs.link_machine import GraphPairs, LinkMachine
from fredholm.models.fitted.graphs.neighbourhood_bank import NeighbourhoodBank
from fredholm.models.fitted.graphs.node_machine import KnownNodes, NodeMachine
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.lag_machine import LagMachine
from fredholm.models.fitted.ridge_head import FeatureBlock, Readout, Regressand, RidgeHead
from fredholm.models.fitted.sample_machine import SampleMachine
from fredholm.models.fitted.series_machine import SeriesMachine
from fredholm.models.fitted.table_machine import TableBatch, TableMachine, TableReading
from fredholm.models.fitted.word_forms import word_forms
from fredholm.models.graphs.graph_model import GraphModelConfig, GraphReading, GraphStackConfig
from fredholm.models.graphs.message_passing import MessagePassing
from fredholm.models.images.convnext import ConvNeXt
from fredholm.models.images.each_image import EachImage
from fredholm.models.images.image_model import ImageModelConfig
from fredholm.models.images.infvit import InfViT
from fredholm.models.images.vit import ViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import (
    KERNELS,
    AdditiveAttentionConfig,
    AttentionConfig,
    ConstantConfig,
    ContinuousConvolutionConfig,
    ConvolutionConfig,
    InfiniteConfig,
    KernelConfig,
    LinearAttentionConfig,
    LowRankConfig,
    MLPConfig,
    OnEdgesConfig,
    RecurrenceConfig,
    SeparableConfig,
    SpectralConfig,
    SumConfig,
    YatConfig,
)
from fredholm.models.language.aether import Aether
from fredholm.models.language.bert import Bert
from fredholm.models.language.bert_masked import BertMasked
from fredholm.models.language.bert_sentences import BertSentences
from fredholm.models.language.blended_language_model import BlendedLanguageModel
from fredholm.models.language.ckcnn_text import CKCNNText
from fredholm.models.language.generation import Sampling, generate
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.itnet_text import ITNetLanguageModel, ITNetMaskedModel
from fredholm.models.language.language_model import LanguageModel, LanguageState, MaskedModel
from fredholm.models.language.llama import Llama
from fredholm.models.language.mamba import Mamba
from fredholm.models.language.n_gram_model import NGramModel
from fredholm.models.language.sentence_model import SentenceModelConfig, SentenceStackConfig, TokenReading
from fredholm.models.node_model import NodeModelConfig
from fredholm.models.pointnet import EdgeConvolution, PointPooling
from fredholm.models.series.ckcnn import CKCNN, ContinuousStack
from fredholm.models.series.itnet_series import ITNetSeriesConfig
from fredholm.models.series.sample_pyramid import SamplePyramid
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling
from fredholm.models.signal_model import SignalModel
from fredholm.models.two_stream import TwoStream

__all__ = [
    "CKCNN",
    "GPT2",
    "KERNELS",
    "AdditiveAttentionConfig",
    "Aether",
    "AttentionConfig",
    "Bert",
    "BertMasked",
    "BertSentences",
    "BlendedImageTexts",
    "BlendedImages",
    "BlendedLanguageModel",
    "BlendedNodes",
    "BlendedOperator",
    "BlendedSamples",
    "BoostedTrees",
    "CKCNNText",
    "CloudMachine",
    "CloudModelConfig",
    "CloudReading",
    "ConditionalRandomField",
    "ConstantConfig",
    "ContinuousConvolutionConfig",
    "ContinuousStack",
    "ConvNeXt",
    "ConvolutionConfig",
    "CoordinateModel",
    "EachImage",
    "EdgeConvolution",
    "FeatureBlock",
    "FieldModel",
    "FieldOperator",
    "FilterBank",
    "FittedModel",
    "FunctionRegression",
    "GraphMachine",
    "GraphModelConfig",
    "GraphPairs",
    "GraphReading",
    "GraphStackConfig",
    "ITNet",
    "ITNetLanguageModel",
    "ITNetMaskedModel",
    "ITNetSeriesConfig",
    "ImageBank",
    "ImageModelConfig",
    "InContextRegressor",
    "InfViT",
    "InfiniteConfig",
    "KernelConfig",
    "KernelMachine",
    "KnownNodes",
    "LagMachine",
    "LanguageModel",
    "LanguageState",
    "LinearAttentionConfig",
    "LinkMachine",
    "Llama",
    "LowRankConfig",
    "MLPConfig",
    "Mamba",
    "MaskedModel",
    "MessagePassing",
    "NGramBank",
    "NGramModel",
    "NeighbourhoodBank",
    "NeuralOperator",
    "NodeMachine",
    "NodeModelConfig",
    "OnEdgesConfig",
    "PointPooling",
    "Readout",
    "RecurrenceConfig",
    "Regressand",
    "RidgeHead",
    "SampleMachine",
    "SamplePyramid",
    "Sampling",
    "SentenceModelConfig",
    "SentenceStackConfig",
    "SeparableConfig",
    "SeriesMachine",
    "SeriesModelConfig",
    "SeriesSampling",
    "SignalModel",
    "Solution",
    "SpectralConfig",
    "SumConfig",
    "SummaryBank",
    "TableBatch",
    "TableMachine",
    "TableReading",
    "TokenReading",
    "TwoStream",
    "ViT",
    "YatConfig",
    "generate",
    "word_forms",
]
