"""Sirius (arXiv 2409.03856): sparse drafts, acceptance, correction settings, efficiency metrics."""
