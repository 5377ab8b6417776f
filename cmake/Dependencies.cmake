# Everything topkv stands on, all of it packaged by Debian 12 (tools/setup.sh lists the packages).
# To use another FAISS or hnswlib, point -Dfaiss_ROOT=… or -DTOPKV_HNSWLIB_INCLUDE_DIR=… at it.
# What a static libtopkv.a is linked with also stands in topkvConfig.cmake.in and topkv.pc.in.

list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(TBB REQUIRED)
find_package(BLAS REQUIRED)   # FAISS's
find_package(LAPACK REQUIRED)
find_package(faiss REQUIRED)
find_package(dnnl REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy-contrib libhwy)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(xxhash REQUIRED libxxhash)  # its header alone is used
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)

# Of `topkv serve` alone, which says so where it is missing.
pkg_check_modules(httplib IMPORTED_TARGET cpp-httplib)
set(TOPKV_HTTP ${httplib_FOUND})

find_path(TOPKV_HNSWLIB_INCLUDE_DIR hnswlib/hnswlib.h REQUIRED DOC "Folder that holds hnswlib/hnswlib.h")

# Headers alone are wrapped in BUILD_INTERFACE: whoever links an installed topkv needs no such package.
set(TOPKV_DEPENDENCIES
  faiss LAPACK::LAPACK OpenMP::OpenMP_CXX TBB::tbb DNNL::dnnl fmt::fmt PkgConfig::hwy PkgConfig::pcre2 PkgConfig::utf8proc
  $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
