"""Complete models, each with its configurations."""

from fredholm.models.aether import Aether
from fredholm.models.bert import Bert
from fredholm.models.ckcnn import CKCNN, ContinuousStack
from fredholm.models.ckcnn_text import CKCNNText
from fredholm.models.convnext import ConvNeXt
from fredholm.models.each_image import EachImage
from fredholm.models.field_model import FieldModel
from fredholm.models.filter_bank import FilterBank
from fredholm.models.fitted_model import FittedModel
from fredholm.models.generation import Sampling, generate
from fredholm.models.gpt2 import GPT2
from fredholm.models.in_context_regressor import InContextRegressor
from fredholm.models.infvit import InfViT
from fredholm.models.itnet import ITNet
from fredholm.models.itnet_series import ITNetSeriesConfig
from fredholm.models.itnet_text import ITNetLanguageModel, ITNetMaskedModel
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
from fredholm.models.language_model import LanguageModel, LanguageState, MaskedModel
from fredholm.models.llama import Llama
from fredholm.models.mamba import Mamba
from fredholm.models.message_passing import MessagePassing
from fredholm.models.n_gram_bank import NGramBank
from fredholm.models.neural_field import FieldOperator
from fredholm.models.neural_operator import NeuralOperator
from fredholm.models.pointnet import EdgeConvolution, PointPooling
from fredholm.models.ridge_head import Readout, Regressand, RidgeHead
from fredholm.models.sentence_model import SentenceModelConfig, SentenceStackConfig, TokenReading
from fredholm.models.series_model import SeriesModelConfig, SeriesSampling
from fredholm.models.signal_model import SignalModel
from fredholm.models.summary_bank import SummaryBank
from fredholm.models.two_stream import TwoStream
from fredholm.models.vit import ViT

__all__ = [
    "CKCNN",
    "GPT2",
    "KERNELS",
    "AdditiveAttentionConfig",
    "Aether",
    "AttentionConfig",
    "Bert",
    "CKCNNText",
    "ConstantConfig",
    "ContinuousConvolutionConfig",
    "ContinuousStack",
    "ConvNeXt",
    "ConvolutionConfig",
    "EachImage",
    "EdgeConvolution",
    "FieldModel",
    "FieldOperator",
    "FilterBank",
    "FittedModel",
    "ITNet",
    "ITNetLanguageModel",
    "ITNetMaskedModel",
    "ITNetSeriesConfig",
    "InContextRegressor",
    "InfViT",
    "InfiniteConfig",
    "KernelConfig",
    "LanguageModel",
    "LanguageState",
    "LinearAttentionConfig",
    "Llama",
    "LowRankConfig",
    "MLPConfig",
    "Mamba",
    "MaskedModel",
    "MessagePassing",
    "NGramBank",
    "NeuralOperator",
    "OnEdgesConfig",
    "PointPooling",
    "Readout",
    "RecurrenceConfig",
    "Regressand",
    "RidgeHead",
    "Sampling",
    "SentenceModelConfig",
    "SentenceStackConfig",
    "SeparableConfig",
    "SeriesModelConfig",
    "SeriesSampling",
    "SignalModel",
    "SpectralConfig",
    "SumConfig",
    "SummaryBank",
    "TokenReading",
    "TwoStream",
    "ViT",
    "YatConfig",
    "generate",
]
