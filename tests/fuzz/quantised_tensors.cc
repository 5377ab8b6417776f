// The tensors of a quantised matrix: a byte that says how it is quantised, and a file of tensors.
#include <vector>

#include "src/core/math/matrix.h"
#include "src/model/weights/quantisation.h"
#include "src/model/weights/safetensors.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

namespace {

using topkv::Quantisation;
using Method = Quantisation::Method;

constexpr std::int64_t inputs = 64;
constexpr std::int64_t outputs = 16;

constexpr Quantisation kinds[] = {
    {.method = Method::gptq, .bits = 4, .group = 32},
    {.method = Method::gptq, .bits = 8, .group = 32, .symmetric = false, .needs_order = true},
    {.method = Method::gptq, .bits = 4, .group = 32, .zeros_less_one = false, .needs_order = true},
    {.method = Method::awq, .bits = 4, .group = 32, .symmetric = false},
    {.method = Method::packed_int, .bits = 4, .group = 32},
    {.method = Method::packed_int, .bits = 8, .group = 0, .symmetric = false},
    {.method = Method::plain_int8, .bits = 8, .group = 0},
    {.method = Method::block_fp8, .bits = 8, .group = 32, .block_rows = 8},
    {.method = Method::plain_fp8, .bits = 8, .group = 0},
    {.method = Method::plain_fp8, .bits = 8, .group = 0, .block_rows = 0},
};

void make(const topkv::MatrixSource& source) {
  if (!source.make) return;
  const topkv::Matrix& form = source.form;
  for (const std::int32_t input : source.order)
    fuzz::require(input >= 0 && input < inputs, "an input that is not there");
  const auto rows = static_cast<std::size_t>(form.out_features);
  const auto scales = form.packed() ? rows * static_cast<std::size_t>(form.groups()) : 0;
  // On the heap, of their own sizes.
  std::vector<std::byte> codes(rows * static_cast<std::size_t>(form.row_bytes()));
  std::vector<float> of_groups(scales);
  std::vector<float> offsets(form.has_offsets ? scales : 0);
  source.make(0, form.out_features,
              {codes.data(), of_groups.data(), form.has_offsets ? offsets.data() : nullptr});
}

}  // namespace

FUZZ_TARGET(quantised_tensors)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  folder.write("model.safetensors", fuzz::text_of(data + 1, size - 1));
  fuzz::accepts(
      [&] {
        const auto tensors = topkv::SafeTensors::open(folder.path());
        if (data[0] % 16 == 15)
          return make(topkv::find_mxfp4(
              tensors, "m", {.expert = 1, .experts = 2, .first = 0, .step = 1}, outputs, inputs));
        make(topkv::find_quantised(tensors, "m.", {0, outputs, outputs}, inputs,
                                   kinds[data[0] % std::size(kinds)]));
      },
      folder.text());
  return 0;
}
