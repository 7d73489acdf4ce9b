# Which files belong to this platform. A file's name says where it belongs: *_linux.cpp,
# *_macos.cpp, and *_avx2.cpp, *_avx512.cpp for x86-64; the same before _test.cpp. Files without
# such an ending belong everywhere.

if(APPLE AND CMAKE_OSX_ARCHITECTURES)
  set(standfast_processor "${CMAKE_OSX_ARCHITECTURES}")
else()
  set(standfast_processor "${CMAKE_SYSTEM_PROCESSOR}")
endif()

# standfast_sources(<variable> <folder>): the .cpp files under a folder that this platform uses.
function(standfast_sources variable folder)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    list(FILTER files EXCLUDE REGEX "_linux(_test)?\\.cpp$")
  endif()
  if(NOT APPLE)
    list(FILTER files EXCLUDE REGEX "_macos(_test)?\\.cpp$")
  endif()
  if(NOT standfast_processor MATCHES "^(x86_64|AMD64|amd64)$")
    list(FILTER files EXCLUDE REGEX "_avx(2|512)(_test)?\\.cpp$")
  endif()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()
