// Inline PTX that runs on the CPU: source.py turns `asm("ex2.approx.ftz.f32 ...")` into a call of the function here
// whose name is the instruction's with `_` for `.` and `::`. An instruction that has none is not executable.
#pragma once

namespace ktune_cpu::ptx {

__forceinline__ float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

__forceinline__ void ex2_approx_ftz_f32(float& to, float x) { to = flushed(exp2f(flushed(x))); }
__forceinline__ void ex2_approx_f32(float& to, float x) { to = exp2f(x); }
__forceinline__ void lg2_approx_ftz_f32(float& to, float x) { to = log2f(flushed(x)); }
__forceinline__ void lg2_approx_f32(float& to, float x) { to = log2f(x); }
__forceinline__ void rcp_approx_ftz_f32(float& to, float x) { to = flushed(1.0f / flushed(x)); }
__forceinline__ void rcp_approx_f32(float& to, float x) { to = 1.0f / x; }
__forceinline__ void rsqrt_approx_ftz_f32(float& to, float x) { to = 1.0f / sqrtf(flushed(x)); }
__forceinline__ void rsqrt_approx_f32(float& to, float x) { to = 1.0f / sqrtf(x); }
__forceinline__ void sqrt_approx_ftz_f32(float& to, float x) { to = sqrtf(flushed(x)); }
__forceinline__ void sqrt_approx_f32(float& to, float x) { to = sqrtf(x); }
__forceinline__ void tanh_approx_f32(float& to, float x) { to = tanhf(x); }
__forceinline__ void fma_rn_f32(float& to, float a, float b, float c) { to = fmaf(a, b, c); }
__forceinline__ void mul_f32(float& to, float a, float b) { to = a * b; }
__forceinline__ void add_f32(float& to, float a, float b) { to = a + b; }
__forceinline__ void cvt_rn_bf16_f32(unsigned short& to, float x) { to = __nv_bfloat16_raw(__nv_bfloat16(x)).x; }

template <class T, class S>
__forceinline__ void mov_u32(T& to, S from) { to = static_cast<T>(from); }
template <class T, class S>
__forceinline__ void mov_s32(T& to, S from) { to = static_cast<T>(from); }
template <class T, class S>
__forceinline__ void mov_b32(T& to, S from) { to = from_bits<T>(to_bits(from)); }

template <class A>
__forceinline__ void cp_async_cg_shared_global(A to, const void* from, int bytes, int valid_bytes) {
  copy_async(shared_pointer(to), from, bytes, valid_bytes);
}
template <class A>
__forceinline__ void cp_async_cg_shared_global(A to, const void* from, int bytes) {
  copy_async(shared_pointer(to), from, bytes, bytes);
}
template <class A>
__forceinline__ void cp_async_ca_shared_global(A to, const void* from, int bytes, int valid_bytes) {
  copy_async(shared_pointer(to), from, bytes, valid_bytes);
}
template <class A>
__forceinline__ void cp_async_ca_shared_global(A to, const void* from, int bytes) {
  copy_async(shared_pointer(to), from, bytes, bytes);
}
template <class A>
__forceinline__ void cp_async_cg_shared_global_L2_128B(A to, const void* from, int bytes, int valid_bytes) {
  copy_async(shared_pointer(to), from, bytes, valid_bytes);
}
template <class A>
__forceinline__ void cp_async_cg_shared_global_L2_128B(A to, const void* from, int bytes) {
  copy_async(shared_pointer(to), from, bytes, bytes);
}
__forceinline__ void cp_async_commit_group() { commit_copies(); }
__forceinline__ void cp_async_wait_group(int pending) { wait_copies(pending); }
__forceinline__ void cp_async_wait_all() { wait_all_copies(); }

__forceinline__ void bar_sync(int id, int threads, KTUNE_SITE_) {
  meet_block(id, threads, Vote::none, false, KTUNE_AT_("bar.sync"));
}
__forceinline__ void bar_sync(int id, KTUNE_SITE_) { meet_block(id, 0, Vote::none, false, KTUNE_AT_("bar.sync")); }
__forceinline__ void bar_arrive(int id, int threads, KTUNE_SITE_) {
  arrive_block(id, threads, KTUNE_AT_("bar.arrive"));
}

// Launches run one after another.
__forceinline__ void griddepcontrol_wait() {}
__forceinline__ void griddepcontrol_launch_dependents() {}

__forceinline__ void membar_cta() {}
__forceinline__ void membar_gl() {}
__forceinline__ void prefetch_global_L1(const void*) {}
__forceinline__ void prefetch_global_L2(const void*) {}

__forceinline__ unsigned laneid() { return active_lane(); }

}  // namespace ktune_cpu::ptx
