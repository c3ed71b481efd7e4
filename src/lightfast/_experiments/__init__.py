"""Experiments: one engine, one study, one report; a package for each task with what is particular to it."""
