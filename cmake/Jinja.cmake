# Decides whether chat templates are built: they are rendered by llama.cpp's Jinja engine (C++17, no
# dependencies), whose sources Debian does not package. They are fetched once from PyPI, as
# tools/fetch_jinja.sh says, into build/deps/jinja. To use a copy, or where PyPI cannot be reached,
# point -D TOPKV_JINJA_DIR= at a folder with jinja/, unicode.h and unicode.cpp (common/ of llama.cpp).
#
# TOPKV_JINJA ends up ON or OFF, with the sources in TOPKV_JINJA_DIR. Without it the library says, of
# every chat template, that it was built so.

set(TOPKV_JINJA AUTO CACHE STRING
  "Build chat templates: ON, OFF, or AUTO (when the sources of the Jinja engine are there or can be fetched)")

if(NOT TOPKV_JINJA STREQUAL "OFF")
  set(reason "")
  set(fetched ${PROJECT_SOURCE_DIR}/build/deps/jinja)
  if("${TOPKV_JINJA_DIR}" STREQUAL "${fetched}" AND NOT EXISTS ${fetched}/jinja/runtime.h)
    unset(TOPKV_JINJA_DIR CACHE)  # deleted since
  endif()
  find_path(TOPKV_JINJA_DIR jinja/runtime.h PATHS ${fetched} NO_DEFAULT_PATH
    DOC "Folder that holds jinja/runtime.h and unicode.h of llama.cpp's common/")
  if(NOT TOPKV_JINJA_DIR)
    message(STATUS "topkv: fetching the Jinja engine for chat templates")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/fetch_jinja.sh ${fetched}
      ERROR_VARIABLE reason OUTPUT_QUIET)
    find_path(TOPKV_JINJA_DIR jinja/runtime.h PATHS ${fetched} NO_DEFAULT_PATH)
    if(TOPKV_JINJA_DIR)
      set(reason "")  # but a warning of pip's
    elseif(NOT reason)
      set(reason "tools/fetch_jinja.sh brought none")
    endif()
  elseif(NOT EXISTS ${TOPKV_JINJA_DIR}/jinja/runtime.h)
    set(reason "TOPKV_JINJA_DIR is ${TOPKV_JINJA_DIR}, where there is no jinja/runtime.h")
  endif()
  find_file(TOPKV_JINJA_LICENSE LICENSE PATHS ${TOPKV_JINJA_DIR} ${TOPKV_JINJA_DIR}/.. NO_DEFAULT_PATH
    DOC "llama.cpp's licence, which is installed with topkv")
  if(NOT reason AND NOT TOPKV_JINJA_LICENSE)
    set(reason "no LICENSE in ${TOPKV_JINJA_DIR} or above; set TOPKV_JINJA_LICENSE")
  endif()

  if(NOT reason)
    set(TOPKV_JINJA ON)
  else()
    string(STRIP "${reason}" reason)
    string(CONCAT message "no sources of the Jinja engine (${reason}); let PyPI be reached, or point "
      "-D TOPKV_JINJA_DIR= at common/ of llama.cpp")
    if(TOPKV_JINJA STREQUAL "AUTO")
      set(TOPKV_JINJA OFF)
      message(WARNING "topkv: chat templates are not built: ${message}")
    else()
      message(FATAL_ERROR "topkv: ${message}, or leave chat templates out with -D TOPKV_JINJA=OFF")
    endif()
  endif()
endif()
