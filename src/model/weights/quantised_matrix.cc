// Matrices of checkpoints that are quantised already, brought into topkv's packings
// (core/matrix.h).
//
// Integers: codes have no sign, q in [0, 2^bits), and stand for scale * (q - zero). topkv's code is
// q - 2^(bits - 1), so that what is left of the zero point is an offset, scale * (2^(bits - 1) -
// zero): exact in float32, for scales of f16 and bf16 have 11 bits at most and zero points 8.
//
// Floats of 8 bits (e4m3): the bytes as they are; topkv's code is 1/256 of theirs, its scale 256
// times theirs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/text/printable.h"
#include "src/core/threads/threads.h"
#include "src/model/weights/quantisation.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Method = Quantisation::Method;

/// Outputs are read this many at a time, for words of neighbouring ones lie together in gptq and
/// awq.
constexpr std::int64_t outputs_at_once = 64;

/// Which nibble of a word of awq output i of 8 is in.
constexpr std::array<int, 8> awq_nibble = {0, 4, 1, 5, 2, 6, 3, 7};

int awq_shift(std::int64_t output) { return 4 * awq_nibble[static_cast<std::size_t>(output % 8)]; }

std::uint32_t word_at(const std::byte* words, std::int64_t at) {
  std::uint32_t word = 0;
  std::memcpy(&word, words + 4 * at, sizeof word);
  return word;
}

/// Blocks of that many that hold so many.
std::int64_t blocks(std::int64_t count, std::int64_t of) { return (count - 1) / of + 1; }

/// What is read of a module. Shapes have been checked. Outputs are those of the tensor, of which
/// the matrix has some from `first_output` on.
struct Module {
  Quantisation how;
  Matrix form;
  std::string what;  // "file: module name"
  std::int64_t first_output = 0;
  std::int64_t outputs = 0;
  const std::byte* codes = nullptr;
  const std::byte* zeros = nullptr;
  bool zeros_are_bytes = false;  // packed_int: int8 [outputs, groups], not in words
  SafeTensors::Tensor scales;
  std::vector<std::int32_t> order;  // empty: inputs in their own order

  std::int64_t per_word() const { return 32 / how.bits; }
  std::uint32_t mask() const { return (1U << how.bits) - 1; }
  int middle() const { return 1 << (how.bits - 1); }

  /// Without a sign; fp8: the byte.
  std::uint32_t code(std::int64_t output, std::int64_t input) const {
    const std::int64_t n = per_word();
    const auto byte = [&] {
      return std::to_integer<std::uint32_t>(codes[output * form.in_features + input]);
    };
    switch (how.method) {
      case Method::gptq: {  // [in / n, outputs]
        const auto word = word_at(codes, input / n * outputs + output);
        return word >> (input % n * how.bits) & mask();
      }
      case Method::awq: {  // [in, outputs / 8]
        const auto word = word_at(codes, input * (outputs / 8) + output / 8);
        return word >> awq_shift(output) & mask();
      }
      case Method::packed_int: {  // [outputs, ceil(in / n)]
        const auto word = word_at(codes, output * blocks(form.in_features, n) + input / n);
        return word >> (input % n * how.bits) & mask();
      }
      case Method::plain_int8:  // [outputs, in]
        return byte() ^ 0x80U;
      default:
        return byte();
    }
  }

  int zero(std::int64_t output, std::int64_t g) const {
    if (zeros == nullptr) return middle();
    const std::int64_t n = per_word();
    if (how.method == Method::plain_int8 || zeros_are_bytes) {
      return std::to_integer<std::int8_t>(zeros[output * form.groups() + g]) + middle();
    }
    if (how.method == Method::packed_int) {  // [ceil(outputs / n), groups]
      const auto word = word_at(zeros, output / n * form.groups() + g);
      return static_cast<int>(word >> (output % n * how.bits) & mask());
    }
    const auto word = word_at(zeros, g * (outputs / n) + output / n);
    if (how.method == Method::awq) return static_cast<int>(word >> awq_shift(output) & mask());
    const std::uint32_t stored = word >> (output % n * how.bits) & mask();
    // One less than 0 was written as the largest.
    return static_cast<int>(how.zeros_less_one ? (stored + 1) & mask() : stored);
  }

