"""From prompt to answer: prefill, decoding, catch-up, reconciliation, events."""
