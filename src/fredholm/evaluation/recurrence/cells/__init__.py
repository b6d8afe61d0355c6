"""Cells of torch.nn run by torch's own code, with gaps and resets, and under the compiler."""
