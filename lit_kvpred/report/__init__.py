"""The validation report of a run, and the files that it is made from."""

from lit_kvpred.report.records import append_evaluation, read_run, write_run_facts
from lit_kvpred.report.writing import write_report

__all__ = ["append_evaluation", "read_run", "write_report", "write_run_facts"]
