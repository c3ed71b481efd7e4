"""Tables, figures and one page, made from the records of a comparison."""

from lightfast._experiments.recognition.report import write_report

__all__ = ["write_report"]
