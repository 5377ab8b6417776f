# oneDNN as the target DNNL::dnnl. A module of our own because Debian's CMake files for oneDNN ask
# for OpenCL headers, which topkv has no use for. Point -Ddnnl_ROOT=… at another oneDNN.
find_library(dnnl_LIBRARY dnnl)
find_path(dnnl_INCLUDE_DIR dnnl.h)
mark_as_advanced(dnnl_LIBRARY dnnl_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR)

if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION "${dnnl_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${dnnl_INCLUDE_DIR}")
endif()
