"""What bounds a kernel: what the build tells, what the GPU tells, and the verdict."""
