"""Predicted caches: auxiliary, predictor, family adapter, caches, artefacts."""
