"""Measuring: time to first token, FLOPs, closeness to the base, answers to prompts."""
