#include <fmt/format.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "bindings/src/handles.h"
#include "bindings/src/progress.h"
#include "src/core/math/convert.h"
#include "topkv/error.h"

namespace topkv::python {
namespace {

void refuse_change(const Index& self) {
  if (self.of_context) {
    throw InvalidArgument("the index belongs to a context, which never changes; make a KeyIndex");
  }
}

/// Exact search would never find such a key, and not say so.
void check_finite(const KeyView& keys, const std::stop_token& stop) {
  std::vector<float> key(static_cast<std::size_t>(keys.dim));
  for (std::int64_t i = 0; i < keys.count; ++i) {
    if (stop.stop_requested()) throw Stopped(fmt::format("add: stopped at key {}", i));
    to_float(keys.key(i), keys.dtype, keys.dim, key.data());
    const std::int64_t bad = first_not_finite(key.data(), keys.dim);
    if (bad < 0) continue;
    throw InvalidArgument(fmt::format("keys: row {} is not finite: element {} is {}", i, bad,
                                      key[static_cast<std::size_t>(bad)]));
  }
}

void add(Index& self, py::handle keys) {
  refuse_change(self);
  Array array(keys, "keys");
  const KeyView view = array.keys();
  const Exclusive::Write use(self.use, "the index");
  const std::int64_t before = self.index->size();
  self.arrays.push_back(std::move(array));
  try {
    run_interruptible([&](const std::stop_token& stop) {
      check_finite(view, stop);
      if (stop.stop_requested()) throw Stopped("add: stopped before any key was added");
      self.index->add(view, stop);
    });
  } catch (...) {
    // An index that has taken the keys reads them, though the call was ended as it did.
    if (self.index->size() == before) self.arrays.pop_back();
    throw;
  }
}

void build(Index& self) {
  refuse_change(self);
  const Exclusive::Write use(self.use, "the index");
  run_interruptible([&](const std::stop_token& stop) { self.index->build(stop); });
}

SearchResult search(Index& self, py::handle queries, std::int64_t k, const py::object& allowed) {
  const Array block(queries, "queries");
  const float* data = block.floats({{"queries", Array::any_size}, {"dim", Array::any_size}});
  const std::int64_t count = block.size(0);
  std::vector<PositionRange> ranges(static_cast<std::size_t>(count), {0, self.index->size()});
  if (!allowed.is_none()) {
    const Array given(allowed, "allowed");
    const std::int64_t* bounds = given.integers(2);
    if (given.size(0) != count)
      given.refuse(fmt::format("one range for each of {} queries", count));
    for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i] = {bounds[2 * i], bounds[2 * i + 1]};
  }
  const Exclusive::Read use(self.use, "the index");
  // A huge k must not reserve memory for results that cannot be.
  const std::int64_t most = std::max<std::int64_t>(1, self.index->size());
  const GilReleased released;
  SearchResult result;
  self.index->search({data, count, block.size(1), ranges}, std::min(k, most), result);
  return result;
}

std::int64_t query_number(const SearchResult& result, std::int64_t i) {
  if (i < 0 || i >= result.queries()) {
    throw py::index_error(fmt::format("query {} of {}", i, result.queries()));
  }
  return i;
}

}  // namespace

