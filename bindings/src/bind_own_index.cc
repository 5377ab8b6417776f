// Indices that an application writes in Python (topkv.register_index).
//
// Threads of topkv make, build and search them. They do not hold the GIL, so each call takes it. An
// exception of Python travels through C++ as a PythonError (errors.h).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <oneapi/tbb/task_arena.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/src/errors.h"
#include "bindings/src/handles.h"
#include "bindings/src/progress.h"
#include "topkv/register_index.h"

namespace topkv::python {
namespace {

using SharedObject = std::shared_ptr<py::object>;

/// Calls Python, with the GIL. The code that it calls may hold locks and may call topkv. A thread
/// that waits inside such a call takes up no other work, which could need one of these locks.
template <class Call>
auto with_python(const Call& call) {
  return oneapi::tbb::this_task_arena::isolate([&] {
    const GilHeld gil;
    try {
      return call();
    } catch (const py::error_already_set& raised) {
      throw PythonError(raised);
    }
  });
}

/// Calls Python as with_python does. A ValueError becomes an InvalidArgument.
template <class Call>
auto with_python_arguments(const Call& call) {
  return with_python([&] {
    try {
      return call();
    } catch (const py::error_already_set& raised) {
      if (raised.matches(PyExc_ValueError)) throw PythonInvalidArgument(raised);
      throw;
    }
  });
}

/// Describes what a method returned: a type, and the shape if it has one.
std::string described(const py::handle object) {
  std::string type = Py_TYPE(object.ptr())->tp_name;
  if (py::isinstance<py::array>(object)) {
    const auto array = py::reinterpret_borrow<py::array>(object);
    return fmt::format(
        "{} [{}]", py::cast<std::string>(py::str(array.dtype())),
        fmt::join(std::span(array.shape(), static_cast<std::size_t>(array.ndim())), ", "));
  }
  if (!py::hasattr(object, "__len__")) return type;
  return fmt::format("{} of length {}", type, py::len(object));
}

/// The queries of a search, as Python sees them: copies.
struct Queries {
  explicit Queries(const QueryBlock& block)
      : data({block.count, block.dim}),
        allowed({block.count, std::int64_t{2}}),
        group(block.group),
        tokens(block.tokens),
        scale(block.score_scale()) {
    std::copy_n(block.data, block.count * block.dim, data.mutable_data());
    std::int64_t* bound = allowed.mutable_data();
    for (const PositionRange& range : block.allowed) {
      *bound++ = range.begin;
      *bound++ = range.end;
    }
  }

  py::array_t<float> data;
  py::array_t<std::int64_t> allowed;
  std::int64_t group;
  std::int64_t tokens;
  float scale;
};

/// Returns a copy as float32. REQUIRES: the GIL is held, and the view is not empty.
py::array_t<float> floats(const KeyView& vectors) {
  py::array_t<float> array({vectors.count, vectors.dim});
  float* out = array.mutable_data();
  const GilReleased released;
  to_float(vectors, out);
  return array;
}

[[noreturn]] void refuse_positions(const py::handle found, std::int64_t queries) {
  throw Error(
      fmt::format("it returned {}, expected integer positions [{}, n], or a sequence of positions "
                  "for each of {} queries",
                  described(found), queries, queries));
}

/// Writes the positions of one query. -1 stands for no position.
void write_row(std::span<const std::int64_t> found, std::int64_t query, SearchResult& result) {
  const auto slots = result.position_slots(query);
  std::size_t count = 0;
  for (const std::int64_t position : found) {
    if (position == -1) continue;
    if (count == slots.size()) {
      throw Error(
          fmt::format("it returned {} positions for query {}, expected at most k, which is {}",
                      found.size() - static_cast<std::size_t>(std::ranges::count(found, -1)), query,
                      slots.size()));
    }
    slots[count++] = position;
  }
  result.set_count(query, static_cast<std::int64_t>(count));
}

/// Returns positions as int64, without a copy if they are contiguous int64. Throws Error for
/// another number of axes than `axes`, and for elements that are not integers.
py::array_t<std::int64_t> positions_in(const py::array& array, std::int64_t axes,
                                       std::int64_t queries) {
  const char kind = array.dtype().kind();
  if (array.ndim() != axes || (kind != 'i' && kind != 'u' && array.size() > 0))
    refuse_positions(array, queries);
  return py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>(array);
}

void write_positions(const py::object& found, std::int64_t queries, SearchResult& result) {
  if (py::isinstance<py::array>(found) && py::cast<py::array>(found).dtype().kind() != 'O') {
    const auto rows = positions_in(py::cast<py::array>(found), 2, queries);
    if (rows.shape(0) != queries) refuse_positions(found, queries);
    const auto n = static_cast<std::size_t>(rows.shape(1));
    for (std::int64_t q = 0; q < queries; ++q)
      write_row({rows.data() + static_cast<std::size_t>(q) * n, n}, q, result);
    return;
  }
  if (!py::hasattr(found, "__len__") || static_cast<std::int64_t>(py::len(found)) != queries)
    refuse_positions(found, queries);
  std::int64_t query = 0;
  for (const py::handle one : found) {
    const auto row = positions_in(py::array(py::reinterpret_borrow<py::object>(one)), 1, queries);
    write_row({row.data(), static_cast<std::size_t>(row.size())}, query++, result);
  }
}

/// The class of an application's indices, and its spec.
struct IndexClass {
  SharedObject cls;
  SharedObject factory;  ///< makes an object of the class
  std::string name;

