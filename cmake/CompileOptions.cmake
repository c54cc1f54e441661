# Compiler flags of our own targets: warnings, sanitizers, and what the numeric kernels need.

function(q7x2_compile_options target)
  set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 sees overlaps and overflows in std::string's operator+ (PR105329).
    list(APPEND warnings -Wno-restrict -Wno-stringop-overflow)
  endif()
  if(Q7X2_WERROR)
    list(APPEND warnings -Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
  if(Q7X2_SANITIZE)
    q7x2_sanitize(${target} ${Q7X2_SANITIZE})
  endif()
endfunction()

# Compiles and links `target` with the sanitizers of GCC.
function(q7x2_sanitize target sanitizers)
  # Line numbers are all that a report shows, and take a third less time than -g.
  set(flags -fsanitize=${sanitizers} -fno-omit-frame-pointer -g1)
  if(sanitizers MATCHES "undefined")
    list(APPEND flags -fno-sanitize-recover=undefined)
  endif()
  if(sanitizers MATCHES "thread")
    # ThreadSanitizer knows no fences. Those of HostChannel order memory of several processes, of
    # which it sees one.
    list(APPEND flags -Wno-tsan)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  target_link_options(${target} PRIVATE -fsanitize=${sanitizers})
endfunction()

# Kernels are optimised in every build type, and without contraction into fused multiply-adds:
# otherwise the scalar, AVX2, AVX-512 and CUDA variants of one function would round differently.
# Nobody reads the floating-point exception flags: with -fno-trapping-math GCC vectorises loops that
# select between computed values, the conversions of 8- and 16-bit floats above all.
# A variant for an instruction set is a file of its own, chosen at run time.
function(q7x2_kernel_options directory)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${directory}/*.cpp)
  foreach(source IN LISTS sources)
    set(flags -O3 -ffp-contract=off -fno-trapping-math)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
      if(source MATCHES "_avx2\\.cpp$")
        list(APPEND flags -mavx2 -mf16c -mfma)
      elseif(source MATCHES "_avx512\\.cpp$")
        list(APPEND flags -mavx512f -mavx512bw -mavx512vl -mavx512dq)
      endif()
    endif()
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags}"
                                                     SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${directory}/*.cu)
  # ptxas_report.py keeps what ptxas says. tests/python/devices/test_kernel_resources.py reads it.
  set(flags -fmad=false -Xptxas=-v)
  if(Q7X2_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${flags}")
endfunction()
