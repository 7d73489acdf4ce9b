# Compiler flags: standfast_flags for all that is linked together, standfast_warnings for our own
# files only.

add_library(standfast_flags INTERFACE)

# Asserts stay on in releases, and a core dump of a release has line numbers.
target_compile_options(standfast_flags INTERFACE -UNDEBUG -g1)

if(STANDFAST_SANITIZE STREQUAL "thread")
  set(sanitize_flags -fsanitize=thread)
elseif(STANDFAST_SANITIZE STREQUAL "address")
  set(sanitize_flags -fsanitize=address,undefined)
elseif(STANDFAST_SANITIZE)
  message(FATAL_ERROR "STANDFAST_SANITIZE=${STANDFAST_SANITIZE}: must be empty, thread or address")
endif()
if(STANDFAST_SANITIZE)
  list(APPEND sanitize_flags -fno-sanitize-recover=all)
  target_compile_options(
    standfast_flags INTERFACE ${sanitize_flags} -fno-omit-frame-pointer -O1)
  target_link_options(standfast_flags INTERFACE ${sanitize_flags})
endif()

add_library(standfast_warnings INTERFACE)
target_compile_options(
  standfast_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wconversion
            -Wformat=2
            -Wcast-align
            -Wundef
            -Wnon-virtual-dtor
            -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC takes the strings of a moved or defaulted aggregate for uninitialized; the sanitizers look.
  target_compile_options(standfast_warnings INTERFACE -Wno-maybe-uninitialized)
  if(STANDFAST_SANITIZE STREQUAL "thread")
    # GCC says at each fence that this sanitizer does not know fences.
    target_compile_options(standfast_warnings INTERFACE -Wno-tsan)
  endif()
endif()
if(STANDFAST_WERROR)
  target_compile_options(standfast_warnings INTERFACE -Werror)
endif()

# Element loops: one result everywhere, so products and sums are never fused; wider instructions
# only in the files named for them, which are called only after asking the processor.
function(standfast_element_loop_flags)
  foreach(file IN LISTS ARGN)
    if(file MATCHES "/core/reduce/")
      set(flags -ffp-contract=off)
      if(file MATCHES "_avx2\\.cpp$")
        list(APPEND flags -mavx2 -mf16c -mfma)
      elseif(file MATCHES "_avx512\\.cpp$")
        list(APPEND flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c -mfma)
      endif()
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # GCC's own headers make undefined vectors on purpose (GCC bug 105593).
        list(APPEND flags -Wno-uninitialized)
      endif()
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
    endif()
  endforeach()
endfunction()
