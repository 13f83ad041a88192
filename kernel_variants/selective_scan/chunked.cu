// Selective scan over chunks of the sequence at once: the state that each chunk ends in from h = 0, and the sum of its
// deltas, for all chunks but the last; then the piped scan of every chunk, from the state that arrives at it. Exact, at
// one more exponential for each (step, state) of all chunks but the last.
// Layout: that of piped.cu and chunks.cuh.
#include "chunk_states.cuh"
#include "piped.cu"

static_assert(scan::kChunks > 1, "one chunk needs no first pass");
