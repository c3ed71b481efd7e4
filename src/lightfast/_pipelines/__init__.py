"""Whole models, image in and answer out: saved, loaded, shared and exported."""
