"""Inpainting: how well holes are filled as the light changes."""
