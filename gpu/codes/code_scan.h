// A scan over the codes of one layer for some tokens at once: for each which rows score best, and a
// partial that stands for all others.
#pragma once

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/attention/step_io.h"

namespace topkv::gpu {

inline constexpr int scan_heads = 64;          // KV heads of all tokens of a scan, at most
inline constexpr int scan_batch = 8;           // tokens of a scan, at most
inline constexpr int scan_rare_parts = 16;     // partials over rare rows of a KV head
inline constexpr int scan_lists = 8;           // of a KV head, at most
inline constexpr int scan_sample_units = 512;  // of a head's codes, that thresholds are found of

/// Of one KV head, for one token: keys with codes, and rare ones, that may be attended; by their
/// number among all of their kind.
struct ScanRange {
  int begin, end;
  int rare_begin, rare_end;
};

/// What prepare() finds of one query head's scores, in units of log2: a key's is
/// lo * (256 high + low + sums of products with the high and low bytes of its coefficients) + add.
struct QueryScale {
  float lo, add;
};

/// What plan() adds.
struct QueryPlan {
  float lo, add;    // add: -257 lo * magic
  int high, low;    // what sums begin with: the score less the reference or, to be capped, as it is
  float reference;  // log2 of what weights are relative to
};

/// One token's part in a scan.
struct ScanToken {
  const float* query = nullptr;  // [kv_heads * group, head_dim]
  DevicePartial rare;            // [kv_heads * group] heads: attention over rare rows
  DevicePartial estimate;        // likewise: the tail
  TailNoise* noise = nullptr;    // [kv_heads * group]
  // [lists][kv_heads][1 + capacity]: number, positions, in any order of time.
  int* found = nullptr;
};

/// Everything is in device memory; what the first group points to does not change. A *head step* is
/// that of one token with one KV head: number token * kv_heads + KV head.
struct CodeScan {
  const std::uint8_t* units = nullptr;  // [kv_heads] of head_bytes (code_format.cuh)
  std::int64_t head_bytes = 0;
  const float* tables = nullptr;        // [kv_heads] of HeadTables
  const __nv_bfloat16* rare = nullptr;  // [kv_heads][2 (keys, values)][rare_slots][head_dim]
  const int* rare_keys = nullptr;       // [kv_heads][rare_slots]: position - number among the rare
  const int* rare_before = nullptr;     // [kv_heads][unit_slots + 1]: those less than 64 i
  const float2* variances = nullptr;    // [kv_heads]: of a value, and of its code's error
  std::int64_t rare_slots = 0, unit_slots = 0;
  int key_bytes = 0;    // 16, 32, 64
  int value_bytes = 0;  // 0, 8, 16, 32
  int kv_heads = 0, group = 0, head_dim = 0;
  float scale = 0;
  float softcap = 0;  // AttentionShape::softcap

  int wanted = 0;      // rows of each query head
  int lists = 1;       // of a KV head, among which rows are spread
  int capacity = 0;    // of a list
  int splits = 0;      // blocks of a head step
  bool tail = false;   // wanted beside the list
  bool early = false;  // kernels may be launched before the one before them ends
  int tokens = 1;
  ScanToken token[scan_batch];
  ScanRange range[scan_heads];  // [head_steps]

  std::uint8_t* coefficients = nullptr;  // [head_steps][16][key_slots(key_bytes)]
  QueryScale* scales = nullptr;          // [head_steps][code_group]
  QueryPlan* plans = nullptr;            // [head_steps][code_group]
  float* scores = nullptr;               // [head_steps][code_group][scan_sample_units * 64], log2
  float* maxima = nullptr;               // of scores: of each 32
  int* count = nullptr;                  // [head_steps][scan_lists]: rows above the threshold
  int* arrived = nullptr;                // [head_steps]: warps; 0 before a scan and after it
  float* sums = nullptr;                 // [head_steps][splits][code_group][sum_axes(value_bytes)]
  float2* masses = nullptr;     // [head_steps][splits][code_group]: sum of weights, log2 reference
  DevicePartial parts;          // [scan_rare_parts][head_steps * group] heads: rare rows
  int* rare_arrived = nullptr;  // [head_steps]: blocks; 0 before a scan and after it

  __host__ __device__ int head_steps() const { return tokens * kv_heads; }
};

/// Whether the current device launches these kernels early.
bool can_scan_early();

/// Blocks of a KV head that fill the current device once, for one token of a scan over such codes
/// (key_bytes to softcap). Prepares the kernels.
int scan_splits(const CodeScan& scan);

/// query -> coefficients, scales, and plans from the scores of a sample. Beside that, what `copied`
/// names goes to the host, unless host_q is null: of one step, without a launch. Asynchronous.
void prepare_queries(const CodeScan& scan, const StepInput& copied, cudaStream_t stream);

/// After prepare_queries. Writes `found`: the rows whose codes score best for any query head,
/// `wanted` of them for each as far as a sample of the codes can tell (all codes, where a head has
/// no more than a sample). A row is written when it is met, the lists' numbers in the end, in no
/// order that a reader could rely on: what was there before tells it what is still to come. Then
/// `rare`, the attention over rare rows as they are, and, if a tail is wanted, `estimate` and
/// `noise`, of the attention over all rows in the ranges that are neither rare nor found.
/// Asynchronous.
void list_rows(const CodeScan& scan, cudaStream_t stream);

/// Codes of one head, as the host lays them out.
struct HostCodes {
  const std::uint8_t* keys;    // [blocks of 64][key_bytes][64]
  int key_bytes;               // at most a unit's; what it has more is 0
  const std::uint8_t* values;  // [keys / 4][lanes]; null: none
  int lanes, value_bits;
};

/// Fills units with codes. rare_keys: as in CodeScan, of this head. Asynchronous.
void encode_units(const HostCodes& codes, const int* rare_keys, int rare_count, int count,
                  int key_bytes, int value_bytes, std::uint8_t* units, cudaStream_t stream);

}  // namespace topkv::gpu
