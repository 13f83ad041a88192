"""ktune: a tuner for parameterised CUDA kernels that checks every variant before its time counts."""

__version__ = "0.1.0"