  /// REQUIRES: the GIL is held.
  py::object make(const std::string& params) const {
    py::object object = (*factory)(params);
    if (py::isinstance(object, *cls)) return object;
    throw Error(fmt::format("the factory returned {}, expected an object of the class {}",
                            described(object), py::cast<std::string>(cls->attr("__name__"))));
  }
};

/// Keys of a KV head. An object of the application's class is built over all of them at once.
class PythonIndex final : public KeyIndex {
 public:
  PythonIndex(std::shared_ptr<const IndexClass> of, std::string params)
      : of_(std::move(of)), params_(std::move(params)) {
    with_python_arguments([&] {
      unused_ = share(of_->make(params_));
      spec_ = params_.empty() ? of_->name : fmt::format("{}:{}", of_->name, params_);
      const py::object spec = py::getattr(*unused_, "spec", py::str(spec_));
      if (!py::isinstance<py::str>(spec)) {
        throw Error(fmt::format("spec is {}, expected a str; make it an attribute or a property",
                                described(spec)));
      }
      spec_ = py::cast<std::string>(spec);
    });
  }

  void add(const KeyView& keys, const std::stop_token& /*stop*/) override {
    KeyView all = keys_.count == 0 ? keys : keys_;
    all.count = keys_.count + keys.count;
    if (built_) object_ = built_over(all);
    keys_ = all;
    if (built_) inserted_ = all.count;
  }
  void build(const std::stop_token& stop) override {
    if (stop.stop_requested()) throw Stopped("stopped before a KV head's keys were indexed");
    object_ = built_over(keys_);
    built_ = true;
    inserted_ = keys_.count;
  }
  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const override {
    result.reset(queries.count, k);
    with_python([&] {
      write_positions(object_->attr("search")(Queries(queries), k), queries.count, result);
    });
  }
  std::int64_t inserted() const override { return inserted_; }
  std::int64_t size() const override { return keys_.count; }
  std::int64_t memory() const override {
    if (object_ == nullptr) return 0;
    return with_python([&] {
      const py::object bytes = py::getattr(*object_, "memory", py::int_(0));
      if (PyIndex_Check(bytes.ptr()) != 0) return py::cast<std::int64_t>(bytes);
      throw Error(
          fmt::format("it is {}, expected a number of bytes; make it an attribute or a "
                      "property",
                      described(bytes)));
    });
  }
  std::string spec() const override { return spec_; }

  /// Returns the object. Null: there are no keys.
  const SharedObject& object() const { return object_; }

  std::vector<std::byte> save() const {
    return with_python([&] {
      const py::object saved = object_->attr("save")();
      if (!py::isinstance<py::bytes>(saved))
        throw Error(fmt::format("it returned {}, expected bytes", described(saved)));
      const auto text = py::cast<std::string_view>(saved);
      const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
      return std::vector<std::byte>(bytes, bytes + text.size());
    });
  }
  void load(const KeyView& keys, std::span<const std::byte> saved) {
    object_ = with_python_arguments([&] {
      const SharedObject object = unused();
      object->attr("load")(floats(keys),
                           py::bytes(reinterpret_cast<const char*>(saved.data()), saved.size()));
      return object;
    });
    keys_ = keys;
    built_ = true;
    inserted_ = keys.count;
  }

