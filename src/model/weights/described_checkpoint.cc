#include "src/model/weights/described_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/model/weights/quantisation.h"
#include "src/model/weights/weight_placer.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

DType dtype_of(const Json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key)) continue;
    const Json& value = config[key];
    if (value == "float32") return DType::f32;
    if (value == "float16") return DType::f16;
  }
  return DType::bf16;
}

class DescribedCheckpoint : public Checkpoint {
 public:
  explicit DescribedCheckpoint(const std::filesystem::path& directory)
      : file_(directory / "config.json") {
    const Json config = read_python_json_file(file_);
    dtype_ = dtype_of(config);
    how_ = Quantisation::parse(config, file_);
  }

  const std::filesystem::path& source() const override { return file_; }
  std::string quantised() const override { return how_.text(); }
  /// What is tied is there once. Whether there is a layer that drafts tokens is seen when the files
  /// are there.
  bool has(const std::string& name) const override {
    return name != head_name && name != "mtp.fc.weight" && !name.ends_with(".eh_proj.weight");
  }

  MatrixSource matrix(const std::string& name, MatrixRows rows, std::int64_t in,
                      WeightFormat format) const override {
    const std::string what = what_of(name);
    if (!has_codes(name)) {
      return plain_matrix({nullptr, dtype_, rows.count, in}, format, what, rows.first);
    }
    MatrixSource source{quantised_form(how_, rows.count, in, what), {}, {}};
    source.form.has_order = how_.needs_order;
    return source;
  }

  MatrixSource fused_expert(const std::string& name, const FusedExpert& which, std::int64_t out,
                            std::int64_t in, WeightFormat format) const override {
    const std::string what = what_of(name);
    if (how_.method == Quantisation::Method::mxfp4) return {mxfp4_form(out, in, what), {}, {}};
    return stepped_matrix({nullptr, dtype_, out, in, which.step, out * which.step}, format, what);
  }

  MatrixSource stacked_expert(const std::string& name, const StackedExpert& which, std::int64_t out,
                              std::int64_t in, WeightFormat format) const override {
    return plain_matrix({nullptr, dtype_, out, in}, format, what_of(name), which.part * out);
  }

  std::int64_t fused_biases(const std::string& /*name*/, std::int64_t /*experts*/,
                            std::span<float> to) const override {
    return std::ssize(to) * bytes_of(dtype_);
  }

  std::int64_t convolution(const std::string& /*name*/, std::int64_t /*channels*/,
                           std::int64_t /*kernel*/, std::span<float> to) const override {
    return std::ssize(to) * bytes_of(dtype_);
  }

  /// The bias for the choice of experts is never rounded.
  std::int64_t vector(const std::string& name, std::span<float> to) const override {
    const bool whole = name.ends_with(".e_score_correction_bias") || name.ends_with(".expert_bias");
    return std::ssize(to) * bytes_of(whole ? DType::f32 : dtype_);
  }

 private:
  std::string what_of(const std::string& name) const {
    return fmt::format("{}: tensor {}", path_text(file_), name);
  }

  /// Matrices of attention, MLPs and experts. Those who quantise leave tables and routers plain;
  /// which others they leave is seen when the files are there.
  bool has_codes(std::string_view name) const {
    using Method = Quantisation::Method;
    if (how_.method == Method::none || how_.method == Method::mxfp4) return false;
    return name != embedding_name && name != head_name && !name.ends_with(".gate.weight");
  }

  std::filesystem::path file_;
  DType dtype_ = DType::bf16;
  Quantisation how_;
};

}  // namespace

std::unique_ptr<Checkpoint> describe_checkpoint(const std::filesystem::path& directory) {
  return std::make_unique<DescribedCheckpoint>(directory);
}

}  // namespace topkv
