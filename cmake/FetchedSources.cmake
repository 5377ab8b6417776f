# Sources that are compiled into the library and that Debian does not package. They are fetched once
# from PyPI into build/deps/NAME, as tools/fetch_NAME.sh says.
#
# topkv_fetch_sources(OPTION … NAME … DIR … HEADER … LICENCE … [LICENCE_IN …] SOURCES … FOR … HOLDS … COPY …)
#
#   OPTION      the option's name; ON, OFF or AUTO. AUTO becomes ON with the sources and OFF without them,
#               with a warning. ON without them is an error
#   DIR         a cache variable's name: the folder of the sources, which may be a copy
#   HEADER      a file in this folder; if it is there, they are
#   LICENCE     a cache variable's name: the file LICENSE in the folder, or in LICENCE_IN relative to it
#   SOURCES     in words, what the sources are of; FOR: what is built of them; HOLDS: what the folder
#               has; COPY: what a copy is of
function(topkv_fetch_sources)
  cmake_parse_arguments(PARSE_ARGV 0 of "" "OPTION;NAME;DIR;HEADER;LICENCE;SOURCES;FOR;HOLDS;COPY" "LICENCE_IN")
  if(${of_OPTION} STREQUAL "OFF")
    return()
  endif()
  set(reason "")
  set(fetched ${PROJECT_SOURCE_DIR}/build/deps/${of_NAME})
  if("${${of_DIR}}" STREQUAL "${fetched}" AND NOT EXISTS ${fetched}/${of_HEADER})
    unset(${of_DIR} CACHE)  # deleted since
  endif()
  find_path(${of_DIR} ${of_HEADER} PATHS ${fetched} NO_DEFAULT_PATH DOC "Folder that holds ${of_HOLDS}")
  if(NOT ${of_DIR})
    message(STATUS "topkv: fetching ${of_SOURCES} for ${of_FOR}")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/fetch_${of_NAME}.sh ${fetched}
      ERROR_VARIABLE reason OUTPUT_QUIET)
    find_path(${of_DIR} ${of_HEADER} PATHS ${fetched} NO_DEFAULT_PATH)
    if(${of_DIR})
      set(reason "")  # but a warning of pip's
    elseif(NOT reason)
      set(reason "tools/fetch_${of_NAME}.sh brought none")
    endif()
  elseif(NOT EXISTS ${${of_DIR}}/${of_HEADER})
    set(reason "${of_DIR} is ${${of_DIR}}, where there is no ${of_HEADER}")
  endif()
  set(folders ${${of_DIR}})
  foreach(folder IN LISTS of_LICENCE_IN)
    list(APPEND folders ${${of_DIR}}/${folder})
  endforeach()
  find_file(${of_LICENCE} LICENSE PATHS ${folders} NO_DEFAULT_PATH
    DOC "The licence of ${of_SOURCES}, which is installed with topkv")
  if(NOT reason AND NOT ${of_LICENCE})
    list(JOIN folders " or " folders)
    set(reason "no LICENSE in ${folders}; set ${of_LICENCE}")
  endif()

  if(NOT reason)
    set(${of_OPTION} ON PARENT_SCOPE)
    return()
  endif()
  string(STRIP "${reason}" reason)
  string(CONCAT message "no sources of ${of_SOURCES} (${reason}); let PyPI be reached, or point "
    "-D ${of_DIR}= at ${of_COPY}")
  if(${of_OPTION} STREQUAL "AUTO")
    set(${of_OPTION} OFF PARENT_SCOPE)
    message(WARNING "topkv: ${of_FOR} are not built: ${message}")
  else()
    message(FATAL_ERROR "topkv: ${message}, or leave ${of_FOR} out with -D ${of_OPTION}=OFF")
  endif()
endfunction()
