"""White balance of pictures as cameras render them: which it repairs, and which it should leave alone."""
