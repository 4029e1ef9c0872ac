# What every target of this project is built with.

option(SLUICE_TESTS "Build the tests" ON)
option(SLUICE_EXAMPLES "Build the examples" ON)
option(SLUICE_BENCH "Build the benches" ON)
option(SLUICE_WERROR "Treat warnings as errors (CI does)" OFF)
option(SLUICE_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
set(SLUICE_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# A compiler cache is used where there is one; -DSLUICE_CCACHE= turns it off.
find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(RPMA REQUIRED IMPORTED_TARGET librpma>=1.2)
pkg_check_modules(IBVERBS REQUIRED IMPORTED_TARGET libibverbs)
pkg_check_modules(RDMACM REQUIRED IMPORTED_TARGET librdmacm)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc>=2.4)
pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing>=2.3)

# Configurations are structs with a default for each field; callers name the fields that they set.
add_library(sluice_warnings INTERFACE)
target_compile_options(sluice_warnings INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
  $<$<BOOL:${SLUICE_WERROR}>:-Werror>)

if(SLUICE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "SLUICE_FUZZ needs clang, not ${CMAKE_CXX_COMPILER_ID}: cmake --preset fuzz")
  endif()
  # Everything is instrumented; only the fuzzers themselves link libFuzzer's main (sluice_fuzz in tests/CMakeLists.txt).
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer
                      -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  if(SLUICE_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
