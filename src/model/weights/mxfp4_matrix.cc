// Experts in MXFP4, as gpt-oss's checkpoints have them (OCP Microscaling Formats 1.0), brought into
// Packing::fp4: NAME_blocks, uint8 [experts, outputs, groups, 16], the lower four bits of a byte
// first, and NAME_scales, uint8 [experts, outputs, groups], powers of 2 by their exponent + 127.
//
// topkv's code is twice e2m1's, so its scale is half of the file's; all values are kept.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "src/core/text/printable.h"
#include "src/core/threads/threads.h"
#include "src/model/weights/quantisation.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t group = 32;
constexpr std::int64_t group_bytes = group / 2;
constexpr unsigned middle = 127;   // of exponents
constexpr unsigned largest = 226;  // below 1e30, as other scales; 255 is NaN

struct Mxfp4 {
  Matrix form;
  std::string what;  // "file: tensor name"
  Checkpoint::FusedExpert which;
  const std::byte* blocks = nullptr;  // of the expert
  const std::byte* scales = nullptr;

  void read_row(std::int64_t row, std::byte* codes, float* to_scales,
                std::vector<std::uint8_t>& nibbles) const {
    const std::int64_t output = which.first + row * which.step;
    const std::int64_t first = output * form.groups();
    for (std::int64_t g = 0; g < form.groups(); ++g) {
      const auto exponent = std::to_integer<unsigned>(scales[first + g]);
      if (exponent > largest) {
        throw FileError(
            fmt::format("{}_scales has {} at [{}, {}, {}]; expected {} at most (2^{}): the file is "
                        "damaged, or its source model is",
                        what, exponent, which.expert, output, g, largest, largest - middle));
      }
      to_scales[g] = std::ldexp(1.0F, static_cast<int>(exponent) - static_cast<int>(middle) - 1);
    }
    const std::byte* from = blocks + first * group_bytes;
    for (std::int64_t i = 0; i < form.in_features; i += 2, ++from) {
      const auto byte = std::to_integer<std::uint8_t>(*from);
      nibbles[static_cast<std::size_t>(i)] = byte & 15U;
      nibbles[static_cast<std::size_t>(i + 1)] = static_cast<std::uint8_t>(byte >> 4U);
    }
    pack_nibbles(nibbles.data(), form.in_features, codes);
  }

  void operator()(std::int64_t first, std::int64_t count, const PackedRows& to) const {
    constexpr std::int64_t grain = 16;
    parallel_for_alone(count, grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::uint8_t> nibbles(static_cast<std::size_t>(form.in_features));
      for (std::int64_t r = begin; r < end; ++r)
        read_row(first + r, to.codes + r * form.row_bytes(), to.scales + r * form.groups(),
                 nibbles);
    });
  }
};

}  // namespace

Matrix mxfp4_form(std::int64_t out, std::int64_t in, const std::string& what) {
  if (in % group != 0) {
    throw Unsupported(
        fmt::format("{} has {} inputs; expected a multiple of {} in mxfp4", what, in, group));
  }
  Matrix form{nullptr, DType::f32, out, in};
  form.packing = Packing::fp4;
  form.group = group;
  return form;
}

MatrixSource find_mxfp4(const SafeTensors& tensors, const std::string& name,
                        const Checkpoint::FusedExpert& which, std::int64_t out, std::int64_t in) {
  Mxfp4 source;
  source.what = fmt::format("{}: tensor {}", path_text(tensors.path_of(name + "_blocks")),
                            printable_beginning(name));
  const Matrix form = mxfp4_form(out, in, source.what);
  const std::int64_t outputs = out * which.step;
  const std::int64_t groups = form.groups();
  const auto of_expert = [&](const char* part, std::vector<std::int64_t> shape,
                             std::int64_t bytes) {
    return tensors.raw(name + part, shape, "U8").data() + which.expert * bytes;
  };
  source.form = form;
  source.which = which;
  source.blocks = of_expert("_blocks", {which.experts, outputs, groups, group_bytes},
                            outputs * groups * group_bytes);
  source.scales = of_expert("_scales", {which.experts, outputs, groups}, outputs * groups);
  return {form, std::move(source), {}};
}

}  // namespace topkv
