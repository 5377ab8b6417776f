#include <fmt/format.h>

#include "bindings/src/handles.h"
#include "topkv/error.h"

namespace topkv::python {

Step::Step(const AttentionShape& shape, int device, std::int64_t layer, py::handle q, py::handle k,
           py::handle v, const py::object& out, const py::object& lse, std::int64_t kv_first,
           std::int64_t kv_tokens, std::uintptr_t stream, const EarlierQueries& earlier,
           const IndexTensors& index, std::int64_t sessions)
    : out_(out) {
  const bool known = layer >= 0 && layer < shape.layers;  // else the step is refused
  const std::int64_t head_dim = known ? shape.head_dim_of(layer) : shape.head_dim;
  const std::int64_t kv_heads = known ? shape.kv_heads_of(layer) : shape.kv_heads;
  const auto axes = [&](std::vector<Array::Extent> of_one) {
    if (sessions > 0) of_one.insert(of_one.begin(), {"sessions", sessions});
    return of_one;
  };
  const std::size_t tokens_axis = sessions > 0 ? 1 : 0;
  arrays_.reserve(10);  // the pointers below go into them
  const Array& queries = arrays_.emplace_back(q, "q");
  step_.layer = layer;
  step_.q = queries.floats(
      axes({{"tokens", Array::any_size}, {"q_heads", shape.q_heads}, {"head_dim", head_dim}}),
      device);
  step_.tokens = queries.size(tokens_axis);
  const auto query = [&](const py::object& object, const char* name) -> const float* {
    if (object.is_none()) return nullptr;
    return arrays_.emplace_back(object, name)
        .floats(
            axes({{"tokens", step_.tokens}, {"q_heads", shape.q_heads}, {"head_dim", head_dim}}),
            device);
  };
  step_.q_next = query(earlier.next, "q_next");
  step_.q_far = query(earlier.far, "q_far");
  step_.kv_first = kv_first;
  step_.kv_tokens = kv_tokens;
  const bool has_rows = known && shape.has_rows(layer);
  const bool one_of_two = k.is_none() != v.is_none() && !(shape.keys_are_values && v.is_none());
  if (one_of_two || (k.is_none() && step_.kv_count() != 0 && has_rows)) {
    throw InvalidArgument(fmt::format(
        "k and v may be None only together and with kv_tokens=0, or in a layer that attends the "
        "rows of another layer; v alone when keys are values; kv_tokens is {} and {} is None",
        kv_tokens, k.is_none() ? v.is_none() ? "both" : "k" : "v"));
  }
  if (!k.is_none()) {
    const auto rows = [&](py::handle object, const char* name) {
      return arrays_.emplace_back(object, name)
          .floats(axes({{"kv_tokens", step_.kv_count()},
                        {"kv_heads", kv_heads},
                        {"head_dim", head_dim}}),
                  device);
    };
    step_.k = rows(k, "k");
    if (!v.is_none()) step_.v = rows(v, "v");
  }
  if (out_.is_none()) {
    if (device != host) {
      throw InvalidArgument(
          "out is None; on a CUDA device pass an f32 array of q's shape there "
          "(torch.empty_like(q))");
    }
    std::vector<py::ssize_t> sizes{step_.tokens, shape.q_heads, head_dim};
    if (sessions > 0) sizes.insert(sizes.begin(), sessions);
    out_ = py::array_t<float>(sizes);
  }
  step_.out =
      arrays_.emplace_back(out_, "out")
          .floats_out(
              axes({{"tokens", step_.tokens}, {"q_heads", shape.q_heads}, {"head_dim", head_dim}}),
              device);
  if (!lse.is_none()) {
    step_.lse =
        arrays_.emplace_back(lse, "lse")
            .floats_out(axes({{"tokens", step_.tokens}, {"q_heads", shape.q_heads}}), device);
  }
  take_index(shape, device, index, sessions);
  step_.stream = stream_of(stream);
}

void Step::take_index(const AttentionShape& shape, int device, const IndexTensors& index,
                      std::int64_t sessions) {
  if (!shape.indexer) {
    const bool none = index.q.is_none() && index.k.is_none() && index.weights.is_none();
    if (none) return;
    throw InvalidArgument(
        "index_q, index_k or index_weights is given, and the shape has no indexer; give None, or "
        "an AttentionShape with an indexer");
  }
  const IndexerShape& of = *shape.indexer;
  std::vector<Array::Extent> of_session;
  if (sessions > 0) of_session.push_back({"sessions", sessions});
  const auto floats = [&](const py::object& object, const char* name,
                          std::vector<Array::Extent> extents) -> const float* {
    if (object.is_none()) return nullptr;
    return arrays_.emplace_back(object, name).floats(extents, device);
  };
  const auto with = [&](std::vector<Array::Extent> extents) {
    extents.insert(extents.begin(), of_session.begin(), of_session.end());
    return extents;
  };
  step_.index_q = floats(index.q, "index_q",
                         with({{"tokens", step_.tokens}, {"heads", of.heads}, {"dim", of.dim}}));
  step_.index_weights =
      floats(index.weights, "index_weights", with({{"tokens", step_.tokens}, {"heads", of.heads}}));
  if (of.tokens_per_key == 1) {
    step_.index_k = floats(index.k, "index_k", with({{"tokens", step_.tokens}, {"dim", of.dim}}));
    return;
  }
  std::int64_t keys = 0;  // sessions at different positions complete different numbers of keys
  for (const std::int64_t first : index.firsts) keys += of.completed(first, step_.tokens);
  step_.index_k = floats(index.k, "index_k", {{"keys", keys}, {"dim", of.dim}});
}

}  // namespace topkv::python
