# Installs a build tree into a folder of its own, moves that folder, and builds and runs a small
# program against it: once through find_package, once through pkg-config.
#
#   cmake -D BUILD=<build tree> -D WORK=<folder, deleted first> -D CXX=<compiler> -D CXX_FLAGS=<flags>
#         -D LIBDIR=<as configured> -P check.cmake

cmake_minimum_required(VERSION 3.25)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit status ${result} of: ${command}\n${text}")
  endif()
  message(STATUS "${text}")
endfunction()

file(REMOVE_RECURSE ${WORK})
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed)
file(RENAME ${WORK}/installed ${WORK}/moved)  # nothing in it may know where it was built

foreach(file IN ITEMS bin/topkv include/topkv/session.h include/topkv/chat_template.h share/doc/topkv/LICENSE)
  if(NOT EXISTS ${WORK}/moved/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

step(${WORK}/moved/bin/topkv --help)

file(GLOB_RECURSE texts ${WORK}/moved/*.cmake ${WORK}/moved/*.pc)
foreach(file IN LISTS texts)
  file(READ ${file} text)
  string(FIND "${text}" "${BUILD}" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} names the build tree ${BUILD}")
  endif()
endforeach()

step(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/cmake -G Ninja
  -D CMAKE_PREFIX_PATH=${WORK}/moved -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_CXX_FLAGS=${CXX_FLAGS})
step(${CMAKE_COMMAND} --build ${WORK}/cmake)
step(${WORK}/cmake/consumer)

set(ENV{PKG_CONFIG_PATH} ${WORK}/moved/${LIBDIR}/pkgconfig)
execute_process(COMMAND pkg-config --cflags --libs --static topkv
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${CXX_FLAGS} ${flags}")
file(MAKE_DIRECTORY ${WORK}/pkgconfig)
step(${CXX} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/main.cc -o ${WORK}/pkgconfig/consumer ${flags})
set(ENV{LD_LIBRARY_PATH} ${WORK}/moved/${LIBDIR})  # for a shared libtopkv
step(${WORK}/pkgconfig/consumer)
