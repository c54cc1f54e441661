# Counts the lines that run, in what is tested and not in the tests. CMake includes this file after
# `project()` (CMAKE_PROJECT_INCLUDE), so the usual build knows nothing of it. The tests have the flags
# of the usual build, so they come from the compiler's cache.

function(q7x2_count_lines)
  # Threads count at the same time. Counters that lost a step would make gcov derive wrong ones.
  set(flags -O1 --coverage -fprofile-update=atomic)
  foreach(target q7x2_core _C)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  endforeach()
  # But for the kernels, whose inner loops would take ten times as long.
  file(GLOB_RECURSE kernels ${PROJECT_SOURCE_DIR}/csrc/kernels/*.cpp)
  set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS -fprofile-update=single)
  foreach(target _C q7x2_tests)
    target_link_options(${target} PRIVATE --coverage)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/runner/coverage/register.cpp)
  endforeach()
  add_library(coverage_exit SHARED ${PROJECT_SOURCE_DIR}/tests/runner/coverage/exit.cpp)
  target_link_libraries(coverage_exit PRIVATE Threads::Threads)
endfunction()

cmake_language(DEFER CALL q7x2_count_lines)
