"""Models of graphs, nodes and links that are fitted in closed form, and the kernels and summaries that they read."""
