"""What a run keeps on the disk: its folder, and what protects it."""
