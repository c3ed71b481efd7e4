"""The error of data that cannot be read."""

from lightfast._photographs.photo import PhotoError


class DataError(PhotoError):
    """A file or folder of data is missing, damaged or not what it should be; the message names it."""
