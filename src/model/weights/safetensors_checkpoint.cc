#include "src/model/weights/safetensors_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/text/printable.h"
#include "src/model/weights/check_finite.h"
#include "src/model/weights/quantisation.h"
#include "src/model/weights/safetensors.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::string_view weight = "weight";

/// A tensor of the parts of a model that read pictures, or listen.
bool reads_pictures(std::string_view name) {
  constexpr std::string_view within = "model.";
  if (name.starts_with(within)) name.remove_prefix(within.size());
  return std::ranges::any_of(
      std::array<std::string_view, 6>{"visual.", "vision_tower.", "multi_modal_projector.",
                                      "embed_vision.", "audio_tower.", "embed_audio."},
      [&](std::string_view part) { return name.starts_with(part); });
}

class SafeTensorsCheckpoint : public Checkpoint {
 public:
  explicit SafeTensorsCheckpoint(const std::filesystem::path& directory)
      : tensors_(SafeTensors::open(directory)), how_(Quantisation::load(directory)) {}

  const std::filesystem::path& source() const override { return tensors_.source(); }
  // A configuration may speak of codes that no tensor has.
  std::string quantised() const override {
    const std::vector<std::string> names = tensors_.names();
    const bool codes = std::ranges::any_of(
        names, [&](const std::string& name) { return !tensors_.is_float(name); });
    return codes ? how_.text() : "";
  }

  // Frequencies of RoPE follow from config.json; scales of activations and of stored rows belong to
  // ways of rounding these that are not topkv's; GPTQ's writers add biases of zeros.
  std::vector<std::string> unread() const override {
    std::vector<std::string> names = tensors_.unread();
    // A layer behind the last that drafts tokens (DeepSeek-V3's MTP) has a projection of its own.
    constexpr std::string_view of_draft = "eh_proj.weight";
    std::vector<std::string> drafts;
    for (const std::string& name : names)
      if (name.ends_with(of_draft)) drafts.push_back(name.substr(0, name.size() - of_draft.size()));
    std::erase_if(names, [&](const std::string& name) {
      return std::ranges::any_of(drafts,
                                 [&](const std::string& at) { return name.starts_with(at); });
    });
    std::erase_if(names, [&](const std::string& name) {
      const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
      // What reads pictures, and the layer that drafts tokens, are other networks.
      if (name.starts_with("mtp.") || reads_pictures(name)) return true;
      if (name.ends_with(".bias") && std::ranges::all_of(tensors_.bytes(name), is_zero))
        return true;
      return std::ranges::any_of(std::array{".inv_freq", ".input_scale", ".activation_scale",
                                            ".output_scale", ".k_scale", ".v_scale"},
                                 [&](const char* end) { return name.ends_with(end); });
    });
    return names;
  }

  void leave(const std::string& name) const override {
    if (const auto found = find(name)) tensors_.leave(*found);
  }

  bool has(const std::string& name) const override { return find(name) || find(codes_of(name)); }

  MatrixSource matrix(const std::string& name, MatrixRows rows, std::int64_t in,
                      WeightFormat format) const override {
    const auto plain = find(name);
    const std::string codes = codes_of(name);
    if (codes.empty() || (plain && tensors_.is_float(*plain))) {
      return find_matrix(tensors_, name_in(name), rows, in, format);
    }
    const std::string found = find(codes).value_or(codes);
    const std::string module = found.substr(0, found.size() - how_.codes_name().size());
    return find_quantised(tensors_, module, rows, in, how_);
  }

  MatrixSource fused_expert(const std::string& name, const FusedExpert& which, std::int64_t out,
                            std::int64_t in, WeightFormat format) const override {
    if (how_.method == Quantisation::Method::mxfp4 && !find(name)) {
      const std::string blocks = name_in(name + "_blocks");
      return find_mxfp4(tensors_, blocks.substr(0, blocks.size() - std::strlen("_blocks")), which,
                        out, in);
    }
    const std::string found = name_in(name);
    const std::int64_t outputs = out * which.step;
    const SafeTensors::Tensor tensor = tensors_.get(found, std::array{which.experts, in, outputs});
    const std::int64_t before = which.expert * in * outputs + which.first;
    return stepped_matrix({.data = tensor.data + before * bytes_of(tensor.dtype),
                           .dtype = tensor.dtype,
                           .out_features = out,
                           .in_features = in,
                           .row_step = which.step,
                           .input_step = outputs},
                          format,
                          fmt::format("{}: expert {} of tensor {}",
                                      path_text(tensors_.path_of(found)), which.expert, found));
  }

