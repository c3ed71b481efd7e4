"""Spectral recognition: how often classifiers of cubes of many bands err as the spectrum of the light changes."""