void bind_index(py::module_& module) {
  py::class_<SearchResult>(
      module, "SearchResult",
      "Up to k positions for each query, best first; of equal scores the lower position first. "
      "len() is the number of queries.")
      .def("__len__", &SearchResult::queries)
      .def_property_readonly("k", &SearchResult::k)
      .def(
          "positions",
          [](const SearchResult& result, std::int64_t query) {
            const auto found = result.positions(query_number(result, query));
            return to_numpy(found.data(), static_cast<std::int64_t>(found.size()));
          },
          py::arg("query"), "int64 positions found for one query; there may be fewer than k.")
      .def(
          "scores",
          [](const SearchResult& result, std::int64_t query) {
            const auto found = result.scores(query_number(result, query));
            return to_numpy(found.data(), static_cast<std::int64_t>(found.size()));
          },
          py::arg("query"), "float32 inner products of these positions.")
      .def("__repr__", [](const SearchResult& result) {
        return fmt::format("<SearchResult of {} queries, up to {} positions each>",
                           result.queries(), result.k());
      });

  py::class_<IndexSpec>(module, "IndexSpec",
                        "The parsed name of an index. Two are equal if they name one index.")
      .def(py::init<const std::string&>(), py::arg("text"))
      .def_static("default_for", &IndexSpec::default_for, py::arg("dim"),
                  "The default index of topkv.hf and the command for keys of `dim` dims: codes. A "
                  "context has it after with_index(spec.text).")
      .def_property_readonly("text", &IndexSpec::text, "The spec with all defaults spelled out.")
      .def_property_readonly("grows", &IndexSpec::grows,
                             "Whether keys added after build() are found too.")
      .def_property_readonly("has_code_tail", &IndexSpec::has_code_tail,
                             "Whether it is codes with a tail of codes.")
      .def_property_readonly("learns_queries", &IndexSpec::learns_queries,
                             "Whether it learns from queries of the prefill.")
      .def_property_readonly("has_tail", &IndexSpec::has_tail,
                             "Whether it also codes values, so that it can estimate rows that are "
                             "not attended. Also true for \"mean\", which is only a tail.")
      .def("check", &IndexSpec::check, py::arg("dim"), py::arg("keys"),
           "Raises InvalidArgument if the index cannot be built over `keys` keys of `dim` dims.")
      .def("__eq__",
           [](const IndexSpec& a, const py::object& b) {
             return py::isinstance<IndexSpec>(b) && a == b.cast<const IndexSpec&>();
           })
      .def("__hash__", [](const IndexSpec& spec) { return py::hash(py::str(spec.text())); })
      .def("__str__", &IndexSpec::text)
      .def("__repr__",
           [](const IndexSpec& spec) { return fmt::format("<IndexSpec {}>", spec.text()); });

  py::class_<Index>(
      module, "KeyIndex",
      "Finds the keys with the largest inner product with a query. spec: for example \"exact\", "
      "\"ivf\", \"hnsw:M=16,ef=128\", \"faiss:IVF,SQ8\".\n\n"
      "Keys are read in place: the index keeps the arrays alive, and they must not be changed. "
      "Many threads may call search at once.")
      .def(py::init(
               [](const std::string& spec) { return std::make_unique<Index>(make_index(spec)); }),
           py::arg("spec"))
      .def("add", &add, py::arg("keys"),
           "Adds keys [n, dim] (f32, f16 or bf16); the first one gets the number `size`. Arrays of "
           "successive calls must continue each other in memory. If Ctrl-C ends the call, `size` "
           "shows whether they were added.")
      .def("build", &build, "Trains on the keys added so far and inserts them. May be called once.")
      .def("search", &search, py::arg("queries"), py::arg("k"), py::arg("allowed") = py::none(),
           "Returns up to k positions of the largest q·k for each of queries [m, dim] (f32, "
           "finite). allowed: int64 [m, 2], the half-open range of positions for each query; None: "
           "all keys.")
      .def_property_readonly(
          "size", [](const Index& self) { return self.index->size(); }, "Keys added.")
      .def_property_readonly(
          "memory", [](const Index& self) { return self.index->memory(); },
          "Bytes of memory, without the keys, which are read in place.")
      .def_property_readonly(
          "spec", [](const Index& self) { return self.index->spec(); },
          "The spec with all defaults spelled out.")
      .def("__len__", [](const Index& self) { return self.index->size(); })
      .def("__repr__", [](const Index& self) {
        return fmt::format("<KeyIndex {} of {} keys>", self.index->spec(), self.index->size());
      });
}

}  // namespace topkv::python
