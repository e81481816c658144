"""A fleet from a file: what should be on each cluster, what is there, and how the one becomes the other."""
