"""The error of data that cannot be read."""

__all__ = ["DataError"]


class DataError(ValueError):
    """A file or folder of data is missing, damaged or not what it should be; the message names it."""
