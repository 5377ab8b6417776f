// The module topkv._core. One bind_* function per subject.
#include <pybind11/pybind11.h>

#include "bindings/src/errors.h"
#include "bindings/src/gil.h"
#include "bindings/src/handles.h"
#include "bindings/src/progress.h"

PYBIND11_MODULE(_core, module) {
  using namespace topkv::python;
  module.doc() = "The C++ library, as topkv re-exports it.";
  module.attr("__version__") = TOPKV_VERSION;
  module.attr("cuda_built") = static_cast<bool>(TOPKV_CUDA_BUILT);
  bind_gil();
  bind_errors(module);
  bind_progress(module);
  bind_types(module);
  bind_device(module);
  bind_index(module);
  bind_own_index(module);
  bind_attention(module);
  bind_context(module);
  bind_builder(module);
  bind_context_file(module);
  bind_session(module);
  bind_tokenizer(module);
  bind_chat_template(module);
  bind_model(module);
  py::module_ eval = module.def_submodule("_eval", "The parts of topkv.eval.");
  bind_eval_tasks(eval);
  bind_eval_results(eval);
}
