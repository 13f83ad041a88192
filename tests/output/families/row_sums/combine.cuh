#pragma once
// Adds to a running total and keeps the larger value.
struct Pair {
  float total;
  float largest;
};
__device__ inline Pair combine(Pair a, Pair b) {
  return {a.total + b.total, a.largest > b.largest ? a.largest : b.largest};
}
__device__ inline Pair nothing() { return {0.0f, -3.0e38f}; }
