"""Plain torch definitions of well-known networks, small, written the way torchvision writes them."""

from tests.zoo.convolutional import VGG, DenseNet, EfficientNet, MobileNetV2, MobileNetV3, ResNet, UNet
from tests.zoo.modern import ConvNeXt, ViT

__all__ = ["VGG", "ConvNeXt", "DenseNet", "EfficientNet", "MobileNetV2", "MobileNetV3", "ResNet", "UNet", "ViT"]
