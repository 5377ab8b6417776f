# Everything topkv stands on, all of it packaged by Debian 12. To use another FAISS or hnswlib,
# point -Dfaiss_ROOT=… or -DTOPKV_HNSWLIB_INCLUDE_DIR=… at it.

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(TBB REQUIRED)
find_package(BLAS REQUIRED)   # FAISS's
find_package(faiss REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)

find_path(TOPKV_HNSWLIB_INCLUDE_DIR hnswlib/hnswlib.h REQUIRED DOC "Folder that holds hnswlib/hnswlib.h")

# oneDNN by hand: Debian's own CMake files for it ask for OpenCL headers, which topkv has no use for.
find_library(TOPKV_DNNL_LIBRARY dnnl REQUIRED)
find_path(TOPKV_DNNL_INCLUDE_DIR dnnl.h REQUIRED)
add_library(topkv_dnnl INTERFACE)
target_link_libraries(topkv_dnnl INTERFACE ${TOPKV_DNNL_LIBRARY})
target_include_directories(topkv_dnnl INTERFACE ${TOPKV_DNNL_INCLUDE_DIR})

set(TOPKV_DEPENDENCIES
  faiss OpenMP::OpenMP_CXX TBB::tbb topkv_dnnl nlohmann_json::nlohmann_json fmt::fmt
  PkgConfig::hwy PkgConfig::pcre2)
