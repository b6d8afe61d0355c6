"""Run folders on disk: their layout, checkpoints, logs and protection."""
