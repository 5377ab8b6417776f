# Decides whether attention through cuDNN is built: it needs the headers of cuDNN 9 and those of its
# front end (header-only, of its Python wheel). libcudnn itself is only looked for at run time.
#
# TOPKV_CUDNN ends up ON or OFF, with the headers in TOPKV_CUDNN_FRONTEND_INCLUDE_DIR and
# TOPKV_CUDNN_INCLUDE_DIR.

set(TOPKV_CUDNN AUTO CACHE STRING
  "Build attention through cuDNN: ON, OFF, or AUTO (when its headers are there or can be fetched)")

if(TOPKV_CUDA AND NOT TOPKV_CUDNN STREQUAL "OFF")
  set(TOPKV_CUDNN_REASON "")
  find_path(TOPKV_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    DOC "Folder that holds cudnn.h")
  if(NOT TOPKV_CUDNN_INCLUDE_DIR)
    set(TOPKV_CUDNN_REASON "no cudnn.h found (set TOPKV_CUDNN_INCLUDE_DIR)")
  else()
    set(TOPKV_CUDNN_FRONTEND ${PROJECT_SOURCE_DIR}/build/deps/cudnn_frontend)
    find_path(TOPKV_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${TOPKV_CUDNN_FRONTEND}/include
      DOC "Folder that holds cudnn_frontend.h")
    if(NOT TOPKV_CUDNN_FRONTEND_INCLUDE_DIR)
      message(STATUS "topkv: fetching the headers of cuDNN's front end")
      execute_process(
        COMMAND ${PROJECT_SOURCE_DIR}/tools/fetch_cudnn_frontend.sh ${TOPKV_CUDNN_FRONTEND}
        RESULT_VARIABLE TOPKV_FETCHED ERROR_VARIABLE TOPKV_CUDNN_REASON OUTPUT_QUIET)
      find_path(TOPKV_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
        HINTS ${TOPKV_CUDNN_FRONTEND}/include)
    endif()
  endif()

  if(TOPKV_CUDNN_INCLUDE_DIR AND TOPKV_CUDNN_FRONTEND_INCLUDE_DIR)
    set(TOPKV_CUDNN ON)
  elseif(TOPKV_CUDNN STREQUAL "AUTO")
    set(TOPKV_CUDNN OFF)
    message(STATUS "topkv: attention through cuDNN is not built: ${TOPKV_CUDNN_REASON}")
  else()
    message(FATAL_ERROR "topkv: no headers of cuDNN's front end: ${TOPKV_CUDNN_REASON}")
  endif()
endif()
