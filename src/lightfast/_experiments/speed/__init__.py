"""How fast the networks are, as ratios measured side by side in one process, and what their cost grows with."""
