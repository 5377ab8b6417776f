#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bindings/src/handles.h"
#include "bindings/src/names.h"
#include "bindings/src/progress.h"
#include "src/model/generate/session_rollback.h"
#include "topkv/find_model.h"
#include "topkv/memory_plan.h"
#include "topkv/model.h"

namespace topkv::python {

void warn(const std::string& warning) {
  const GilHeld gil;
  if (PyErr_WarnEx(PyExc_UserWarning, warning.c_str(), 1) != 0) throw py::error_already_set();
}

namespace {

/// A path, or the name of a model that was downloaded.
std::filesystem::path found(const std::filesystem::path& model,
                            ModelFiles files = ModelFiles::description) {
  return find_model(model.native(), files);
}

ModelConfig load_config(const std::filesystem::path& directory, std::int64_t length) {
  ModelConfig config = ModelConfig::load(found(directory), length);
  for (const std::string& warning : config.warnings) warn(warning);
  return config;
}

PrefillOptions prefill_options(const PrefillAttention& attention, std::int64_t chunk,
                               const std::string& kv_dtype, std::int64_t memory_budget,
                               std::vector<std::string> indices) {
  return {.attention = attention,
          .chunk = chunk,
          .kv_dtype = KvDType::parse(kv_dtype),
          .memory_budget = memory_budget,
          .indices = std::move(indices),
          .keep_queries = true};  // for experiments: with_index may name one that learns from them
}

ContextPtr prefill(const Model& self, py::handle tokens, const std::string& prefill,
                   std::int64_t window, std::int64_t sinks, std::int64_t chunk,
                   const std::string& kv_dtype, std::int64_t memory_budget,
                   std::vector<std::string> indices, const py::object& progress, std::int64_t keys,
                   std::optional<std::int64_t> least, double mass, bool measure,
                   std::optional<py::list> shares, std::optional<std::int64_t> indexer_top) {
  const std::vector<Token> ids = tokens_of(tokens, "tokens");
  PrefillOptions options =
      prefill_options(prefill_attention(prefill, window, sinks, keys, least, mass, measure), chunk,
                      kv_dtype, memory_budget, std::move(indices));
  options.indexer_top = indexer_top;
  const ProgressFn report = progress_of(progress);
  std::vector<PrefillShare> met;
  ContextPtr context;
  {
    const GilReleased released;
    context = unconst(self.prefill(ids, options, report, nullptr, &met));
  }
  if (shares) {
    for (const PrefillShare& share : met) shares->append(share);
  }
  return context;
}

py::array_t<float> as_logits(const Model& model, const std::vector<float>& logits) {
  const std::int64_t width = model.config().vocab_size;
  return py::array_t<float>({static_cast<std::int64_t>(logits.size()) / width, width},
                            logits.data());
}

py::array_t<float> logits(const Model& self, py::handle tokens) {
  const std::vector<Token> ids = tokens_of(tokens, "tokens");
  std::vector<float> result;
  self.check_reach(std::ssize(ids));  // its warning names who called, on this thread alone
  run_interruptible([&](const std::stop_token&) { result = self.logits(ids); });
  return as_logits(self, result);
}

py::array_t<float> session_logits(const Model& self, SessionHandle& session, py::handle tokens) {
  const std::vector<Token> ids = tokens_of(tokens, "tokens");
  const Exclusive::Write use(session.use, "the session");
  std::vector<float> result;
  self.check_reach(session.session.tokens() + std::ssize(ids));
  SessionRollback undo(session.session);  // should the call be ended when the work is done
  run_interruptible([&](const std::stop_token&) { result = self.logits(session.session, ids); });
  undo.keep();
  return as_logits(self, result);
}

void bind_results(py::module_& module) {
  py::class_<ForwardTimes>(module, "ForwardTimes", "Times of a forward pass, by part, in seconds.")
      .def_readonly("matmul", &ForwardTimes::matmul)
      .def_readonly("attention", &ForwardTimes::attention)
      .def_readonly("search", &ForwardTimes::search)
      .def_readonly("other", &ForwardTimes::other)
      .def_readonly("indexing", &ForwardTimes::indexing)
      .def_property_readonly("total", &ForwardTimes::total)
      .def("__repr__", [](const ForwardTimes& times) {
        return fmt::format(
            "ForwardTimes(matmul={:.3g}, attention={:.3g}, search={:.3g}, other={:.3g}, "
            "indexing={:.3g})",
            times.matmul, times.attention, times.search, times.other, times.indexing);
      });

  py::class_<DevicePlan>(module, "DevicePlan",
                         "The device memory that a prefill and a session would take, computed "
                         "before any work. items: (what, bytes).")
      .def_property_readonly("items",
                             [](const DevicePlan& plan) {
                               std::vector<std::pair<std::string, std::int64_t>> items;
                               for (const MemoryItem& item : plan.items) {
                                 items.emplace_back(item.what, item.bytes);
                               }
                               return items;
                             })
      .def_readonly("peak", &DevicePlan::peak, "The most bytes at a time.")
      .def_readonly("ceiling", &DevicePlan::ceiling)
      .def_readonly("chunk", &DevicePlan::chunk, "Tokens of the largest prefill chunk that fits.")
      .def_property_readonly(
          "prefill", [](const DevicePlan& plan) { return name_of(plan.prefill.mode); },
          "The mode in which the text is read; never \"auto\". A text of unknown length counts "
          "as a short one.")
      .def_readonly("weights_bytes", &DevicePlan::weights_bytes,
                    "Bytes of the model's weights in the requested format.")
      .def_readonly("quantised", &DevicePlan::quantised,
                    "The quantisation of the checkpoint's matrices; empty: plain.")
      .def_property_readonly("fits", &DevicePlan::fits)
      .def("__repr__", [](const DevicePlan& plan) {
        return fmt::format("DevicePlan(peak={}, ceiling={}, chunk={}, fits={})", plan.peak,
                           plan.ceiling, plan.chunk, plan.fits() ? "True" : "False");
      });
}

void bind_config(py::module_& module) {
  py::class_<ModelConfig>(
      module, "ModelConfig",
      "config.json, or a GGUF file's metadata, reduced to what changes the forward pass.")
      .def_static("load", &load_config, py::arg("directory"), py::arg("length") = 0,
                  "Reads a model's configuration. length: the most tokens that contexts and "
                  "sessions will hold; 0: all positions that the model was made for. LongRoPE and "
                  "dynamic NTK rotate keys by it.")
      .def_readonly("model_type", &ModelConfig::model_type)
      .def_readonly("attention", &ModelConfig::attention)
      .def_readonly("hidden_size", &ModelConfig::hidden_size)
      .def_readonly("intermediate_size", &ModelConfig::intermediate_size)
      .def_property_readonly(
          "experts", [](const ModelConfig& self) { return self.mixture.experts; },
          "Experts of a layer that has a mixture of experts; 0: the model has no experts.")
      .def_property_readonly(
          "experts_per_token", [](const ModelConfig& self) { return self.mixture.per_token; },
          "Experts that a token goes through.")
      .def_readonly("vocab_size", &ModelConfig::vocab_size)
      .def_readonly("max_position", &ModelConfig::max_position)
      .def_readonly("rms_norm_eps", &ModelConfig::rms_norm_eps)
      .def_readonly("rope_theta", &ModelConfig::rope_theta)
      .def_readonly("qkv_bias", &ModelConfig::qkv_bias)
      .def_readonly("o_bias", &ModelConfig::o_bias)
      .def_readonly("mlp_bias", &ModelConfig::mlp_bias)
      .def_readonly("qk_norm", &ModelConfig::qk_norm)
      .def_readonly("tied_embeddings", &ModelConfig::tied_embeddings)
      .def_readonly("bos", &ModelConfig::bos, "-1: none.")
      .def_readonly("eos", &ModelConfig::eos, "Any of them ends generation.")
      .def_readonly("rotary_dim", &ModelConfig::rotary_dim, "Elements of a head that RoPE rotates.")
      .def_readonly("length", &ModelConfig::length,
                    "The most tokens that contexts and sessions will hold.")
      .def_readonly("sampling", &ModelConfig::sampling,
                    "The sampling of generation_config.json, or greedy.")
      .def_readonly("sampling_warning", &ModelConfig::sampling_warning,
                    "Options of that file that topkv's sampler does not have.")
      .def_readonly("warnings", &ModelConfig::warnings,
                    "Keys of the file that topkv, like transformers, ignores.")
      .def_property_readonly("reach", &ModelConfig::reach, "Positions that the model was made for.")
      .def(
          "kv_bytes_per_token",
          [](const ModelConfig& self, const std::string& dtype) {
            return self.kv_bytes_per_token(KvDType::parse(dtype));
          },
          py::arg("dtype") = "bf16", "Bytes of K and V of one token over all layers.")
      .def("__repr__", [](const ModelConfig& self) {
        return fmt::format("<ModelConfig of a {} model: {} layers, hidden size {}, vocabulary {}>",
                           self.model_type, self.attention.layers, self.hidden_size,
                           self.vocab_size);
      });
}

void bind_memory_plan(py::module_& module) {
  const auto items = [](const PlacePlan& place) {
    std::vector<std::pair<std::string, std::int64_t>> pairs;
    for (const MemoryItem& item : place.items) pairs.emplace_back(item.what, item.bytes);
    return pairs;
  };
  py::class_<PlacePlan>(module, "PlacePlan",
                        "The bytes that one memory has to hold. items: (what, bytes).")
      .def_property_readonly("items", items)
      .def_readonly("peak", &PlacePlan::peak, "The most bytes at a time.")
      .def_readonly("limit", &PlacePlan::limit)
      .def_readonly("reads", &PlacePlan::reads,
                    "Bytes of weights, and of codes or keys, that each token reads.")
      .def_property_readonly("fits", &PlacePlan::fits)
      .def("__repr__", [](const PlacePlan& place) {
        return fmt::format("PlacePlan(peak={}, limit={})", place.peak, place.limit);
      });
  py::class_<MemoryPlan>(module, "MemoryPlan", "One way of holding a model and a context.")
      .def_property_readonly("weights",
                             [](const MemoryPlan& plan) { return name_of(plan.weights); })
      .def_property_readonly("kv_dtype", [](const MemoryPlan& plan) { return plan.rows.name(); })
      .def_readonly("kv_index", &MemoryPlan::index)
      .def_property_readonly(
          "prefill", [](const MemoryPlan& plan) { return name_of(plan.prefill.mode); },
          "The mode in which the context is prefilled; never \"auto\".")
      .def_readonly("gpu", &MemoryPlan::gpu, "Without items: the host computes.")
      .def_readonly("host", &MemoryPlan::host)
      .def_readonly("loss", &MemoryPlan::loss,
                    "KL of the next token that this way cost a small model; plans are ordered by "
                    "it.")
      .def_property_readonly("fits", &MemoryPlan::fits)
      .def_property_readonly("missing", &MemoryPlan::missing,
                             "Bytes that GPU and host lack in total.")
      .def_property_readonly("flags", &MemoryPlan::flags, "The plan's flags of the topkv command.")
      .def("__repr__", [](const MemoryPlan& plan) {
        return fmt::format("<MemoryPlan {}, fits: {}>", plan.flags(),
                           plan.fits() ? "True" : "False");
      });
  module.def(
      "memory_plans",
      [](const std::filesystem::path& directory, std::int64_t tokens, std::int64_t gpu_memory,
         std::int64_t memory, const std::string& prefill, const std::optional<std::string>& weights,
         const std::optional<std::string>& kv_dtype, const std::optional<std::string>& kv_index,
         bool host_search) {
        PlanRequest request{.tokens = tokens, .gpu_memory = gpu_memory, .memory = memory};
        request.prefill.mode = parse_prefill(prefill);
        if (weights) request.weights = parse_weight_format(*weights);
        if (kv_dtype) request.rows = KvDType::parse(*kv_dtype);
        request.index = kv_index;
        request.host_search = host_search;
        const GilReleased released;
        return memory_plans(found(directory), request);
      },
      py::arg("directory"), py::arg("tokens"), py::kw_only(), py::arg("gpu_memory") = 0,
      py::arg("memory") = 0, py::arg("prefill") = "dense", py::arg("weights") = py::none(),
      py::arg("kv_dtype") = py::none(), py::arg("kv_index") = py::none(),
      py::arg("host_search") = false,
      "Returns every way of holding a model and a context of `tokens` tokens, the most exact "
      "first. gpu_memory, memory: bytes; gpu_memory 0: the host computes; memory 0: the free "
      "memory. weights, kv_dtype and kv_index are fixed if given. host_search: codes take no GPU "
      "memory. No GPU is needed.");
}

}  // namespace

void bind_model(py::module_& module) {
  module.def(
      "find_model",
      [](const std::filesystem::path& model, bool weights) {
        return found(model, weights ? ModelFiles::all : ModelFiles::description);
      },
      py::arg("model"), py::kw_only(), py::arg("weights") = true,
      "Finds a model: the given path, or the snapshot of \"org/name\" (or \"org/name@revision\") "
      "in Hugging Face's cache folder. weights: the weights must be there too. Raises FileError "
      "with the command that downloads missing files. Every argument that takes a model's "
      "directory takes a name as well.");
  bind_memory_plan(module);
  bind_generation(module);
  bind_config(module);
  bind_results(module);
  py::class_<Model, std::shared_ptr<Model>> model(
      module, "Model",
      "A loaded checkpoint: a directory in Hugging Face layout, or a GGUF file, of a family that "
      "docs/reference/models.md lists. Safe from many threads, each with its own session.",
      py::release_gil_before_calling_cpp_dtor());
  bind_generate(module, model);
  model
      .def_static(
          "load",
          [](const std::filesystem::path& directory, const py::object& device,
             const std::string& weights, const py::object& progress, std::int64_t length,
             const std::optional<std::filesystem::path>& indexer) {
            const Device where = device_of(device);
            const LoadOptions options{parse_weight_format(weights), length, progress_of(progress),
                                      indexer.value_or(std::filesystem::path())};
            const GilReleased released;
            return std::make_shared<Model>(
                Model::load(found(directory, ModelFiles::all), where, &warn, options));
          },
          py::arg("directory"), py::arg("device") = py::none(), py::kw_only(),
          py::arg("weights") = "stored", py::arg("progress") = py::none(), py::arg("length") = 0,
          py::arg("indexer") = py::none(),
          "Loads a checkpoint.\n\n"
          "weights: \"stored\", as in the checkpoint (quantised weights by their codes); or "
          "\"int8\" or \"int4\", rounded while they are loaded.\n\n"
          "progress: called with a Progress.\n\n"
          "length: as in ModelConfig.load.\n\n"
          "indexer: a file with a trained indexer for this model "
          "(docs/reference/indexer-files.md), on a CPU. Sessions attend the rows that it "
          "chooses.\n\n"
          "Warns (warnings.warn) of keys of the configuration that the network ignores. Warns once "
          "when tokens go beyond the positions that the model was made for, and once when the "
          "tokenizer leaves bytes of a text out.")
      .def_property_readonly("config", &Model::config, py::return_value_policy::copy)
      .def_property_readonly("device", &Model::device, py::return_value_policy::copy)
      .def_property_readonly("weights", [](const Model& self) { return name_of(self.weights()); })
      .def_property_readonly("draft_layer_bytes", &Model::draft_layer_bytes,
                             "Host memory that a session keeps for the model's own draft layer, in "
                             "bytes; 0: there is none.")
      .def("fingerprint", &Model::fingerprint, WithoutGil(),
           "Returns 16 characters that identify everything that rows of this model depend on: "
           "configuration, tokenizer, chat template and weights, the format in which weights are "
           "held, and the length for which keys are rotated. topkv prefill and topkv ask name a "
           "model so: pass it as model= to Context.save. Reads a few MiB. Raises FileError.")
      .def("check_reach", &Model::check_reach, py::arg("tokens"),
           "Warns if `tokens` tokens go beyond config.reach, unless it has warned before.")
      .def("tokenizer", &Model::tokenizer, py::return_value_policy::reference_internal)
      .def(
          "prefill", &prefill, py::arg("tokens"), py::arg("prefill") = "dense", py::kw_only(),
          py::arg("window") = 1024, py::arg("sinks") = 4, py::arg("chunk") = 0,
          py::arg("kv_dtype") = "bf16", py::arg("memory_budget") = 0,
          py::arg("indices") = std::vector<std::string>(), py::arg("progress") = py::none(),
          py::arg("prefill_keys") = PrefillAttention().keys, py::arg("prefill_least") = py::none(),
          py::arg("prefill_mass") = PrefillAttention().mass, py::arg("prefill_measure") = false,
          py::arg("shares") = py::none(), py::arg("indexer_top") = py::none(),
          "Runs the tokens through the network into a new Context. prefill: \"dense\", "
          "\"window\", \"sparse\" or \"auto\", which is sparse, or dense where that is quicker. "
          "It, window, sinks, memory_budget, prefill_keys, prefill_least, prefill_mass and "
          "prefill_measure: as in ContextBuilder. chunk: tokens per step; 0: a suitable number. "
          "indices: specs of the indices to build. progress: called with a Progress. shares: a "
          "list that receives a PrefillShare for each layer. indexer_top: in layers with a trained "
          "indexer, the blocks of index keys that a token chooses; None: as the indexer's file "
          "says; 2**40: `prefill` says what these layers attend, as in other layers.")
      .def("logits", &logits, py::arg("tokens"),
           "Returns the logits of a dense forward pass, float32 [tokens, vocab_size].")
      .def("logits", &session_logits, py::arg("session"), py::arg("tokens"),
           "Feeds tokens to a session and returns their logits, [tokens, vocab_size].")
      .def_static(
          "plan",
          [](const std::filesystem::path& directory, const py::object& device,
             const std::string& prefill, std::int64_t window, std::int64_t sinks,
             std::int64_t chunk, std::int64_t capacity, const std::string& weights) {
            const Device where = device_of(device);
            const PrefillOptions options =
                prefill_options({.mode = parse_prefill(prefill), .window = window, .sinks = sinks},
                                chunk, "bf16", 0, {});
            const WeightFormat format = parse_weight_format(weights);
            const GilReleased released;
            return Model::plan(found(directory), where, options,
                               {.window = window, .sinks = sinks, .capacity = capacity}, format);
          },
          py::arg("directory"), py::arg("device") = py::none(), py::arg("prefill") = "dense",
          py::kw_only(), py::arg("window") = 1024, py::arg("sinks") = 4, py::arg("chunk") = 0,
          py::arg("capacity") = 16384, py::arg("weights") = "stored",
          "Plans the device memory of a prefill and a session of its context, and checks the "
          "weights by their headers.")
      .def("__repr__", [](const Model& self) {
        const ModelConfig& config = self.config();
        return fmt::format("<Model {} of {} layers, hidden size {}, on {}>", config.model_type,
                           config.attention.layers, config.hidden_size, self.device().name());
      });
}

}  // namespace topkv::python
