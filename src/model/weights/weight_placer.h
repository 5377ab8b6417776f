// Puts the weights of a checkpoint behind each other into one block of a device's memory, or only
// measures what they take. One pass measures, a second puts them there, by the same calls.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/device/pieces.h"
#include "src/model/weights/weights.h"

namespace topkv {

inline constexpr const char* embedding_name = "model.embed_tokens.weight";
inline constexpr const char* head_name = "lm_head.weight";

/// Lays weights out behind each other and, when there is storage, puts them there.
class Placer {
 public:
  Placer(const Checkpoint& from, const DeviceSizes& measure, WeightFormat format)
      : from_(from), measure_(measure), format_(format) {}
  /// size: what a Placer without storage found.
  Placer(const Checkpoint& from, ComputeDevice& device, const LoadOptions& options,
         const WeightsSize& size, std::byte* storage)
      : from_(from),
        measure_(device),
        format_(options.weights),
        device_(&device),
        storage_(storage),
        progress_(options.progress),
        total_(size.held) {}

  bool has(const std::string& name) const { return from_.has(name); }

  WeightsSize size() const { return {pieces_.used(), held_, packed_, embedding_, idle_}; }

  Matrix matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    return rows(name, 0, out, out, in);
  }

  /// Rows first .. first + out of a matrix of `of` rows: several lie in one tensor behind each
  /// other.
  Matrix rows(const std::string& name, std::int64_t first, std::int64_t out, std::int64_t of,
              std::int64_t in) {
    return place(from_.matrix(name, {first, out, of}, in, format_));
  }

  /// As the checkpoint has it, whatever other matrices are rounded to: a router, whose choices
  /// rounding would change, and which is small.
  Matrix unrounded(const std::string& name, std::int64_t out, std::int64_t in) {
    return place(from_.matrix(name, {0, out, out}, in, WeightFormat::stored));
  }

  struct TensorRows {
    std::string tensor;
    MatrixRows rows;
  };
  /// Several runs of rows, one behind the other.
  Matrix joined(const std::vector<TensorRows>& pieces, std::int64_t in) {
    return place(join(pieces, in, format_));
  }
  /// As unrounded. Pieces that differ in form are widened to float32: the matrix is to be small.
  Matrix unrounded_joined(const std::vector<TensorRows>& pieces, std::int64_t in);

  /// A matrix [out, in] of each expert, by the names at + "0." + projection + ".weight" and so on.
  ExpertMatrices named_experts(const std::string& at, std::string_view projection,
                               const ExpertMixture& mixture, std::int64_t out, std::int64_t in);

  /// Of one tensor for all: see Checkpoint::FusedExpert.
  ExpertMatrices fused_experts(const std::string& name, const ExpertMixture& mixture,
                               std::int64_t out, std::int64_t in, std::int64_t first,
                               std::int64_t step);

  /// Of one tensor for all: see Checkpoint::stacked_expert.
  ExpertMatrices stacked_experts(const std::string& name, const ExpertMixture& mixture,
                                 std::int64_t out, std::int64_t in, std::int64_t part,
                                 std::int64_t parts);
  using MatrixOf = std::function<MatrixSource(std::int64_t number)>;
  /// A matrix of each head of latent attention. of: any of the heads.
  ExpertMatrices latent_keys(Checkpoint::LatentHead of);
  ExpertMatrices latent_values(Checkpoint::LatentHead of);

  /// Biases of each expert that stand in a tensor [experts, count * step], those from first on.
  Vector expert_biases(const std::string& name, std::int64_t experts, std::int64_t count,
                       std::int64_t first, std::int64_t step);

  /// The embedding or the output layer: int8 where other matrices are int4.
  Matrix table(const std::string& name, const ModelConfig& config);

  /// The table of ModelConfig::layer_inputs, [vocab, layers * size] in the file: a row for each
  /// token and layer. Throws Unsupported for one whose groups of inputs with a scale go over more
  /// than one layer's.
  Matrix layer_inputs(const std::string& name, const ModelConfig& config);

  /// So many values that are all the same.
  Vector constant(std::int64_t size, float value);

  /// As Checkpoint::leave.
  void leave(const std::string& name) const { from_.leave(name); }

  /// One number, for the host.
  float number(const std::string& name);

  /// A tied one may be in the file as the output layer alone.
  Matrix embedding(const ModelConfig& config);

  /// offset: added to each value, which is multiplied by factor then.
  Vector vector(const std::string& name, std::int64_t size, float offset = 0, float factor = 1);

  /// The weights of a convolution of each channel by itself: [kernel, channels].
  Vector convolution(const std::string& name, std::int64_t channels, std::int64_t kernel);

  /// -exp of what a file has the logarithm of: how fast a state fades.
  Vector fading(const std::string& name, std::int64_t size);

  /// offset: the family's norm_offset.
  Vector norm(const std::string& name, std::int64_t size, double offset) {
    return vector(name, size, from_.has_whole_vectors() ? 0.0F : static_cast<float>(offset));
  }

 private:
  std::vector<MatrixSource> sources(const std::vector<TensorRows>& pieces, std::int64_t in,
                                    WeightFormat format) const;
  /// Throws Unsupported for pieces whose elements differ in form.
  MatrixSource join(const std::vector<TensorRows>& pieces, std::int64_t in,
                    WeightFormat format) const;
  ExpertMatrices experts(const ExpertMixture& mixture, const MatrixOf& source);
  ExpertMatrices alike_matrices(std::int64_t count, const MatrixOf& source);
  /// held: bytes that they have in the file.
  Vector put(std::span<const float> values, std::int64_t held);
  /// Room for so many, until the next call. A plan of a file's numbers measures many large vectors
  /// of which there are no values.
  std::span<float> room_for(std::int64_t values);

  /// Experts of one form: where some have an order of their inputs, all get one. Throws Unsupported
  /// for others that differ.
  void make_alike(std::vector<MatrixSource>& sources) const;

  Matrix place(const MatrixSource& source) {
    const std::int64_t at = pieces_.place(bytes_here(source));
    return put(source, at);
  }

  /// In the device's memory.
  std::int64_t bytes_here(const MatrixSource& source) const;

  /// Where it was placed.
  Matrix put(const MatrixSource& source, std::int64_t at);

  /// Makes a plain matrix at `to`, likewise.
  Matrix make_plain(const MatrixSource& source, std::byte* to);

  /// Makes a packed matrix at `to`, a piece of its rows at a time.
  void make(const MatrixSource& source, std::byte* to);

  void count(std::int64_t bytes) {
    held_ += bytes;
    if (progress_) progress_({"weights", "bytes", held_, total_});
  }

  static constexpr std::int64_t piece_bytes = std::int64_t{16} << 20;  // of codes

  const Checkpoint& from_;
  const DeviceSizes& measure_;
  const WeightFormat format_;
  ComputeDevice* device_ = nullptr;  // null: only measure
  std::byte* storage_ = nullptr;
  ProgressFn progress_;
  std::int64_t total_ = 0;
  Pieces pieces_;
  std::int64_t held_ = 0;
  bool packed_ = false;
  std::int64_t embedding_ = 0;
  std::int64_t idle_ = 0;
  std::vector<std::byte> codes_;
  std::vector<float> scales_, offsets_;
  std::vector<float> values_;  // of a vector
};

}  // namespace topkv
