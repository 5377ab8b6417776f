#include <cmath>
#include <string>

#include "bench/kernels/quest_bounds.h"
#include "gpu/entries/entry_checks.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

/// A thread a channel of a page. As the rounding is none, bounds are those of the keys themselves.
__global__ void bounds_kernel(const __nv_bfloat16* keys, std::int64_t key_slots, int head_dim,
                              int page, std::int64_t first_page, std::int64_t rows,
                              __nv_bfloat16* bounds, std::int64_t page_slots) {
  await_previous();
  const std::int64_t number = first_page + blockIdx.x;
  const std::int64_t head_step = blockIdx.y;
  const int channel = static_cast<int>(threadIdx.x);
  const __nv_bfloat16* from = keys + (head_step * key_slots + number * page) * head_dim + channel;
  const auto count = static_cast<int>(min(std::int64_t{page}, rows - number * page));
  float least = INFINITY;
  float most = -INFINITY;
  for (int i = 0; i < count; ++i) {
    const float x = __bfloat162float(from[static_cast<std::int64_t>(i) * head_dim]);
    least = fminf(least, x);
    most = fmaxf(most, x);
  }
  __nv_bfloat16* to = bounds + (head_step * page_slots + number) * 2 * head_dim + channel;
  to[0] = __float2bfloat16_rn(most);
  to[head_dim] = __float2bfloat16_rn(least);
}

}  // namespace

void bound_pages(const __nv_bfloat16* keys, std::int64_t head_steps, std::int64_t key_slots,
                 std::int64_t head_dim, std::int64_t page, std::int64_t first, std::int64_t rows,
                 __nv_bfloat16* bounds, std::int64_t page_slots, cudaStream_t stream) {
  check_head_dim("bounds of pages", head_dim);
  check_head_steps("bounds of pages", head_steps);
  if (page < 1 || first % page != 0)
    throw InvalidArgument("CUDA bounds of pages: from row " + std::to_string(first) +
                          " on in pages of " + std::to_string(page) +
                          ", expected a first row that begins a page");
  check_slots("bounds of pages", first, rows, key_slots);
  check_slots("bounds of pages", 0, (rows + page - 1) / page, page_slots);
  if (rows <= first || head_steps == 0) return;
  const std::int64_t first_page = first / page;
  const std::int64_t end = (rows + page - 1) / page;
  launch_overlapped(
      bounds_kernel,
      dim3(static_cast<unsigned>(end - first_page), static_cast<unsigned>(head_steps)),
      dim3(static_cast<unsigned>(head_dim)), 0, stream, keys, key_slots, static_cast<int>(head_dim),
      static_cast<int>(page), first_page, rows, bounds, page_slots);
}

}  // namespace topkv::gpu
