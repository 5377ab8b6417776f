# Decides whether answers can be held to a JSON schema: XGrammar (C++17) says which tokens may follow.
# Debian does not package it. Its sources are fetched once from PyPI, as tools/fetch_xgrammar.sh says,
# into build/deps/xgrammar. To use a copy, or where PyPI cannot be reached, point -D TOPKV_XGRAMMAR_DIR=
# at the folder of an unpacked source package of that release.
#
# TOPKV_GRAMMARS ends up ON or OFF, with the sources in TOPKV_XGRAMMAR_DIR. Without it the library says,
# of every schema, that it was built so.

set(TOPKV_GRAMMARS AUTO CACHE STRING
  "Build answers held to a JSON schema: ON, OFF, or AUTO (when XGrammar's sources are there or can be fetched)")

if(NOT TOPKV_GRAMMARS STREQUAL "OFF")
  set(reason "")
  set(fetched ${PROJECT_SOURCE_DIR}/build/deps/xgrammar)
  set(header include/xgrammar/xgrammar.h)
  if("${TOPKV_XGRAMMAR_DIR}" STREQUAL "${fetched}" AND NOT EXISTS ${fetched}/${header})
    unset(TOPKV_XGRAMMAR_DIR CACHE)  # deleted since
  endif()
  find_path(TOPKV_XGRAMMAR_DIR ${header} PATHS ${fetched} NO_DEFAULT_PATH
    DOC "Folder that holds cpp/, include/ and 3rdparty/ of XGrammar")
  if(NOT TOPKV_XGRAMMAR_DIR)
    message(STATUS "topkv: fetching XGrammar for answers held to a JSON schema")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/fetch_xgrammar.sh ${fetched}
      ERROR_VARIABLE reason OUTPUT_QUIET)
    find_path(TOPKV_XGRAMMAR_DIR ${header} PATHS ${fetched} NO_DEFAULT_PATH)
    if(TOPKV_XGRAMMAR_DIR)
      set(reason "")  # but a warning of pip's
    elseif(NOT reason)
      set(reason "tools/fetch_xgrammar.sh brought none")
    endif()
  elseif(NOT EXISTS ${TOPKV_XGRAMMAR_DIR}/${header})
    set(reason "TOPKV_XGRAMMAR_DIR is ${TOPKV_XGRAMMAR_DIR}, where there is no ${header}")
  endif()
  find_file(TOPKV_XGRAMMAR_LICENSE LICENSE PATHS ${TOPKV_XGRAMMAR_DIR} NO_DEFAULT_PATH
    DOC "XGrammar's licence, which is installed with topkv")
  if(NOT reason AND NOT TOPKV_XGRAMMAR_LICENSE)
    set(reason "no LICENSE in ${TOPKV_XGRAMMAR_DIR}; set TOPKV_XGRAMMAR_LICENSE")
  endif()

  if(NOT reason)
    set(TOPKV_GRAMMARS ON)
  else()
    string(STRIP "${reason}" reason)
    string(CONCAT message "no sources of XGrammar (${reason}); let PyPI be reached, or point "
      "-D TOPKV_XGRAMMAR_DIR= at its sources")
    if(TOPKV_GRAMMARS STREQUAL "AUTO")
      set(TOPKV_GRAMMARS OFF)
      message(WARNING "topkv: JSON schemas are not built: ${message}")
    else()
      message(FATAL_ERROR "topkv: ${message}, or leave JSON schemas out with -D TOPKV_GRAMMARS=OFF")
    endif()
  endif()
endif()
