"""Models of tokens: language models, masked language models, and models of sentences."""
