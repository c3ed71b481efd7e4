"""The layers: torch's, with the same arguments and the same state, made offset equivariant.

Layers that follow offsets by themselves (max pooling, adaptive pooling, interpolation, flattening) are torch's own,
given here so that a network can be written in one vocabulary.
"""

from torch.nn import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    Flatten,
    Identity,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Sequential,
    Upsample,
)

from lightfast.nn._activation import ELU, GELU, Hardswish, LeakyReLU, Maxout, PReLU, ReLU, Sigmoid, SiLU, Tanh
from lightfast.nn._adapter import Adapter, GroupPool
from lightfast.nn._attention import MultiheadAttention
from lightfast.nn._combine import AffineCombination, Residual
from lightfast.nn._conv import Conv1d, Conv2d, Conv3d
from lightfast.nn._dropout import Dropout, Dropout1d, Dropout2d, Dropout3d
from lightfast.nn._group_dropout import GroupDropout, GroupFill
from lightfast.nn._lifted import ConvNormAct2d, ConvTransposeNormAct2d, Lift, LiftedMap, SqueezeNormAct, lower
from lightfast.nn._linear import Linear
from lightfast.nn._norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
)
from lightfast.nn._resize import AvgPool1d, AvgPool2d, AvgPool3d, PixelShuffle
from lightfast.nn._transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

__all__ = [
    "ELU",
    "GELU",
    "Adapter",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AffineCombination",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvNormAct2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConvTransposeNormAct2d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Flatten",
    "GroupDropout",
    "GroupFill",
    "GroupNorm",
    "GroupPool",
    "Hardswish",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LeakyReLU",
    "Lift",
    "LiftedMap",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Maxout",
    "MultiheadAttention",
    "PReLU",
    "PixelShuffle",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SqueezeNormAct",
    "Tanh",
    "Upsample",
    "lower",
]