 private:
  /// Returns an object that was not given keys: a failed call may have changed one that was.
  SharedObject unused() {
    SharedObject object = std::move(unused_);
    return object != nullptr ? object : share(of_->make(params_));
  }
  SharedObject built_over(const KeyView& keys) {
    if (keys.count == 0) return {};
    return with_python([&] {
      const SharedObject object = unused();
      object->attr("build")(floats(keys));
      return object;
    });
  }

  std::shared_ptr<const IndexClass> of_;
  std::string params_;
  std::string spec_;
  SharedObject unused_;
  SharedObject object_;
  KeyView keys_{.count = 0};
  bool built_ = false;
  std::atomic<std::int64_t> inserted_ = 0;
};

/// The tail of an application's index. Its memory is counted by the index.
class PythonTail final : public IndexTail {
 public:
  PythonTail(const PythonIndex& index, const RowsView& rows) : object_(index.object()) {
    if (object_) with_python([&] { object_->attr("build_tail")(floats(rows.values)); });
  }
  void estimate(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
                float scale, float softcap, const TailEstimate& out) const override {
    if (!object_) return;
    with_python([&] {
      py::list attended;
      for (const auto& rows : taken) attended.append(to_numpy(rows.data(), std::ssize(rows)));
      const py::object given = object_->attr("tail")(Queries(queries), attended, scale, softcap);
      const bool is_tuple = py::isinstance<py::tuple>(given);
      const std::size_t parts = is_tuple ? py::len(given) : 0;
      if (parts != 2 && parts != 3) {
        throw Error(
            fmt::format("it returned {}, expected a tuple (out, lse), or (out, lse, "
                        "squared_error)",
                        described(given)));
      }
      const auto estimate = py::reinterpret_borrow<py::tuple>(given);
      copy(estimate[0], "out", {queries.count, out.partial.head_dim}, out.partial.out);
      copy(estimate[1], "lse", {queries.count}, out.partial.lse);
      if (parts == 3) copy(estimate[2], "squared_error", {queries.count}, out.squared_error);
    });
  }

 private:
  static void copy(const py::object& from, const char* name, const std::vector<std::int64_t>& shape,
                   float* to) {
    const py::array array(from);
    const auto axes = std::span(array.shape(), static_cast<std::size_t>(array.ndim()));
    const char kind = array.dtype().kind();
    if (!std::ranges::equal(axes, shape) || (kind != 'f' && kind != 'i' && kind != 'u')) {
      throw Error(fmt::format("it returned {} as {}, expected float32 [{}]", described(array), name,
                              fmt::join(shape, ", ")));
    }
    const py::array_t<float, py::array::c_style | py::array::forcecast> floats(array);
    std::copy_n(floats.data(), floats.size(), to);
  }

