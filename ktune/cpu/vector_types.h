// CUDA's vector types, with the alignment that makes a misaligned access a fault as it is on a GPU.
#pragma once

#define KTUNE_VECTOR_(T, name, bytes)                                                                    \
  struct name##1 { T x; };                                                                               \
  struct alignas(2 * bytes) name##2 { T x, y; };                                                         \
  struct name##3 { T x, y, z; };                                                                         \
  struct alignas(4 * bytes > 16 ? 16 : 4 * bytes) name##4 { T x, y, z, w; };                             \
  inline name##1 make_##name##1(T x) { return {x}; }                                                     \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                             \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                     \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

KTUNE_VECTOR_(signed char, char, 1)
KTUNE_VECTOR_(unsigned char, uchar, 1)
KTUNE_VECTOR_(short, short, 2)
KTUNE_VECTOR_(unsigned short, ushort, 2)
KTUNE_VECTOR_(int, int, 4)
KTUNE_VECTOR_(unsigned, uint, 4)
KTUNE_VECTOR_(float, float, 4)
KTUNE_VECTOR_(long long, longlong, 8)
KTUNE_VECTOR_(unsigned long long, ulonglong, 8)
KTUNE_VECTOR_(double, double, 8)
#undef KTUNE_VECTOR_

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
