"""Illuminant estimation: by how many degrees the color of the light is missed."""
