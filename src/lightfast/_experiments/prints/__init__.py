"""Prints under real lamps: what is learned under one, recognized under the others."""
