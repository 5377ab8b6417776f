# Plants one violation at a time in a small tree that keeps the rules, and sees that check.cmake
# names it.
#
#   cmake -D WORK=<folder, deleted first> -P self_test.cmake

cmake_minimum_required(VERSION 3.25)

function(write_clean_tree)
  file(REMOVE_RECURSE ${WORK})
  file(WRITE ${WORK}/include/topkv/types.h "#include <cstdint>\n")
  file(WRITE ${WORK}/include/topkv/context.h "#include <vector>\n#include \"topkv/types.h\"\n")
  file(WRITE ${WORK}/src/core/dot.h "#include \"topkv/types.h\"\n")
  file(WRITE ${WORK}/src/core/dot.cc "#include \"src/core/dot.h\"\n#include <hwy/highway.h>\n")
  file(WRITE ${WORK}/src/context/context.cc
    "#include \"topkv/context.h\"\n#include \"src/core/dot.h\"\n#include \"index/faiss_index.h\"\n")
  file(WRITE ${WORK}/src/cli/main.cc "#include \"src/cli/options.h\"\n#include \"src/core/dot.h\"\n")
  file(WRITE ${WORK}/index/faiss_index.h "#include \"topkv/types.h\"\n#include <faiss/Index.h>\n")
  file(WRITE ${WORK}/index/faiss_index.cc "#include <faiss/index_factory.h>\n")
  file(WRITE ${WORK}/index/hnsw_index.cc "#include <hnswlib/hnswlib.h>\n// #include <cuda.h>\n")
endfunction()

function(run_check)
  execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${WORK} -P ${CMAKE_CURRENT_LIST_DIR}/check.cmake
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  # CMake wraps its messages; undo that.
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  set(result ${result} PARENT_SCOPE)
  set(text "${text}" PARENT_SCOPE)
endfunction()

write_clean_tree()
run_check()
if(NOT result EQUAL 0)
  message(SEND_ERROR "a tree that keeps the rules was refused: ${text}")
endif()

# refused(file line expected): the line, added to the file, must be refused with this text.
function(refused file line expected)
  write_clean_tree()
  file(APPEND ${WORK}/${file} "${line}\n")
  run_check()
  string(FIND "${text}" "${expected}" at)
  if(result EQUAL 0 OR at EQUAL -1)
    message(SEND_ERROR "${line} in ${file}: expected \"${expected}\", got status ${result}: ${text}")
  endif()
endfunction()

refused(src/core/dot.h [[#include "src/store/row_store.h"]] "src/core may not include src/store")
refused(src/store/rows.cc [[#include "src/attention/a.h"]] "src/store may not include src/attention")
refused(index/hnsw_index.cc [[#include "src/context/c.h"]] "index may not include src/context")
refused(src/context/context.cc [[#include "src/model/m.h"]] "src/context may not include src/model")
refused(src/text/bpe.cc [[#include "src/model/m.h"]] "src/text may not include src/model")
refused(src/context/context.cc [[#include "src/text/bpe.h"]] "src/context may not include src/text")
refused(src/context/context.cc [[  #  include "gpu/arena.h"]] "src/context may not include gpu")
refused(src/cli/main.cc [[#include "src/model/config.h"]] "src/cli may not include src/model")
refused(src/cli/main.cc [[#include "index/exact_index.h"]] "src/cli may not include index")
refused(src/eval/needle_result.cc [[#include "src/cli/options.h"]] "src/eval may not include src/cli")
refused(src/eval/needle_result.cc [[#include "src/model/config.h"]] "src/eval may not include src/model")
refused(src/eval/needle_result.cc [[#include <CLI/CLI.hpp>]] "only src/cli may")
refused(src/model/model.cc [[#include "src/eval/needle_result.h"]] "src/model may not include src/eval")
refused(src/core/dot.cc [[#include "../store/row_store.h"]] "write the path from the root")
refused(src/core/dot.cc [[#include "dot.h"]] "write the path from the root")
refused(include/topkv/types.h [[#include "src/core/dot.h"]] "include/topkv may not include src/core")
foreach(header IN ITEMS cuda_runtime.h faiss/Index.h hnswlib/hnswlib.h nlohmann/json.hpp
        pybind11/pybind11.h tbb/task_arena.h hwy/highway.h sys/mman.h)
  refused(include/topkv/types.h "#include <${header}>" "types.h: includes ${header}: public headers")
endforeach()
refused(index/hnsw_index.cc [[#include <cuda_runtime.h>]] "cuda_runtime.h: only gpu may")
refused(src/cli/main.cc [[#include <httplib.h>]] "httplib.h: only src/serve may")
refused(src/serve/service.cc [[#include "src/cli/options.h"]] "src/serve may not include src/cli")
refused(src/core/dot.cc [[#include <pybind11/pybind11.h>]] "only bindings may")
refused(gpu/cuda_device.cc [[#include "topkv/context.h"]] "gpu/cuda_device.cc: includes topkv/context.h")
refused(index/other.cc [[#include <faiss/Index.h>]] "only files index/faiss_* include FAISS, found index/other")
refused(index/other.cc [[#include <hnswlib/hnswlib.h>]] "only files index/hnsw_* include HNSWLIB, found index/other")
refused(src/context/context.cc [[#include <faiss/Index.h>]] "only index may")

write_clean_tree()
file(REMOVE ${WORK}/index/hnsw_index.cc)
run_check()
if(result EQUAL 0)
  message(SEND_ERROR "a tree without hnswlib was accepted")
endif()