  SharedObject object_;
};

const PythonIndex& python_index(const KeyIndex& index) {
  return static_cast<const PythonIndex&>(index);
}

bool has_method(const py::object& cls, const char* name) {
  return py::hasattr(cls, name) && PyCallable_Check(cls.attr(name).ptr()) != 0;
}

void register_class(const std::string& name, const py::object& cls, const py::object& factory,
                    bool ranks_keys) {
  if (PyType_Check(cls.ptr()) == 0) {
    throw InvalidArgument(fmt::format(
        "register_index: cls is {}, expected a class; give a function that makes objects of the "
        "class as factory",
        described(cls)));
  }
  const auto class_name = py::cast<std::string>(cls.attr("__name__"));
  for (const char* method : {"build", "search"}) {
    if (has_method(cls, method)) continue;
    throw InvalidArgument(
        fmt::format("register_index: class {} has no method {}; an index needs build and search",
                    class_name, method));
  }
  const bool has_tail = has_method(cls, "tail");
  if (has_tail != has_method(cls, "build_tail")) {
    throw InvalidArgument(
        fmt::format("register_index: class {} has no method {}; expected both build_tail and tail, "
                    "or neither",
                    class_name, has_tail ? "build_tail" : "tail"));
  }
  const auto of = std::make_shared<const IndexClass>(
      share(cls), share(factory.is_none() ? cls : factory), name);
  IndexRegistration registration{.make =
                                     [of](std::string_view params) {
                                       return std::make_unique<PythonIndex>(of,
                                                                            std::string(params));
                                     },
                                 .ranks_keys = ranks_keys};
  if (has_tail) {
    registration.make_tail = [](const KeyIndex& index, const RowsView& rows) {
      return std::make_unique<PythonTail>(python_index(index), rows);
    };
  }
  if (has_method(cls, "save"))
    registration.save = [](const KeyIndex& index) { return python_index(index).save(); };
  if (has_method(cls, "load")) {
    registration.load = [](KeyIndex& index, const KeyView& keys, std::span<const std::byte> saved) {
      static_cast<PythonIndex&>(index).load(keys, saved);
    };
  }
  register_index(name, std::move(registration));
}

}  // namespace

void bind_own_index(py::module_& module) {
  py::class_<Queries>(module, "QueryBlock",
                      "The queries that topkv asks an index of the application for "
                      "(register_index).")
      .def_readonly("data", &Queries::data, "The queries, float32 [n, dim].")
      .def_readonly("allowed", &Queries::allowed,
                    "int64 [n, 2]: the half-open range of positions that each query may find.")
      .def_readonly("group", &Queries::group,
                    "The number of consecutive queries that belong to one token's heads. They have "
                    "one range.")
      .def_readonly("tokens", &Queries::tokens,
                    "The number of consecutive groups that form a step of several tokens.")
      .def_readonly("scale", &Queries::scale, "The factor on q·k in attention.")
      .def("__repr__", [](const Queries& queries) {
        return fmt::format("<QueryBlock of {} queries of dim {}>", queries.data.shape(0),
                           queries.data.shape(1));
      });
  module.def(
      "register_index", &register_class, py::arg("name"), py::arg("cls"), py::kw_only(),
      py::arg("factory") = py::none(), py::arg("ranks_keys") = false,
      "Registers an index that is written in Python. \"name\" and \"name:params\" are then specs: "
      "for contexts, sessions, TopkCache, topkv.eval and contexts in files.\n\n"
      "name: a letter, followed by at most 63 letters, digits, '-' and '_'.\n\n"
      "cls: a class. cls(params) makes an index without keys, for one layer and KV head; params is "
      "the text after the colon, or \"\". Raise ValueError for params that are not understood. "
      "Objects have these methods:\n\n"
      "- build(keys): learns from the keys, float32 [n, dim]. The array is a copy, which the index "
      "may keep.\n"
      "- search(queries, k): returns the positions of up to k keys for each query of a QueryBlock. "
      "The positions are an integer array [n, <= k], in which -1 stands for no position, or a "
      "sequence for each query. Scores and order do not matter, because topkv scores the keys "
      "again.\n"
      "- build_tail(values) and tail(queries, attended, scale, softcap), optional. build_tail is "
      "called once, after build or load, with float32 [n, dim]. tail estimates the attention over "
      "the allowed rows that are not in `attended`, which has int64 positions for each query. It "
      "returns (out [n, dim], lse [n]), or (out, lse, squared_error [n]). softcap: above 0, a "
      "score s becomes softcap * tanh(s / softcap).\n"
      "- save() and load(keys, saved), optional. save returns bytes for a context's file; called "
      "several times, it must return equal bytes. load makes an index as cls(params) made it equal "
      "to the saved one. Raise ValueError for invalid bytes. Without these methods, loading a file "
      "builds the index again.\n\n"
      "Objects may have two attributes. memory: the bytes that the index holds. spec: the spec "
      "with "
      "all defaults spelled out.\n\n"
      "factory: called in place of cls to make an object of the class. None: cls itself.\n\n"
      "ranks_keys: whether search finds the keys of the largest inner products, except for a few. "
      "Tails then give no other row a larger score.\n\n"
      "Threads: topkv calls the methods from threads of its own. Indices of different KV heads are "
      "made and built at the same time. Several threads may be inside search and tail of one "
      "object.\n\n"
      "An exception of a method ends the call of topkv, which rolls back its work. The exception "
      "reaches the caller, with a note that names the index. Results that break the rules raise "
      "topkv.Error.");
  module.def(
      "unregister_index", &unregister_index, py::arg("name"),
      "Forgets a registered index. Contexts and sessions that have the index keep it, but new "
      "sessions cannot name it. Returns False when no index with this name is registered.");
}

}  // namespace topkv::python