  /// In the file, of group g of the form.
  float scale(std::int64_t output, std::int64_t g) const {
    std::int64_t at = output * form.groups() + g;
    if (how.method == Method::gptq || how.method == Method::awq) {
      at = g * outputs + output;
    } else if (how.fp8() && how.group != 0) {
      at = output / how.block_rows * blocks(form.in_features, how.group) +
           g * form.group / how.group;
    } else if (how.block_rows == 0) {
      at = 0;
    }
    float value = 0;
    to_float(scales.data + at * bytes_of(scales.dtype), scales.dtype, 1, &value);
    return value;
  }

  void read_factors(std::int64_t output, float* to_scales, float* to_offsets) const {
    for (std::int64_t g = 0; g < form.groups(); ++g) {
      to_scales[g] = scale(output, g);
      if (!(std::abs(to_scales[g]) <= 1e30F)) {
        throw FileError(
            fmt::format("{} has scale {} of output {}, group {}; expected finite numbers of at "
                        "most 1e30: the file is damaged, or its source model is",
                        what, to_scales[g], output, g));
      }
      if (how.fp8()) {
        to_scales[g] *= 256;
        continue;
      }
      const int off = middle() - zero(output, g);
      if (to_offsets != nullptr) {
        to_offsets[g] = to_scales[g] * static_cast<float>(off);
      } else if (off != 0) {
        throw FileError(fmt::format(
            "{} has zero point {} of output {}, group {}, though quantization_config says that "
            "weights are symmetric; expected {}, or symmetric (sym) false",
            what, zero(output, g), output, g, middle()));
      }
    }
  }

  void check_number(std::uint32_t byte, std::int64_t output, std::int64_t input) const {
    if ((byte & 0x7fU) != 0x7fU) return;
    throw FileError(
        fmt::format("{} has NaN at [{}, {}]; expected finite weights: the file is damaged, or its "
                    "source model is",
                    what, output, input));
  }

  void read_codes(std::int64_t output, std::int64_t count, std::byte* to) const {
    std::vector<std::int8_t> row(static_cast<std::size_t>(form.in_features * count));
    for (std::int64_t k = 0; k < form.in_features; ++k) {
      const std::int64_t input = order.empty() ? k : order[static_cast<std::size_t>(k)];
      for (std::int64_t r = 0; r < count; ++r) {
        const std::uint32_t q = code(output + r, input);
        if (how.fp8()) check_number(q, output + r, input);
        row[static_cast<std::size_t>(r * form.in_features + k)] =
            static_cast<std::int8_t>(static_cast<int>(q) - (how.fp8() ? 0 : middle()));
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int8_t* from = row.data() + r * form.in_features;
      std::byte* out = to + r * form.row_bytes();
      if (form.packing == Packing::int4) {
        pack_int4(from, form.in_features, out);
      } else {
        std::memcpy(out, from, static_cast<std::size_t>(form.in_features));
      }
    }
  }

  void operator()(std::int64_t first, std::int64_t count, const PackedRows& to) const {
    parallel_for_alone(
        blocks(count, outputs_at_once), 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t block = begin; block < end; ++block) {
            const std::int64_t at = block * outputs_at_once;
            const std::int64_t rows = std::min(outputs_at_once, count - at);
            read_codes(first_output + first + at, rows, to.codes + at * form.row_bytes());
            for (std::int64_t r = at; r < at + rows; ++r) {
              const std::int64_t factor = r * form.groups();
              read_factors(first_output + first + r, to.scales + factor,
                           to.offsets == nullptr ? nullptr : to.offsets + factor);
            }
          }
        });
  }
};

