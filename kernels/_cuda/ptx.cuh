// One PTX instruction per function, so that the tests' CPU emulator can replace each of them
// (tests/cuda_emulator). Nothing here checks the architecture: mma.cuh does, and has versions for sm_75 on.
#ifndef CUDA_EMULATOR

__device__ __forceinline__ unsigned shared_address(const void *shared) {
  return (unsigned)__cvta_generic_to_shared(shared);
}

// ---- a 16-byte store to global memory; 16-byte aligned ----------------------------------------------------------

__device__ __forceinline__ void ptx_store_16(void *global, uint4 data) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "l"(global), "r"(data.x), "r"(data.y), "r"(data.z), "r"(data.w) : "memory");
}

// ---- mma.sync: d += a b, fp32 accumulation (m16n8k8 fp16: sm_75; the others: sm_80) -----------------------------
// Fragments, with group = lane / 4 and pair = 2 * (lane % 4):
//   a of m16n8k16  a[0] (group, pair..pair+1)      a[1] (group + 8, pair..)
//                  a[2] (group, pair + 8..)        a[3] (group + 8, pair + 8..)           row, column of A (16 x 16)
//   b of m16n8k16  b[0] (pair..pair+1, group)      b[1] (pair + 8.., group)               row, column of B (16 x 8)
//   d              d[0], d[1] (group, pair..)      d[2], d[3] (group + 8, pair..)         row, column of D (16 x 8)
// m16n8k8 uses only a[0], a[1] and b[0].

__device__ __forceinline__ void ptx_mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void ptx_mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void ptx_mma_m16n8k8_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b0));
}

// ---- ldmatrix: 8x8 matrices of 16-bit elements from shared memory (sm_75) ---------------------------------------
// Lane l names row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned). r[i] holds two neighbouring elements of matrix i:
// row lane / 4, columns pair and pair + 1; with _trans, rows pair and pair + 1 of column lane / 4.

__device__ __forceinline__ void ptx_ldmatrix_x4(unsigned (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)) : "memory");
}

__device__ __forceinline__ void ptx_ldmatrix_x4_trans(unsigned (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)) : "memory");
}

// Lanes 0 to 15 name the rows; the others' addresses are ignored.
__device__ __forceinline__ void ptx_ldmatrix_x2_trans(unsigned (&r)[2], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// ---- cp.async: 16 bytes from global to shared memory, past the registers (sm_80) --------------------------------

// Copies the first `bytes` (0 to 16) and fills up with zeros; with 0 bytes `global` is not read.
__device__ __forceinline__ void ptx_cp_async_16(void *shared, const void *global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void ptx_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's latest groups are in flight.
template <int PENDING> __device__ __forceinline__ void ptx_cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

#endif
