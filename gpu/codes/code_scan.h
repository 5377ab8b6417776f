// A scan over the codes of one layer, for one or more tokens. It lists the rows with the best
// scores for each token, and estimates the attention over all other rows.
#pragma once

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/attention/row_blocks.h"
#include "gpu/attention/step_io.h"
#include "src/attention/query_forms.h"

namespace topkv::gpu {

inline constexpr int scan_heads = 64;            // the most KV heads in a scan, over all its tokens
inline constexpr int scan_batch = 8;             // the most tokens of a scan
inline constexpr int scan_rare_parts = 16;       // partials over the rare rows of a KV head
inline constexpr int scan_listed_parts = 16;     // partials over the listed rows of a KV head
inline constexpr int most_listed = 4096;         // rows of a KV head that the device attends
inline constexpr int scan_lists = 8;             // the most lists of a KV head
inline constexpr int scan_correction_parts = 4;  // of the sample, that correct a query head's tail
inline constexpr int scan_sample_units = 512;    // code units in the sample of a head

/// The rows of one KV head that one token may attend: ranges of the keys with codes, and of the
/// rare keys, by their number within each kind.
struct ScanRange {
  int begin, end;
  int rare_begin, rare_end;
};

/// Where the rows that one form of a query meets begin, as a ScanRange counts them.
struct ScanBorder {
  int begin, rare_begin;
};

/// The rows of a layer in device memory, as they are stored, for attention over those that a scan
/// lists. Null keys: the host attends them.
struct ListedRows {
  const std::byte* keys = nullptr;  // [kv_heads], head_bytes each; likewise values
  const std::byte* values = nullptr;
  std::int64_t head_bytes = 0;
  std::int64_t key_bytes = 0, value_bytes = 0;  // of one vector
  DType key_type = DType::bf16, value_type = DType::bf16;
  StoredKeys stored;
  int form_begin[query_forms - 1] = {};  // of forms but the last: the first position each meets
  PartialView to;                        // [kv_heads * group] heads, in device memory
  double* attended = nullptr;            // added to: the rows
};

/// The scale of a query head's scores, in units of log2, from prepare_queries. The score of a key
/// is lo * (256 high + low + sums of products with the high and low bytes of its coefficients) +
/// add.
struct QueryScale {
  float lo, add;
};

/// The constants of a query head for the pass over the codes, from prepare_queries.
struct QueryPlan {
  float lo, add;    // add: -257 lo * magic
  int high, low;    // initial sums: the score less the reference, or the score if it is capped
  float reference;  // weights are relative to 2^reference
};

/// What is known of the errors of one head's codes.
struct HeadErrors {
  float value_variance, value_error_variance;  // HeadCodes'
  double shared_unit;
};

/// A part of what is known of the errors of a query head's tail. Sums over a part of the sample, of
/// keys below the threshold: of weights by codes, of the squares of weights corrected for the
/// codes' errors, of those times the variance that the errors give them; and the number of keys in
/// the part. For each form of the query the sum of corrected weights, and a part of the squared
/// shared error (SharedError), which is not of the sample.
struct CorrectionSums {
  float plain, squares, noise, sampled;
  float corrected[query_forms], shared[query_forms];
};

/// One token's part in a scan. Its memory is device memory; `found` is page-locked host memory.
struct ScanToken {
  const float* query[query_forms] = {};  // [kv_heads * group, head_dim] each
  TailParts parts;                       // [kv_heads * group] heads; exact: over rare rows
  // [lists][kv_heads][1 + capacity]: a length, then positions. They arrive in any order.
  int* found = nullptr;
};

/// A scan, and the views of the memory that its kernels use. It owns nothing. All pointers are to
/// device memory. Members up to unit_slots belong to the codes and do not change. A *head step* is
/// one token with one KV head; its number is token * kv_heads + KV head.
///
/// With dual chunk attention (chunk_passes.h) a scan of one token has several forms of its query.
/// Form 0 meets the last rows of the range, and each other one the rows before. They share one
/// threshold and one reference of weights, so that lists and sums are those of one softmax. A *form
/// step* is one form of a head step; its number is form * head_steps() + head step.
struct CodeScan {
  const std::uint8_t* units = nullptr;  // [kv_heads], head_bytes each (code_format.cuh)
  std::int64_t head_bytes = 0;
  const float* tables = nullptr;        // [kv_heads] HeadTables
  const __nv_bfloat16* rare = nullptr;  // [kv_heads][2 (keys, values)][rare_slots][head_dim]
  const int* rare_keys = nullptr;    // [kv_heads][rare_slots]: position less number among rare rows
  const int* rare_before = nullptr;  // [kv_heads][unit_slots + 1]: rare rows below position 64 i
  const HeadErrors* errors = nullptr;   // [kv_heads]
  const float* shared_forms = nullptr;  // [kv_heads][dims][dims]: HeadCodes::shared_form, or zeros
  std::int64_t rare_slots = 0, unit_slots = 0;
  int key_bytes = 0;    // 16, 32, 64
  int value_bytes = 0;  // 0, 8, 16, 32
  int kv_heads = 0, group = 0, head_dim = 0;
  float scale = 0;
  float softcap = 0;  // AttentionShape::softcap