class Reader {
 public:
  Reader(const SafeTensors& tensors, const std::string& module, MatrixRows rows, std::int64_t in,
         const Quantisation& how)
      : tensors_(tensors), module_(module), out_(rows.of), in_(in) {
    result_.how = how;
    result_.first_output = rows.first;
    result_.outputs = rows.of;
    const std::string codes = module + std::string(how.codes_name());
    result_.what = fmt::format("{}: module {}", path_text(tensors.path_of(codes)),
                               printable(module.substr(0, module.size() - 1)));
    result_.form = quantised_form(how, rows.count, in, result_.what);
  }

  MatrixSource read() {
    const std::int64_t groups = result_.form.groups();
    const std::int64_t n = result_.per_word();
    // Where weights are said to be symmetric, so that each row's zero point can be checked.
    const bool has_zeros = !result_.how.symmetric || tensors_.has(module_ + "weight_zero_point");
    switch (result_.how.method) {
      case Method::gptq:
        whole_words("outputs", out_, n);
        whole_words("inputs", in_, n);
        result_.codes = raw("qweight", {in_ / n, out_}, "I32");
        result_.zeros = raw("qzeros", {groups, out_ / n}, "I32");
        result_.scales = floats("scales", {groups, out_});
        read_order("g_idx");
        break;
      case Method::awq:
        whole_words("outputs", out_, n);
        result_.codes = raw("qweight", {in_, out_ / n}, "I32");
        result_.zeros = raw("qzeros", {groups, out_ / n}, "I32");
        result_.scales = floats("scales", {groups, out_});
        break;
      case Method::packed_int:
        result_.codes = raw("weight_packed", {out_, blocks(in_, n)}, "I32");
        result_.scales = floats("weight_scale", {out_, groups});
        if (has_zeros) read_packed_zeros(groups);
        check_shape();
        read_order("weight_g_idx");
        break;
      case Method::plain_int8:
        result_.codes = raw("weight", {out_, in_}, "I8");
        result_.scales = floats("weight_scale", {out_, groups});
        if (has_zeros) result_.zeros = raw("weight_zero_point", {out_, groups}, "I8");
        read_order("weight_g_idx");
        break;
      default:
        result_.codes = raw("weight", {out_, in_}, "F8_E4M3");
        result_.scales = fp8_scales();
    }
    MatrixSource source{result_.form, {}, result_.order};
    source.form.has_order = !result_.order.empty();
    result_.form = source.form;
    source.make = std::move(result_);
    return source;
  }

 private:
  void whole_words(const char* what, std::int64_t count, std::int64_t per_word) const {
    if (count % per_word == 0) return;
    throw Unsupported(fmt::format("{} has {} {}; expected a multiple of {}", result_.what, count,
                                  what, per_word));
  }

  const std::byte* raw(const char* name, std::vector<std::int64_t> shape, std::string_view dtype) {
    return tensors_.raw(module_ + name, shape, dtype).data();
  }

  SafeTensors::Tensor floats(const char* name, std::vector<std::int64_t> shape) {
    return tensors_.get(module_ + name, shape);
  }

  SafeTensors::Tensor fp8_scales() {
    const Quantisation& how = result_.how;
    const char* name = how.method == Method::block_fp8 ? "weight_scale_inv" : "weight_scale";
    if (how.group != 0) return floats(name, {blocks(out_, how.block_rows), blocks(in_, how.group)});
    if (how.block_rows == 0) {
      const std::string full = module_ + name;
      return floats(name, tensors_.has(full) && tensors_.shape(full).empty()
                              ? std::vector<std::int64_t>()
                              : std::vector<std::int64_t>{1});
    }
    return floats(name, {out_, 1});
  }

