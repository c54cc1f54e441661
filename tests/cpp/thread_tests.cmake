# A sample of the C++ tests under ThreadSanitizer: those in which several threads of a rank meet. Only
# what has threads is compiled a second time, instrumented: also the cache of Plans, which they look
# things up in. What only computes (other Plans, kernels, codecs, the Fabric) comes from q7x2_core.
set(threaded_folders base device executor ledger servers transport)
set(threaded_tests
    concurrent_collectives concurrent_recent device_coded flight_recorder group_end group_failure
    job_queue lanes message notifier parking quiet_end runtime selected sparse_all_reduce)

set(threaded_sources ${torch_free_hooks})
foreach(folder IN LISTS threaded_folders)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/${folder}/*.cpp)
  list(APPEND threaded_sources ${sources})
endforeach()
list(APPEND threaded_sources ${PROJECT_SOURCE_DIR}/csrc/plan/choose/plan_cache.cpp)
set(support ${test_sources})
list(FILTER support EXCLUDE REGEX "_test\\.cpp$")
set(chosen ${threaded_tests})
list(TRANSFORM chosen PREPEND ${PROJECT_SOURCE_DIR}/tests/cpp/)
list(TRANSFORM chosen APPEND _test.cpp)

add_executable(q7x2_thread_tests EXCLUDE_FROM_ALL ${threaded_sources} ${support} ${chosen})
target_include_directories(q7x2_thread_tests PRIVATE tests/cpp)
# The objects above come first, so the library gives only what they do not define.
target_link_libraries(q7x2_thread_tests PRIVATE q7x2_core nlohmann_json::nlohmann_json PkgConfig::ZSTD
                                                GTest::gtest_main)
q7x2_compile_options(q7x2_thread_tests)
q7x2_sanitize(q7x2_thread_tests thread)
target_precompile_headers(q7x2_thread_tests PRIVATE ${common_headers} <gtest/gtest.h>)
target_compile_options(q7x2_thread_tests PRIVATE -O1)
