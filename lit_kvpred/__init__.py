"""Earlier first tokens for causal language models: KV Prediction with exact correction."""

__version__ = "0.1.0"
