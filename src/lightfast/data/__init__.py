"""Data sets as bytes on the device, and augmentation of whole batches there."""

from lightfast.data import augment
from lightfast.data.cifar10 import CIFAR10, load_cifar10
from lightfast.data.error import DataError
from lightfast.data.folder import ImageFolder, LazyImages, load_folder, load_image

__all__ = [
    "CIFAR10",
    "DataError",
    "ImageFolder",
    "LazyImages",
    "augment",
    "load_cifar10",
    "load_folder",
    "load_image",
]
