"""Recognition: how often classifiers err as the light changes."""
