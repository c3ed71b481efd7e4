"""Photographs in files: read and written with their metadata, balanced, and their holes filled."""
