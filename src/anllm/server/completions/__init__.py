"""POST /v1/completions, the older endpoint: plain text or tokens in, plain text out."""
