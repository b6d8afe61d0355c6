"""Models that read tokens: language models, masked ones, and what answers for a sentence."""