  int wanted = 0;      // rows wanted for each query head
  int lists = 1;       // lists of a KV head; rows are spread over them
  int capacity = 0;    // rows that a list can hold
  int splits = 0;      // thread blocks of a head step
  bool tail = false;   // whether the tail is estimated; there are bytes of values then
  bool early = false;  // whether a kernel may begin before the one before it ends
  int tokens = 1;
  int forms = 1;
  ScanToken token[scan_batch];
  ScanRange range[scan_heads];                     // [head_steps]
  ScanBorder border[query_forms - 1][scan_heads];  // [forms - 1][kv_heads]: of all but the last

  std::uint8_t* coefficients = nullptr;  // [form_steps][16][key_slots(key_bytes)]
  QueryScale* scales = nullptr;          // [form_steps][code_group]
  QueryPlan* plans = nullptr;            // [form_steps][code_group]
  float* scores = nullptr;               // [head_steps][code_group][scan_sample_units * 64], log2
  float* maxima = nullptr;               // the maximum of each 32 scores
  int* count = nullptr;                  // [head_steps][scan_lists]: rows above the threshold
  int* arrived = nullptr;                // [head_steps]: warps; 0 before a scan and after it
  float* sums = nullptr;                 // [head_steps][splits][code_group][sum_axes(value_bytes)]
  float2* masses = nullptr;  // [head_steps][splits][code_group]: sum of weights, log2 reference
  CorrectionSums* corrections = nullptr;  // [head_steps * group][scan_correction_parts]
  float2* tail_masses = nullptr;          // [head_steps * group]: sum of weights, log2 reference
  int* tail_arrived = nullptr;  // [head_steps * group]: blocks; 0 before a scan and after it
  PartialView parts;            // [scan_rare_parts][head_steps * group] heads: rare rows
  int* rare_arrived = nullptr;  // [head_steps]: blocks; 0 before a scan and after it

  // With listed_rows the scan has one token, one list of at most most_listed rows, and `found` in
  // device memory.
  ListedRows listed_rows;
  PartialView listed_parts;       // [scan_listed_parts][kv_heads * group] heads
  int* listed_arrived = nullptr;  // [kv_heads]: blocks; 0 before a scan and after it

  __host__ __device__ int head_steps() const { return tokens * kv_heads; }
  __host__ __device__ int form_steps() const { return forms * head_steps(); }
  __host__ __device__ int form_step(int form, int head_step) const {
    return form * head_steps() + head_step;
  }
  /// The rows of a head step that a form meets.
  __host__ __device__ ScanRange form_range(int form, int head_step) const {
    ScanRange of = range[head_step];
    if (form + 1 < forms) {
      of.begin = border[form][head_step].begin;
      of.rare_begin = border[form][head_step].rare_begin;
    }
    if (form > 0) {
      of.end = border[form - 1][head_step].begin;
      of.rare_end = border[form - 1][head_step].rare_begin;
    }
    return of;
  }
};

/// Whether kernels of a scan can begin early on the current device.
bool can_scan_early();

/// The number of thread blocks of a KV head that fill the current device once, for one token of a
/// scan over such codes. It reads key_bytes to softcap, and prepares the kernels.
int scan_splits(const CodeScan& scan);

/// Computes coefficients, scales and, from the scores of a sample, plans for the queries. It also
/// copies the input that `copied` names to the host, unless copied.host_q is null; this needs no
/// launch of its own and takes one step. Asynchronous.
void prepare_queries(const CodeScan& scan, const StepInput& copied, cudaStream_t stream);

/// Runs the pass over the codes, and attends the rows found if listed_rows has keys. Call it after
/// prepare_queries. It writes `found`: the `wanted` rows with the best scores for each query head.
/// A sample of the codes decides how many rows pass; with no more codes than the sample has, the
/// number is exact. Rows arrive in any order, and lengths last. Readers know that a row has arrived
/// because its place no longer holds the value from before. Then it writes parts.exact, the
/// attention over rare rows. If a tail is wanted, it also writes parts.estimate and parts.noise for
/// all rows in the ranges that are neither rare nor found. Asynchronous.
void list_rows(const CodeScan& scan, cudaStream_t stream);

/// Codes of one head in device memory, still in the layout of the host.
struct StagedCodes {
  const std::uint8_t* keys;    // [blocks of 64][key_bytes][64]
  int key_bytes;               // at most the bytes of a unit, which zeros fill up
  const std::uint8_t* values;  // [keys / 4][lanes]; null: none
  int lanes, value_bits;
};

/// Fills the units of one head with codes. rare_keys: as in CodeScan, for this head. Asynchronous.
void encode_units(const StagedCodes& codes, const int* rare_keys, int rare_count, int count,
                  int key_bytes, int value_bytes, std::uint8_t* units, cudaStream_t stream);

}  // namespace topkv::gpu
