# What `make check` adds to plain unit tests. The sanitizer and fuzzer trees (build-asan, build-tsan, build-fuzz) are
# configured and built beside the main tree; the main tree registers their programs, so that one ctest run covers all.

# Test programs that also run sanitized: threads matter to the first list, memory to both.
set(TAILRACE_TSAN_TESTS base_test device_test kv_test scheduler_test batch_test engine_test server_test http_test
    scheduler_hazards_test canc_1_engine_test grammar_engine_test output_test output_families_test)
set(TAILRACE_ASAN_TESTS ${TAILRACE_TSAN_TESTS} weights_test text_test sampler_test model_test kernels_cpu_test kernels_cuda_test)

# The programs of this project, as paths below a build tree, that `tree` (asan or tsan) runs.
function(tailrace_sanitized_programs tree out)
  string(TOUPPER ${tree} tree)
  string(REPLACE ";" "|" names "${TAILRACE_${tree}_TESTS}")
  get_property(programs GLOBAL PROPERTY TAILRACE_TEST_PROGRAMS)
  list(FILTER programs INCLUDE REGEX "/(${names})$")
  set(${out} ${programs} PARENT_SCOPE)
endfunction()

if(TAILRACE_SANITIZE STREQUAL "fuzzer")
  add_subdirectory(${CMAKE_SOURCE_DIR}/tests/fuzz ${CMAKE_BINARY_DIR}/tests/fuzz)
elseif(TAILRACE_SANITIZE)
  if(TAILRACE_SANITIZE STREQUAL "address")
    tailrace_sanitized_programs(asan programs)
  else()
    tailrace_sanitized_programs(tsan programs)
  endif()
  add_custom_target(sanitized_tests)
  foreach(program IN LISTS programs)
    get_filename_component(name ${program} NAME)
    add_dependencies(sanitized_tests ${name})
  endforeach()
elseif(TAILRACE_CHECK)
  foreach(tree IN ITEMS asan tsan)
    tailrace_sanitized_programs(${tree} programs)
    foreach(program IN LISTS programs)
      get_filename_component(name ${program} NAME)
      add_test(NAME ${tree}/${name} COMMAND ${CMAKE_SOURCE_DIR}/build-${tree}/${program})
      set_tests_properties(${tree}/${name} PROPERTIES TIMEOUT 900)
    endforeach()
  endforeach()

  file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.cpp)
  foreach(source IN LISTS fuzzers)
    get_filename_component(name ${source} NAME_WE)
    add_test(NAME fuzz/${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/fuzz/run_fuzzer.sh
             ${CMAKE_SOURCE_DIR}/build-fuzz ${name} ${TAILRACE_FUZZ_SECONDS})
    math(EXPR limit "${TAILRACE_FUZZ_SECONDS} + 120")
    set_tests_properties(fuzz/${name} PROPERTIES TIMEOUT ${limit})
  endforeach()

  # The client tests start the real binary on the demo model and time nothing, yet want the machine's cores.
  if(TARGET tailrace)
    add_test(NAME e2e COMMAND ${CMAKE_SOURCE_DIR}/.venv-test/bin/python -m pytest -q -p no:cacheprovider
             ${CMAKE_SOURCE_DIR}/tests/e2e --ignore=${CMAKE_SOURCE_DIR}/tests/e2e/page)
    set(client_tests e2e)
    if(TAILRACE_PAGE)
      add_test(NAME e2e_page COMMAND ${CMAKE_SOURCE_DIR}/.venv-test/bin/python -m pytest -q -p no:cacheprovider
               ${CMAKE_SOURCE_DIR}/tests/e2e/page)
      list(APPEND client_tests e2e_page)
    endif()
    set_tests_properties(${client_tests} PROPERTIES TIMEOUT 900 RUN_SERIAL ON LABELS e2e
                         ENVIRONMENT "E2E_BINARY=$<TARGET_FILE:tailrace>")
  endif()
endif()
