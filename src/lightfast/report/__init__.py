"""Tables, figures and one page, made from the records of a comparison."""

from lightfast.report.recognition import write_report

__all__ = ["write_report"]
