"""What to train and what to measure."""
