"""Correction after Sirius (arXiv 2409.03856): acceptance, settings, efficiency metrics."""