  /// In words along the outputs, or one byte each as older files have them.
  void read_packed_zeros(std::int64_t groups) {
    constexpr const char* name = "weight_zero_point";
    result_.zeros_are_bytes =
        tensors_.has(module_ + name) && tensors_.dtype(module_ + name) == "I8";
    result_.zeros = result_.zeros_are_bytes
                        ? raw(name, {out_, groups}, "I8")
                        : raw(name, {blocks(out_, result_.per_word()), groups}, "I32");
  }

  /// compressed-tensors say it again.
  void check_shape() {
    if (!tensors_.has(module_ + "weight_shape")) return;
    const std::byte* shape = raw("weight_shape", {2}, "I64");
    std::array<std::int64_t, 2> said{};
    std::memcpy(said.data(), shape, sizeof said);
    if (said == std::array<std::int64_t, 2>{out_, in_}) return;
    throw FileError(fmt::format("{} has weight_shape [{}, {}]; expected [{}, {}]", result_.what,
                                said[0], said[1], out_, in_));
  }

  /// Which group each input is in. Inputs are put in the order of their groups.
  void read_order(const char* name) {
    if (!result_.how.needs_order && !tensors_.has(module_ + name)) return;
    const std::byte* groups = raw(name, {in_}, "I32");
    const std::int64_t group = result_.form.group;
    std::vector<std::int32_t> group_of(static_cast<std::size_t>(in_));
    std::memcpy(group_of.data(), groups, group_of.size() * sizeof(std::int32_t));
    std::vector<std::int64_t> members(static_cast<std::size_t>(in_ / group));
    bool in_order = true;
    for (std::int64_t i = 0; i < in_; ++i) {
      const std::int32_t g = group_of[static_cast<std::size_t>(i)];
      if (g < 0 || g >= in_ / group) {
        throw FileError(fmt::format("{} has {} {} of input {}; expected 0 to {}", result_.what,
                                    name, g, i, in_ / group - 1));
      }
      ++members[static_cast<std::size_t>(g)];
      in_order = in_order && g == i / group;
    }
    for (std::size_t g = 0; g < members.size(); ++g) {
      if (members[g] == group) continue;
      throw Unsupported(fmt::format("{} has {} inputs in group {} of {}; topkv takes {} in each",
                                    result_.what, members[g], g, name, group));
    }
    if (in_order) return;
    result_.order.resize(static_cast<std::size_t>(in_));
    std::iota(result_.order.begin(), result_.order.end(), 0);
    std::ranges::stable_sort(result_.order, {},
                             [&](std::int32_t i) { return group_of[static_cast<std::size_t>(i)]; });
  }

  const SafeTensors& tensors_;
  std::string module_;
  std::int64_t out_;
  std::int64_t in_;
  Module result_;
};

}  // namespace

Matrix quantised_form(const Quantisation& how, std::int64_t out, std::int64_t in,
                      const std::string& what) {
  Matrix form{nullptr, DType::f32, out, in};
  form.packing = how.fp8() ? Packing::fp8 : how.bits == 4 ? Packing::int4 : Packing::int8;
  form.group = how.group == 0 ? in : how.group;
  form.has_offsets = !how.symmetric;
  const std::int64_t step = group_step(form.packing);
  // The last block of a row may be a shorter one: scales are repeated for parts of blocks.
  if (how.fp8() && form.group >= in) form.group = in;
  if (how.fp8()) form.group = std::gcd(form.group, in);
  const bool whole_row = form.packing != Packing::int4 && form.group == in;
  if (in % form.group != 0 || (form.group % step != 0 && !whole_row)) {
    throw Unsupported(fmt::format(
        "{} has {} inputs in groups of {}; topkv takes groups of a multiple of {} that divide "
        "them",
        what, in, how.group == 0 ? in : how.group, step));
  }
  return form;
}

MatrixSource find_quantised(const SafeTensors& tensors, const std::string& module, MatrixRows rows,
                            std::int64_t in, const Quantisation& how) {
  return Reader(tensors, module, rows, in, how).read();
}

}  // namespace topkv
