#include <fmt/format.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/src/bind_states.h"
#include "bindings/src/handles.h"
#include "bindings/src/names.h"

namespace topkv::python {
namespace {

constexpr const char* busy = "the session";

TopK parse_k(const py::object& k) {
  if (py::isinstance<TopK>(k)) return py::cast<TopK>(k);
  if (py::isinstance<py::str>(k)) return TopK::parse(py::cast<std::string>(k));
  if (PyIndex_Check(k.ptr()) != 0) return TopK::same(py::cast<std::int64_t>(k));
  return TopK::per_layer(integers_of(k, "k"));
}

std::unique_ptr<SessionHandle> make(
    const ContextPtr& context, const py::object& device, const std::string& index,
    const std::string& tail, const py::object& k, std::optional<double> mass,
    std::optional<double> error, const std::optional<std::pair<double, double>>& guarantee,
    const std::string& select_by, std::int64_t dense_layers, std::int64_t window,
    std::int64_t sinks, std::int64_t capacity, bool measure_recall, bool measure_attention,
    std::int64_t memory_budget, bool host_search, std::int64_t device_rows,
    const std::optional<std::string>& turns, std::int64_t turn_window, std::int64_t turn_keys,
    std::optional<std::int64_t> turn_least, double turn_mass,
    std::optional<std::int64_t> indexer_top, std::optional<std::int64_t> indexer_local_blocks) {
  RetrievalOptions options = {.index = index,
                              .k = parse_k(k),
                              .host_search = host_search,
                              .select_by = parse_select_by(select_by),
                              .tail = tail,
                              .mass = mass,
                              .error = error,
                              .dense_layers = dense_layers,
                              .window = window,
                              .sinks = sinks,
                              .indexer_top = indexer_top,
                              .indexer_local_blocks = indexer_local_blocks,
                              .capacity = capacity,
                              .memory_budget = memory_budget,
                              .device_rows = device_rows,
                              .measure_recall = measure_recall,
                              .measure_attention = measure_attention};
  if (guarantee) options.guarantee = Guarantee{guarantee->first, guarantee->second};
  if (turns)
    options.turns =
        prefill_attention(*turns, turn_window, sinks, turn_keys, turn_least, turn_mass, false);
  const Device where = device_of(device);
  const GilReleased released;
  return std::make_unique<SessionHandle>(Session(context, std::move(options), where), context);
}

py::object attend(SessionHandle& self, std::int64_t layer, py::handle q, py::handle k, py::handle v,
                  const py::object& out, const py::object& lse, std::int64_t kv_first,
                  std::int64_t kv_tokens, std::uintptr_t stream, const py::object& q_next,
                  const py::object& q_far, const py::object& index_q, const py::object& index_k,
                  const py::object& index_weights) {
  const Exclusive::Write use(self.use, busy);
  const AttentionShape& shape = self.context->shape();
  IndexTensors index{index_q, index_k, index_weights};
  if (shape.has_indexer(std::clamp<std::int64_t>(layer, 0, shape.layers - 1)))
    index.firsts = {self.session.tokens(layer)};
  const Step step(shape, self.device, layer, q, k, v, out, lse, kv_first, kv_tokens, stream,
                  {q_next, q_far}, index);
  {
    const GilReleased released;
    self.session.attend(step.step());
  }
  return step.out();
}

py::object attend_together(const py::iterable& given, std::int64_t layer, py::handle q,
                           py::handle k, py::handle v, const py::object& out, const py::object& lse,
                           std::int64_t kv_tokens, std::uintptr_t stream, const py::object& q_next,
                           const py::object& q_far, const py::object& index_q,
                           const py::object& index_k, const py::object& index_weights) {
  const py::tuple held(given);  // keeps them while others may change the list
  if (held.empty()) throw InvalidArgument("attend_together: no sessions; give at least one");
  std::vector<SessionHandle*> handles;
  std::vector<Session*> sessions;
  std::vector<std::unique_ptr<Exclusive::Write>> uses;
  for (const py::handle object : held) {
    if (!py::isinstance<SessionHandle>(object)) {
      throw InvalidArgument(
          fmt::format("attend_together: sessions[{}] is {}; expected a topkv.Session",
                      handles.size(), py::cast<std::string>(py::repr(object))));
    }
    auto* handle = py::cast<SessionHandle*>(object);
    // The call refuses those that are given twice.
    if (std::find(handles.begin(), handles.end(), handle) == handles.end())
      uses.push_back(std::make_unique<Exclusive::Write>(handle->use, busy));
    handles.push_back(handle);
    sessions.push_back(&handle->session);
  }
  const AttentionShape& shape = handles[0]->context->shape();
  IndexTensors index{index_q, index_k, index_weights};
  if (shape.has_indexer(std::clamp<std::int64_t>(layer, 0, shape.layers - 1))) {
    for (const Session* session : sessions) index.firsts.push_back(session->tokens(layer));
  }
  const Step step(shape, handles[0]->device, layer, q, k, v, out, lse, 0, kv_tokens, stream,
                  {q_next, q_far}, index, std::ssize(handles));
  {
    const GilReleased released;
    Session::attend_together(sessions, step.step());
  }
  return step.out();
}

/// A mean, or None of nothing.
py::object of_some(std::int64_t count, double mean) {
  return count > 0 ? py::object(py::float_(mean)) : py::none();
}

}  // namespace

void bind_session(py::module_& module) {
  py::class_<SessionStats>(module, "SessionStats",
                           "Counts and times of a session, summed over its life.")
      .def_readonly("steps", &SessionStats::steps, "(token, layer) pairs attended.")
      .def_readonly("retrieving_steps", &SessionStats::retrieving_steps,
                    "The part of steps in layers that retrieve rows: layers with full attention, "
                    "without the first dense_layers.")
      .def_readonly("rows_retrieved", &SessionStats::rows_retrieved,
                    "Rows attended beyond window and sinks, over query heads.")
      .def_readonly("rows_sampled", &SessionStats::rows_sampled,
                    "The part of rows_retrieved that guarantee sampled.")
      .def_readonly(
          "retrieved_more", &SessionStats::retrieved_more,
          "(token, layer, query head) triples for which mass or error took more rows than at "
          "first.")
      .def_readonly("went_dense", &SessionStats::went_dense,
                    "Triples that attended all rows, because of mass, error or guarantee.")
      .def_readonly("search_seconds", &SessionStats::search_seconds)
      .def_readonly("attend_seconds", &SessionStats::attend_seconds)
      .def_readonly("coded_tokens", &SessionStats::coded_tokens,
                    "The number of the session's own tokens, from the first on, that have codes "
                    "now.")
      .def_readonly("coded_bytes", &SessionStats::coded_bytes,
                    "Bytes of these codes in host memory.")
      .def_readonly("device_row_bytes", &SessionStats::device_row_bytes,
                    "Device memory of rows of the context, which sessions may share.")
      .def_readonly(
          "device_index_bytes", &SessionStats::device_index_bytes,
          "Bytes of codes or key summaries in the device's memory. The context's are counted for "
          "all its sessions together.")
      .def_readonly("exact_rows", &SessionStats::exact_rows)
      .def_readonly("exact_rows_found", &SessionStats::exact_rows_found)
      .def_property_readonly(
          "recall",
          [](const SessionStats& stats) -> py::object {
            if (stats.exact_rows == 0) return py::none();
            return py::float_(static_cast<double>(stats.exact_rows_found) /
                              static_cast<double>(stats.exact_rows));
          },
          "exact_rows_found / exact_rows; None if it is not measured.")
      .def("rows_per_head", &SessionStats::rows_per_head, py::arg("q_heads"),
           "Returns the mean rows_retrieved of a (token, layer, query head) triple, over all "
           "layers; dense and sliding layers count with 0 rows. 0 before the first step.")
      .def(
          "rows_per_retrieving_head", &SessionStats::rows_per_retrieving_head, py::arg("q_heads"),
          "Returns the mean rows_retrieved of a (token, layer, query head) triple, over the layers "
          "that retrieve; 0 when no layer does.")
      .def("__repr__", [](const SessionStats& stats) {
        const auto share = static_cast<double>(stats.exact_rows_found) /
                           static_cast<double>(std::max<std::int64_t>(1, stats.exact_rows));
        return fmt::format(
            "SessionStats(steps={}, rows_retrieved={}, retrieved_more={}, went_dense={}, "
            "search_seconds={:.3g}, attend_seconds={:.3g}, recall={})",
            stats.steps, stats.rows_retrieved, stats.retrieved_more, stats.went_dense,
            stats.search_seconds, stats.attend_seconds,
            stats.exact_rows == 0 ? "None" : fmt::format("{:.4f}", share));
      });

  py::class_<TailFigures>(
      module, "TailFigures",
      "Estimates, without dense attention, of how good a layer's attention with a tail was, summed "
      "over the session's life.")
      .def_readonly("heads", &TailFigures::heads,
                    "The number of (token, query head) pairs in the sums.")
      .def_readonly("exact_mass", &TailFigures::exact_mass,
                    "The sum of the shares of attention in exactly attended rows.")
      .def_readonly(
          "error", &TailFigures::error,
          "The sum of the expected |out - dense| / |dense|. It has the independent errors of "
          "codes, and the errors of key codes that are correlated with the values. A tail from a "
          "context file of 0.1.0 lacks the second part. The true error may be larger.")
      .def_property_readonly(
          "mean_exact_mass",
          [](const TailFigures& of) { return of_some(of.heads, of.mean_exact_mass()); },
          "The mean of a pair; None without a tail.")
      .def_property_readonly(
          "mean_error", [](const TailFigures& of) { return of_some(of.heads, of.mean_error()); },
          "The mean expected error of a pair; None without a tail. The true error may be several "
          "times as large.")
      .def("__repr__", [](const TailFigures& of) {
        if (of.heads == 0) return std::string("TailFigures(heads=0)");
        return fmt::format("TailFigures(heads={}, mean_exact_mass={:.4f}, mean_error={:.4f})",
                           of.heads, of.mean_exact_mass(), of.mean_error());
      });

  py::class_<StepTimes>(module, "StepTimes",
                        "Times of a session's steps in one layer, by part, in seconds.")
      .def_readonly("q_out", &StepTimes::q_out)
      .def_readonly("append", &StepTimes::append)
      .def_readonly("window", &StepTimes::window)
      .def_readonly("search", &StepTimes::search)
      .def_readonly("attend", &StepTimes::attend)
      .def_readonly("tail", &StepTimes::tail)
      .def_readonly("merge", &StepTimes::merge)
      .def_property_readonly("total", &StepTimes::total)
      .def("__repr__", [](const StepTimes& times) {
        return fmt::format(
            "StepTimes(q_out={:.3g}, append={:.3g}, window={:.3g}, search={:.3g}, attend={:.3g}, "
            "tail={:.3g}, merge={:.3g})",
            times.q_out, times.append, times.window, times.search, times.attend, times.tail,
            times.merge);
      });

  py::class_<SessionHandle> type(
      module, "Session",
      "One reader of a context, with tokens of its own. One thread at a time; different sessions "
      "are independent.\n\n"
      "Each token attends the first `sinks` tokens, the last `window` tokens, and the k rows that "
      "the index retrieves among the rest, under one softmax. Codes with a tail retrieve some more "
      "rows.\n\n"
      "tail: the estimate for the rows that are not retrieved: the spec of an index of the context "
      "that also codes values; \"mean\", their mean value, if the context has it; \"none\"; or "
      "\"\", the index's own tail.\n\n"
      "k: rows per layer, a list with one number per layer, or \"uniform:SUM\" or \"linear:SUM\" "
      "over the layers.\n\n"
      "mass: with a tail, retrieve a sixteenth of k rows if these hold this share of the "
      "attention, by the tail's estimate.\n\n"
      "error: with a tail, retrieve more rows, in the end all, if a layer's output is expected to "
      "be off by more than this (see TailFigures.error).\n\n"
      "guarantee: (epsilon, delta), without a tail, on a CPU: also attend a random sample of the "
      "rows that are not retrieved, so large that |out - dense| / |dense| of a query head is above "
      "epsilon with probability delta at most, as the sample estimates it.\n\n"
      "select_by: \"query_head\", each has its own rows, or \"group\".\n\n"
      "dense_layers: the first n layers, recurrent ones too, attend every token.\n\n"
      "capacity: the most tokens of its own.\n\n"
      "memory_budget: bytes that their rows may take; 0: the free memory.\n\n"
      "host_search: the host searches although a CUDA device could; codes and key summaries take "
      "no device memory.\n\n"
      "device_rows: the most bytes of a CUDA device's memory that rows of the context may take. "
      "The device attends those that a scan of codes finds there, which takes less time.\n\n"
      "measure_attention: sum up the attention that each position gets, for "
      "attention_by_position(). On a CPU, with a fixed k.\n\n"
      "turns: how steps of 256 tokens or more are read: \"dense\", \"sparse\" or \"auto\", as a "
      "prefill of this mode reads text, with these `sinks`; None: each token finds rows for "
      "itself. turn_window, turn_keys, turn_least, turn_mass: as window, prefill_keys, "
      "prefill_least and prefill_mass of ContextBuilder.\n\n"
      "indexer_top, indexer_local_blocks: in layers with a trained indexer, the blocks of index "
      "keys that a token chooses, and the last blocks that it always attends, as in IndexerShape; "
      "None: as the context was read.",
      py::release_gil_before_calling_cpp_dtor());
  bind_states(type, &SessionHandle::session, busy, "own_tokens",
              "A copy of the recurrent state of a layer after the last token, which may be the "
              "context's.");
  type.def(py::init(&make), py::arg("context"), py::arg("device") = py::none(), py::kw_only(),
           py::arg("index") = "exact", py::arg("tail") = "", py::arg("k") = 64,
           py::arg("mass") = py::none(), py::arg("error") = py::none(),
           py::arg("guarantee") = py::none(), py::arg("select_by") = "query_head",
           py::arg("dense_layers") = 0, py::arg("window") = 1024, py::arg("sinks") = 4,
           py::arg("capacity") = 16384, py::arg("measure_recall") = false,
           py::arg("measure_attention") = false, py::arg("memory_budget") = 0,
           py::arg("host_search") = false, py::arg("device_rows") = 0,
           py::arg("turns") = py::none(), py::arg("turn_window") = PrefillAttention().window,
           py::arg("turn_keys") = PrefillAttention().keys, py::arg("turn_least") = py::none(),
           py::arg("turn_mass") = PrefillAttention().mass, py::arg("indexer_top") = py::none(),
           py::arg("indexer_local_blocks") = py::none())
      .def("attend", &attend, py::arg("layer"), py::arg("q"), py::arg("k"), py::arg("v"),
           py::arg("out") = py::none(), py::arg("lse") = py::none(), py::arg("kv_first") = 0,
           py::arg("kv_tokens") = -1, py::arg("stream") = 0, py::arg("q_next") = py::none(),
           py::arg("q_far") = py::none(), py::kw_only(), py::arg("index_q") = py::none(),
           py::arg("index_k") = py::none(), py::arg("index_weights") = py::none(),
           "Takes q, k and v of the next tokens of a layer, from position `tokens` on, and returns "
           "their attention, [tokens, q_heads, head_dim]. Arrays are as in ContextBuilder.attend. "
           "With kv_tokens=0 (k and v None) the step only reads.")
      .def_static(
          "attend_together", &attend_together, py::arg("sessions"), py::arg("layer"), py::arg("q"),
          py::arg("k"), py::arg("v"), py::arg("out") = py::none(), py::arg("lse") = py::none(),
          py::arg("kv_tokens") = -1, py::arg("stream") = 0, py::arg("q_next") = py::none(),
          py::arg("q_far") = py::none(), py::kw_only(), py::arg("index_q") = py::none(),
          py::arg("index_k") = py::none(), py::arg("index_weights") = py::none(),
          "Runs attend() for several sessions over one context, on one device. Arrays have "
          "a first axis of sessions. Each session takes the same number of tokens, at its "
          "own position. Keys and codes are read once for several sessions. index_k has no "
          "axis of sessions if several tokens have one index key: it is [keys, indexer.dim], "
          "the keys of one session after those of another.")
      .def(
          "truncate",
          [](SessionHandle& self, std::int64_t own_tokens) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            self.session.truncate(own_tokens);
          },
          py::arg("own_tokens"),
          "Forgets the session's own tokens from this number on. With recurrent states, own_tokens "
          "must be reachable(own_tokens).")
      .def(
          "fork",
          [](SessionHandle& self) {
            const Exclusive::Read use(self.use, busy);
            const GilReleased released;
            return std::make_unique<SessionHandle>(self.session.fork(), self.context);
          },
          "Returns a session that continues from here, with a copy of the own tokens.")
      .def(
          "own_rows",
          [](SessionHandle& self) {
            const Exclusive::Read use(self.use, busy);
            const GilReleased released;
            return unconst(self.session.own_rows());
          },
          "Returns a copy of the session's own rows as a Context with the index exact. Save it "
          "with Context.save beside the context's file.")
      .def(
          "resume",
          [](SessionHandle& self, const Context& own_rows) {
            const Exclusive::Write use(self.use, busy);
            const GilReleased released;
            self.session.resume(own_rows);
          },
          py::arg("own_rows"),
          "Continues from the session whose own_rows() these are, over its context or one loaded "
          "from its file. This session must have no tokens of its own yet.")
      .def_property_readonly(
          "tokens", [](const SessionHandle& self) { return self.session.tokens(); },
          "Tokens before the next one: the context's and the session's own.")
      .def_property_readonly("own_tokens",
                             [](const SessionHandle& self) { return self.session.own_tokens(); })
      .def_property_readonly("context",
                             [](const SessionHandle& self) { return unconst(self.context); })
      .def_property_readonly("device",
                             [](const SessionHandle& self) { return self.session.device(); })
      .def_property_readonly(
          "index", [](const SessionHandle& self) { return self.session.options().index; },
          "Spec of the index that retrieves the rows.")
      .def_property_readonly(
          "tail", [](const SessionHandle& self) { return self.session.options().tail; },
          "The tail: \"none\", \"mean\" or the spec of codes.")
      .def("stats",
           [](SessionHandle& self) {
             const Exclusive::Look use(self.use, busy);
             const GilReleased released;
             return SessionStats(self.session.stats());
           })
      .def(
          "step_times",
          [](SessionHandle& self) {
            const Exclusive::Look use(self.use, busy);
            const GilReleased released;
            return std::vector<StepTimes>(self.session.step_times());
          },
          "One StepTimes per layer.")
      .def(
          "tail_figures",
          [](SessionHandle& self) {
            const Exclusive::Look use(self.use, busy);
            const GilReleased released;
            return self.session.tail_figures();
          },
          "One TailFigures per layer; without a tail heads is 0.")
      .def(
          "attention_by_position",
          [](SessionHandle& self) {
            const Exclusive::Look use(self.use, busy);
            const std::vector<double> mass = self.session.attention_by_position();
            return py::array_t<double>(std::ssize(mass), mass.data());
          },
          "The attention that each position got from the session's own tokens, the context's "
          "positions first: float64 [tokens]. Softmax weights of rows that were attended exactly, "
          "summed over tokens, layers with full attention and query heads. It needs "
          "measure_attention.")
      .def(
          "reset_attention",
          [](SessionHandle& self) {
            const Exclusive::Write use(self.use, busy);
            self.session.reset_attention();
          },
          "Sets the sums of attention_by_position() to 0.")
      .def(
          "turn_shares",
          [](SessionHandle& self) {
            const Exclusive::Look use(self.use, busy);
            return self.session.turn_shares();
          },
          "What the tokens of turns attended so far: one PrefillShare per layer. Nothing in layers "
          "without a choice, and for turns that were read in the mode \"dense\".")
      .def("__repr__", [](const SessionHandle& self) {
        return fmt::format(
            "<Session of {} own tokens over {} of the context, index {}, tail {}, on {}>",
            self.session.own_tokens(), self.context->tokens(), self.session.options().index,
            self.session.options().tail, self.session.device().name());
      });
}

}  // namespace topkv::python
