// Codes of keys and values as the kernels read them.
//
// A head's keys, without its rare ones, lie in units of 64: the codes of keys 0 to 31, of keys 32
// to 63, of their values. The last unit is padded.
//
// Keys, K bytes each, 16, 32 or 64: as in index/codes/key_codes.h, a byte holds four slots of 2
// bits. A slot of 16 bytes that lie together, a *part*, is one *field* of it: one AND per word cuts
// it out as 16 numbers of 8 bits, which meet the query's coefficients in an integer matrix product.
// The field's shift stays in the numbers, and is divided out of the coefficients. Bytes 16 p + 4 t
// to 16 p + 4 t + 3 of key 32 g + 8 i + r make the word at byte 32 K g + 512 p + 16 (4 r + t) + 4
// i: word i of lane 4 r + t, as the product wants it.
//
// Values, one bit an axis. The bits are the metadata of a 2:4 sparse matrix product (PTX ISA,
// "Sparse matrix storage") whose stored elements are all 1: each key has two places in k, one with
// its weight, one with 0, and its bit chooses between them. Of 8 bytes a value: word h of lane
// 4 r + t, at byte 64 K + 16 lane + 4 h, holds in bit 16 e + 2 (4 q + p) + o axis
// r + 8 e + 16 (t / 2) + 32 o of key 8 (2 h + t % 2) + 2 p + q, inverted for q = 0. Of 16 or 32
// bytes, n = 2 or 4 words take the place of one: word n h + x of a lane is of axes 64 x and on,
// and each further four words of a lane lie 512 bytes on.
#pragma once

#include <cstdint>

namespace topkv::gpu {

inline constexpr int unit_keys = 64;
inline constexpr int part_bytes = 16;        // of a key's code
inline constexpr int most_key_bytes = 64;    // of a key's code
inline constexpr int most_value_bytes = 32;  // of a value's code
inline constexpr int key_fields = 4;
inline constexpr int few_dims = 128;  // of a head: kernels are made for these three numbers
inline constexpr int many_dims = 256;
inline constexpr int most_code_dims = 512;
inline constexpr int code_group = 8;  // query heads of a KV head, at most

/// Of a head of so many: those that there is room for.
__host__ __device__ constexpr int code_dims(int head_dim) {
  return head_dim <= few_dims ? few_dims : head_dim <= many_dims ? many_dims : most_code_dims;
}
/// Of values: those that there is room for in sums.
__host__ __device__ constexpr int sum_axes(int value_bytes) { return code_dims(8 * value_bytes); }

/// A slot that is in field f of byte b is number f * key_bytes + b.
__host__ __device__ constexpr int key_slots(int key_bytes) { return key_fields * key_bytes; }

__host__ __device__ constexpr int unit_bytes(int key_bytes, int value_bytes) {
  return unit_keys * (key_bytes + value_bytes);
}

/// Byte of a unit, and bit in it, of an axis of a value.
struct ValueBit {
  int byte, bit;
};
__host__ __device__ constexpr ValueBit value_bit(int key_bytes, int value_bytes, int key,
                                                 int axis) {
  const int tile = key / 8;
  const int lane = 4 * (axis % 8) + 2 * (axis / 16 % 2) + tile % 2;
  const int m = axis / 32;
  const int word = tile / 2 * (value_bytes / 8) + m / 2;
  const int bit = 16 * (axis / 8 % 2) + 2 * (4 * (key % 2) + key / 2 % 4) + m % 2;
  return {unit_keys * key_bytes + word / 4 * 512 + lane * 16 + word % 4 * 4 + bit / 8, bit % 8};
}

/// Where a byte of a key's code lies in its unit.
__host__ __device__ constexpr int key_byte(int key_bytes, int key, int byte) {
  return key / 32 * 32 * key_bytes + byte / part_bytes * 512 +
         (key % 8 * 4 + byte % part_bytes / 4) * 16 + key % 32 / 8 * 4 + byte % 4;
}

/// The position of a coded key: its number and that of the rare ones before it, which is from `low`
/// to `high`. rare_keys: as in CodeScan, of the head.
__device__ inline int position_of(int key, const int* rare_keys, int low, int high) {
  while (low < high) {
    const int middle = (low + high) / 2;
    if (rare_keys[middle] <= key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return key + low;
}

/// What is known of one head, float32, rows of `dims` elements (those beyond head_dim are 0).
struct HeadTables {
  int dims;                          // code_dims(head_dim)
  int values = 0;                    // [dims]: ValueCoder::linear
  int base = dims * dims;            // [1]
  int middle = base + dims;          // [1]: KeyCoder::linear
  int errors = middle + dims;        // [dims]
  int slots = errors + dims * dims;  // [key_slots]

  __host__ __device__ constexpr int floats(int key_bytes) const {
    return slots + key_slots(key_bytes) * dims;
  }
};

}  // namespace topkv::gpu
