"""Data sets as bytes on the device, and augmentation of whole batches there."""

from lightfast._experiments.data import augment
from lightfast._experiments.data.cifar10 import CIFAR10, load_cifar10
from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.folder import ImageFolder, LazyImages, load_folder

__all__ = [
    "CIFAR10",
    "DataError",
    "ImageFolder",
    "LazyImages",
    "augment",
    "load_cifar10",
    "load_folder",
]
