"""Complete recordings of a family's core on one GPU, and searches that are answered from them."""
