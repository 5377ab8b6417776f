// What stands for src/text/jinja where that is not built (cmake/Jinja.cmake).
#include "src/text/jinja/render.h"
#include "topkv/error.h"

namespace topkv {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported(
      "chat templates are not in this build of topkv: build it where PyPI can be reached, or with "
      "-D TOPKV_JINJA_DIR= at common/ of llama.cpp");
}

}  // namespace

void check_template(std::string_view) { refuse(); }

std::string render_template(std::string_view, const TemplateInput&) { refuse(); }

}  // namespace topkv
