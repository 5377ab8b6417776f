#include "gpu/attention/cudnn_attention.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <list>
#include <tuple>
#include <unordered_map>

#include "topkv/error.h"

// The front end calls cuDNN through this handle instead of being linked with it.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace topkv::gpu {
namespace {

namespace fe = cudnn_frontend;

enum Tensor : std::int64_t { q = 1, k, v, o, stats, tokens_of, rows_of };

/// Loads what the front end calls; empty when all is there, else why not.
std::string load() {
  void* cudnn = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (cudnn == nullptr) return fmt::format("cuDNN 9 cannot be loaded: {}", dlerror());
  if (dlopen("libcudart.so.13", RTLD_NOW) == nullptr &&
      dlopen("libcudart.so.12", RTLD_NOW) == nullptr) {
    return fmt::format("cuDNN's front end needs the shared CUDA runtime: {}", dlerror());
  }
  fe::cudnn_dlhandle = cudnn;
  constexpr std::size_t oldest = 90300;  // causal masks aligned to the last row
  const std::size_t version = fe::detail::get_backend_version();
  if (version < oldest)
    return fmt::format("cuDNN is of version {}, expected {} or later", version, oldest);
  return {};
}

const std::string& why_not() {
  static const std::string reason = load();
  return reason;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(fmt::format("cuDNN: {} in {}", fe::detail::get_error_string(status), call));
}

auto key(const CudnnShape& s) {
  return std::tie(s.entries, s.padded, s.head_dim, s.q_heads, s.kv_heads, s.tokens, s.rows,
                  s.head_stride, s.causal, s.scale);
}

struct Plan {
  CudnnShape shape;
  std::unique_ptr<fe::graph::Graph> graph;  // null: cuDNN has none
  std::int64_t workspace = 0;
  std::string why;
};

std::unique_ptr<fe::graph::Graph> describe(const CudnnShape& shape) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const std::int64_t dim = shape.head_dim;
  const std::vector<std::int64_t> query_dims{shape.entries, shape.q_heads, shape.tokens, dim};
  const std::vector<std::int64_t> query_strides{shape.tokens * shape.q_heads * dim, dim,
                                                shape.q_heads * dim, 1};
  const auto rows = [&](const char* name, Tensor id) {
    return graph->tensor(
        fe::graph::Tensor_attributes()
            .set_name(name)
            .set_uid(id)
            .set_dim({shape.entries, shape.kv_heads, shape.rows, dim})
            .set_stride({shape.kv_heads * shape.head_stride, shape.head_stride, dim, 1}));
  };
  const auto queries = graph->tensor(fe::graph::Tensor_attributes()
                                         .set_name("q")
                                         .set_uid(q)
                                         .set_dim(query_dims)
                                         .set_stride(query_strides));
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_attn_scale(shape.scale);
  if (shape.causal) {
    if (shape.tokens == shape.rows) {
      options.set_causal_mask(true);
    } else {
      options.set_causal_mask_bottom_right(true);
    }
  }
  if (shape.padded) {
    const auto lengths = [&](const char* name, Tensor id) {
      return graph->tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(id)
                               .set_data_type(fe::DataType_t::INT32)
                               .set_dim({shape.entries, 1, 1, 1})
                               .set_stride({1, 1, 1, 1}));
    };
    options.set_padding_mask(true)
        .set_seq_len_q(lengths("tokens", tokens_of))
        .set_seq_len_kv(lengths("rows", rows_of));
  }
  const auto [out, lse] = graph->sdpa(queries, rows("k", k), rows("v", v), options);
  out->set_output(true).set_uid(o).set_dim(query_dims).set_stride(query_strides);
  lse->set_output(true)
      .set_uid(stats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({shape.entries, shape.q_heads, shape.tokens, 1})
      .set_stride({shape.q_heads * shape.tokens, shape.tokens, 1, 1});
  return graph;
}

/// A plan, or the words of whoever refused it.
Plan make_plan(const CudnnShape& shape, cudnnHandle_t handle) {
  Plan plan;
  plan.shape = shape;
  if (shape.tokens <= 0 || shape.rows <= 0 || (shape.causal && shape.rows < shape.tokens)) {
    plan.why =
        fmt::format("{} tokens over {} rows leave tokens without rows", shape.tokens, shape.rows);
    return plan;
  }
  try {
    auto graph = describe(shape);
    auto status = graph->build(handle, {fe::HeurMode_t::A});
    if (status.is_good()) status = graph->get_workspace_size(plan.workspace);
    if (status.is_good()) {
      plan.graph = std::move(graph);
    } else {
      plan.why = status.get_message();
    }
  } catch (const std::runtime_error& error) {  // of the front end, for symbols it does not find
    plan.why = error.what();
  }
  return plan;
}

}  // namespace

struct CudnnAttention::Impl {
  cudnnHandle_t handle = nullptr;
  std::list<Plan> plans;

  Impl() { check(fe::detail::create_handle(&handle), "cudnnCreate"); }
  ~Impl() {
    plans.clear();
    static_cast<void>(fe::detail::destroy_handle(handle));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Plan& plan(const CudnnShape& shape) {
    for (Plan& plan : plans) {
      if (key(plan.shape) == key(shape)) return plan;
    }
    return plans.emplace_back(make_plan(shape, handle));
  }
  Plan& usable_plan(const CudnnShape& shape) {
    Plan& found = plan(shape);
    if (found.graph == nullptr) throw Unsupported("cuDNN has no plan for attention: " + found.why);
    return found;
  }
};

bool CudnnAttention::available(std::string* why) {
  if (why != nullptr) *why = why_not();
  return why_not().empty();
}

CudnnAttention::CudnnAttention() {
  if (!why_not().empty()) throw Unsupported(why_not());
  impl_ = std::make_unique<Impl>();
}
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::supports(const CudnnShape& shape, std::string* why) {
  const Plan& plan = impl_->plan(shape);
  if (why != nullptr) *why = plan.why;
  return plan.graph != nullptr;
}

std::int64_t CudnnAttention::workspace_bytes(const CudnnShape& shape) {
  return impl_->usable_plan(shape).workspace;
}

void CudnnAttention::attend(const CudnnShape& shape, const __nv_bfloat16* queries,
                            const __nv_bfloat16* keys, const __nv_bfloat16* values,
                            const CudnnPartial& out, void* workspace, cudaStream_t stream,
                            const CudnnLengths& lengths) {
  Plan& plan = impl_->usable_plan(shape);
  check(fe::detail::set_stream(impl_->handle, stream), "cudnnSetStream");
  std::unordered_map<std::int64_t, void*> tensors{{q, const_cast<__nv_bfloat16*>(queries)},
                                                  {k, const_cast<__nv_bfloat16*>(keys)},
                                                  {v, const_cast<__nv_bfloat16*>(values)},
                                                  {o, out.out},
                                                  {stats, out.lse}};
  if (shape.padded) {
    tensors.emplace(tokens_of, const_cast<int*>(lengths.tokens));
    tensors.emplace(rows_of, const_cast<int*>(lengths.rows));
  }
  auto status = plan.graph->execute(impl_->handle, tensors, workspace);
  if (status.is_bad()) throw Error("cuDNN: " + status.get_message());
}

}  // namespace topkv::gpu
