# Decides whether the CUDA device is built, and for which architectures.
#
# TOPKV_CUDA ends up ON or OFF. CMAKE_CUDA_ARCHITECTURES is the user's choice; by default every
# architecture from Ampere on that this nvcc knows, "native" being the quickest to build.

set(TOPKV_WARNINGS $<$<COMPILE_LANGUAGE:CXX>:-Wall$<SEMICOLON>-Wextra$<$<BOOL:${TOPKV_WERROR}>:$<SEMICOLON>-Werror>>)
if(CMAKE_UNITY_BUILD)  # where each file would be a main file, whose unnamed namespaces are its own
  list(APPEND TOPKV_WARNINGS $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

if(TOPKV_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(TOPKV_CUDA ON)
  else()
    set(TOPKV_CUDA OFF)
    message(STATUS "topkv: no nvcc found, so the CUDA device is not built")
  endif()
endif()

if(TOPKV_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 100-real 120)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 12.8 REQUIRED)  # the first that knows sm_100 and sm_120
  set(CMAKE_CUDA_STANDARD 17)  # of the .cu files: CMake 3.25 knows no later one
  list(APPEND TOPKV_WARNINGS $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TOPKV_WERROR}>>:-Werror=all-warnings>)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/CudnnFrontend.cmake)