  MatrixSource stacked_expert(const std::string& name, const StackedExpert& which, std::int64_t out,
                              std::int64_t in, WeightFormat format) const override {
    const std::string found = name_in(name);
    const SafeTensors::Tensor tensor =
        tensors_.get(found, std::array{which.experts, which.parts * out, in});
    const std::int64_t before = (which.expert * which.parts + which.part) * out * in;
    return plain_matrix({tensor.data + before * bytes_of(tensor.dtype), tensor.dtype, out, in},
                        format,
                        fmt::format("{}: expert {} of tensor {}",
                                    path_text(tensors_.path_of(found)), which.expert, found),
                        which.part * out);
  }

  std::int64_t fused_biases(const std::string& name, std::int64_t experts,
                            std::span<float> to) const override {
    const auto count = static_cast<std::int64_t>(to.size());
    return widened(name_in(name), std::array{experts, count / experts}, to);
  }

  std::int64_t vector(const std::string& name, std::span<float> to) const override {
    return widened(name_in(name), std::array{std::ssize(to)}, to);
  }

  std::int64_t convolution(const std::string& name, std::int64_t channels, std::int64_t kernel,
                           std::span<float> to) const override {
    return widened(name_in(name), std::array{channels, std::int64_t{1}, kernel}, to);
  }

  void check_finite() const override { tensors_.check_finite(); }

 private:
  std::int64_t widened(const std::string& name, std::span<const std::int64_t> shape,
                       std::span<float> to) const {
    const SafeTensors::Tensor tensor = tensors_.get(name, shape);
    topkv::check_finite(tensor.data, tensor.dtype, shape,
                        fmt::format("{}: tensor {}", path_text(tensors_.path_of(name)), name));
    to_float(tensor.data, tensor.dtype, std::ssize(to), to.data());
    return std::ssize(to) * bytes_of(tensor.dtype);
  }

  /// Of a matrix in a checkpoint that is quantised, the name of what has its codes; else empty (in
  /// mxfp4 only experts have some, which are asked for otherwise).
  std::string codes_of(const std::string& name) const {
    using Method = Quantisation::Method;
    const bool plain = how_.method == Method::none || how_.method == Method::mxfp4;
    if (plain || !name.ends_with(weight)) return {};
    return name.substr(0, name.size() - weight.size()) + std::string(how_.codes_name());
  }

  /// A weight's name in the file. A file may be of the base model, without "model." in front, or of
  /// a model within another, with one more; transformers loads both.
  std::optional<std::string> find(const std::string& name) const {
    constexpr std::string_view prefix = "model.";
    std::vector<std::string> names = {name, std::string(prefix) + name, "language_model." + name};
    if (name.starts_with(prefix)) {
      const std::string rest = name.substr(prefix.size());
      names.push_back(rest);
      names.push_back("model.language_model." + rest);
      // Nemotron-H's own names.
      names.push_back("backbone." + (rest == "embed_tokens.weight" ? "embeddings.weight" : rest));
      if (rest == "embed_tokens.weight") names.push_back("model.embeddings.weight");
    }
    std::erase_if(names, [&](const std::string& one) { return !tensors_.has(one); });
    if (names.size() > 1) {
      throw FileError(
          fmt::format("{}: has tensors {} and {}, which are the same weight; expected one",
                      path_text(source()), names[0], names[1]));
    }
    if (names.empty()) return {};
    return names.front();
  }

  std::string name_in(const std::string& name) const {
    if (auto found = find(name)) return *std::move(found);
    if (name == "lm_head.weight" && find("model.embed_tokens.weight")) {
      throw FileError(fmt::format(
          "{}: has no tensor lm_head.weight, and config.json does not tie it to the embedding: the "
          "output layer is missing; expected the whole model's weights (saved from "
          "AutoModelForCausalLM), or tie_word_embeddings true if the model ties them",
          path_text(source())));
    }
    return name;  // to be missed under the name that it should have
  }

  SafeTensors tensors_;
  Quantisation how_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_safetensors(const std::filesystem::path& directory) {
  return std::make_unique<SafeTensorsCheckpoint>(directory);
}

}  // namespace topkv
